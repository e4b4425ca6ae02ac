#include "penstock/testing/manual_time.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::inline v0::testing {

namespace {

constexpr std::size_t kMostFirings = 1'000'000;

class ManualClock final : public Clock {
 public:
  explicit ManualClock(TimePoint start) : now_(start.time_since_epoch().count()) {}

  // Acquire: pairs with the release in Set(), so that whoever sees a time sees what was done before the clock reached it.
  TimePoint Now() const noexcept override { return TimePoint(Duration(now_.load(std::memory_order_acquire))); }

  // Called by one thread at a time.
  void Set(TimePoint now) noexcept { now_.store(now.time_since_epoch().count(), std::memory_order_release); }

 private:
  std::atomic<Duration::rep> now_;
};

// Fires what was due when it was armed. One thread for the process, never joined: the last reference to a manual time may
// go away on it.
class Kicker {
 public:
  static Kicker& Get() {
    static Kicker& kicker = *new Kicker;
    return kicker;
  }

  void Post(std::function<void()> task) {
    {
      std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    wake_.notify_one();
  }

 private:
  Kicker() {
    std::thread([this] { Work(); }).detach();
  }

  void Work() {
    for (;;) {
      std::vector<std::function<void()>> tasks;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return !tasks_.empty(); });
        tasks.swap(tasks_);
      }
      for (const std::function<void()>& task : tasks) task();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::function<void()>> tasks_;  // guarded by mutex_
};

}  // namespace

struct ManualTime::State {
  explicit State(TimePoint start) : clock(start) {}

  std::size_t AdvanceTo(TimePoint target) {
    {
      std::lock_guard lock(mutex);
      if (std::exchange(kick_failed, false)) throw Endless();
    }
    return FireUpTo(target);
  }

  // On the kicker's thread, which has nobody to tell of a timer without end: the next AdvanceTo() does.
  void Kick() noexcept {
    {
      std::lock_guard lock(mutex);
      kick_posted = false;
      if (kick_failed) return;
    }
    try {
      FireUpTo(clock.Now());
    } catch (const std::logic_error&) {
      std::lock_guard lock(mutex);
      kick_failed = true;
    }
  }

  std::size_t FireUpTo(TimePoint target) {
    std::lock_guard only_one(advancing);
    std::size_t fired = 0;
    for (;; ++fired) {
      Timer* due = nullptr;
      {
        std::lock_guard lock(mutex);
        const TimePoint next = queue.NextDue();
        if (next > target) {
          if (target > clock.Now()) clock.Set(target);
          return fired;
        }
        if (fired == kMostFirings) throw Endless();
        if (next > clock.Now()) clock.Set(next);
        due = queue.TakeDue(clock.Now());
      }
      due->Fire();
    }
  }

  static std::logic_error Endless() { return std::logic_error("ManualTime: a timer arms itself again at once, without end"); }

  std::mutex advancing;  // taken before mutex; held while timers fire
  mutable std::mutex mutex;
  mutable std::condition_variable armed;
  TimerQueue queue;          // guarded by mutex
  bool kick_posted = false;  // guarded by mutex
  bool kick_failed = false;  // guarded by mutex: at a timer without end, and nobody was told yet
  ManualClock clock;
};

ManualTime::ManualTime(TimePoint start) : state_(std::make_shared<State>(start)) {}

ManualTime::~ManualTime() = default;

const Clock& ManualTime::clock() const noexcept { return state_->clock; }

void ManualTime::Arm(Timer& timer, TimePoint due) noexcept {
  bool kick = false;
  {
    std::lock_guard lock(state_->mutex);
    state_->queue.Arm(timer, due);
    kick = due <= state_->clock.Now() && !std::exchange(state_->kick_posted, true);
  }
  state_->armed.notify_all();
  // Never inline: whoever arms may hold a lock that Fire() takes.
  if (kick) Kicker::Get().Post([state = state_] { state->Kick(); });
}

bool ManualTime::Disarm(Timer& timer) noexcept {
  std::lock_guard lock(state_->mutex);
  return state_->queue.Disarm(timer);
}

std::size_t ManualTime::Advance(Duration length) {
  // A timer may let go of the last reference to this.
  const std::shared_ptr<State> state = state_;
  return state->AdvanceTo(SaturatingAdd(state->clock.Now(), std::max(length, Duration::zero())));
}

std::size_t ManualTime::AdvanceTo(TimePoint time) {
  const std::shared_ptr<State> state = state_;
  return state->AdvanceTo(std::max(time, state->clock.Now()));
}

std::size_t ManualTime::AdvanceToNext() {
  const TimePoint next = NextDue();
  return next == TimePoint::max() ? 0 : AdvanceTo(next);
}

TimePoint ManualTime::NextDue() const {
  std::lock_guard lock(state_->mutex);
  return state_->queue.NextDue();
}

std::size_t ManualTime::timers() const {
  std::lock_guard lock(state_->mutex);
  return state_->queue.size();
}

bool ManualTime::WaitForTimer(TimePoint latest, Duration limit) const {
  std::unique_lock lock(state_->mutex);
  return state_->armed.wait_until(lock, SaturatingAdd(SteadyClock().Now(), limit), [&] { return state_->queue.NextDue() <= latest; });
}

bool ManualTime::WaitForTimers(std::size_t count, Duration limit) const {
  std::unique_lock lock(state_->mutex);
  return state_->armed.wait_until(lock, SaturatingAdd(SteadyClock().Now(), limit), [&] { return state_->queue.size() >= count; });
}

}  // namespace penstock::inline v0::testing
