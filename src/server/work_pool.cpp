#include "penstock/server/work_pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/log.h"

namespace penstock::inline v0 {

struct WorkPool::State {
  // Also when a thread could not be made: those that were are joined before the exception goes on.
  ~State() {
    {
      std::lock_guard lock(mutex);
      stopping = true;
    }
    wake.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  void ThreadMain() {
    for (;;) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return stopping || !waiting.empty(); });
        if (waiting.empty()) return;
        work = std::move(waiting.front());
        waiting.pop_front();
      }
      try {
        work();
      } catch (...) {
        detail::Log(LogSeverity::kError, "work on a pool threw");
      }
      work = nullptr;
      std::lock_guard lock(mutex);
      --busy;
    }
  }

  mutable std::mutex mutex;
  std::condition_variable wake;
  bool stopping = false;
  std::size_t busy = 0;  // taken and not yet done, waiting ones included
  std::size_t most = 0;
  std::deque<std::function<void()>> waiting;
  std::vector<std::thread> threads;
};

WorkPool::WorkPool(WorkPoolSettings settings) : state_(std::make_unique<State>()) {
  const std::size_t threads = std::clamp<std::size_t>(settings.threads, 1, 1024);
  constexpr std::size_t kEndless = std::numeric_limits<std::size_t>::max();
  state_->most = settings.max_waiting > kEndless - threads ? kEndless : threads + settings.max_waiting;
  state_->threads.reserve(threads);
  for (std::size_t made = 0; made < threads; ++made) {
    state_->threads.emplace_back([state = state_.get()] { state->ThreadMain(); });
  }
}

WorkPool::~WorkPool() = default;

bool WorkPool::Submit(std::function<void()> work) {
  {
    std::lock_guard lock(state_->mutex);
    if (state_->stopping || state_->busy >= state_->most) return false;
    state_->waiting.push_back(std::move(work));
    ++state_->busy;
  }
  state_->wake.notify_one();
  return true;
}

std::size_t WorkPool::pending() const noexcept {
  std::lock_guard lock(state_->mutex);
  return state_->busy;
}

}  // namespace penstock::inline v0
