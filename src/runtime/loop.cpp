#include "loop.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <future>
#include <thread>
#include <utility>

#include "grpc_quirks.h"
#include "core/milliseconds.h"
#include "penstock/runtime.h"

namespace penstock::inline v0 {

namespace detail {

namespace {

constinit thread_local bool on_loop_thread = false;
constinit std::atomic<bool> runtime_started{false};
constinit std::atomic<bool> forked_since_start{false};

constexpr Duration kLeastHeartbeat = std::chrono::milliseconds(50);
constexpr Duration kGreatestHeartbeat = std::chrono::milliseconds(900);

}  // namespace

// A call into a channel that can never connect, by which gRPC's callback threads see an event before they would fall
// asleep (facts: the client, trap 1). The channel also keeps the process's last channel from being destroyed on a callback
// thread (trap 2).
class Loop::Heartbeat final : public Timer {
 public:
  explicit Heartbeat(Loop& loop) : loop_(loop), stub_(LameChannel()) {
    const grpc::Slice slice("");
    request_ = grpc::ByteBuffer(&slice, 1);
    Beat();
  }

  void SetInterval(Duration interval) {
    interval_.store(interval.count(), std::memory_order_relaxed);  // relaxed: a plain value, read by the next beat
    loop_.Arm(*this, loop_.clock().Now());
  }

  void Fire() noexcept override {
    const Duration interval{interval_.load(std::memory_order_relaxed)};  // relaxed: see SetInterval()
    if (interval == Duration::zero()) return;
    Beat();
    loop_.Arm(*this, loop_.clock().Now() + interval);
  }

 private:
  void Beat() {
    // acquire: pairs with the release in the callback; the context of the beat before is free.
    if (beating_.exchange(true, std::memory_order_acquire)) return;
    context_.emplace();
    stub_.UnaryCall(&*context_, "/penstock/heartbeat", {}, &request_, &response_,
                    [this](const grpc::Status&) { beating_.store(false, std::memory_order_release); });
  }

  Loop& loop_;
  grpc::GenericStub stub_;
  std::optional<grpc::ClientContext> context_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer response_;
  std::atomic<bool> beating_{false};
  std::atomic<Duration::rep> interval_{0};
};

Loop& Loop::Get() {
  static Loop& loop = *new Loop;  // never destroyed: calls may outlive main() (G7)
  return loop;
}

bool Loop::OnThread() noexcept { return on_loop_thread; }

Loop::Loop() {
  if (uv_loop_init(&loop_) != 0 || uv_async_init(&loop_, &async_, [](uv_async_t* async) {
        static_cast<Loop*>(async->data)->OnWake();
      }) != 0 || uv_timer_init(&loop_, &timer_) != 0) {
    // Out of file descriptors or memory at the very start: there is no process to save.
    std::fprintf(stderr, "penstock: the event loop cannot be created\n");
    std::abort();
  }
  async_.data = this;
  timer_.data = this;
  heartbeat_ = std::make_unique<Heartbeat>(*this);
  pthread_atfork(nullptr, nullptr, [] { forked_since_start.store(true, std::memory_order_relaxed); });
  runtime_started.store(true, std::memory_order_relaxed);
  std::thread([this] { ThreadMain(); }).detach();
  heartbeat_->SetInterval(RuntimeSettings{}.heartbeat);
  // Registered after gRPC's own statics were made, so it runs before they are destroyed: from then on no timer fires into
  // a library that is going away.
  std::atexit([] {
    // A forked child has not the thread that may have held the mutex as it was made.
    if (OnThread() || forked_since_start.load(std::memory_order_relaxed)) return;
    Loop& loop = Get();
    std::lock_guard lock(loop.firing_mutex_);
    loop.silent_ = true;
  });
}

void Loop::ThreadMain() {
  on_loop_thread = true;
  pthread_setname_np(pthread_self(), "penstock-loop");
  // Signals belong to the threads of the program; uv_signal reads its own pipe.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  uv_run(&loop_, UV_RUN_DEFAULT);  // the async handle keeps it alive for ever
}

void Loop::Arm(Timer& timer, TimePoint due) noexcept {
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    timers_.Arm(timer, due);
    if (due < wake_at_) {
      wake_at_ = due;
      wake = true;
    }
  }
  // FireDue() looks again before it leaves.
  if (wake && !(OnThread() && firing_)) Wake();
}

bool Loop::Disarm(Timer& timer) noexcept {
  // The loop still comes back at that time, finds nothing due and sleeps on: cheaper than telling it.
  std::lock_guard lock(mutex_);
  return timers_.Disarm(timer);
}

void Loop::Run(std::function<void()> function) {
  {
    std::lock_guard lock(mutex_);
    runs_.push_back(std::move(function));
  }
  Wake();
}

void Loop::SetHeartbeat(Duration interval) { heartbeat_->SetInterval(interval); }

void Loop::Wake() noexcept { uv_async_send(&async_); }

void Loop::OnWake() {
  std::vector<std::function<void()>> runs;
  {
    std::lock_guard lock(mutex_);
    runs.swap(runs_);
  }
  for (const auto& run : runs) run();
  FireDue();
}

void Loop::FireDue() {
  std::lock_guard firing(firing_mutex_);
  if (silent_) return;
  firing_ = true;
  for (;;) {
    const TimePoint now = clock().Now();
    Timer* due = nullptr;
    TimePoint next;
    {
      std::lock_guard lock(mutex_);
      due = timers_.TakeDue(now);
      next = timers_.NextDue();
      wake_at_ = next;
    }
    if (due != nullptr) {
      due->Fire();
      continue;
    }
    firing_ = false;
    if (next == TimePoint::max()) {
      uv_timer_stop(&timer_);
      return;
    }
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(next - now);
    uv_update_time(&loop_);
    uv_timer_start(
        &timer_, [](uv_timer_t* timer) { static_cast<Loop*>(timer->data)->FireDue(); }, static_cast<std::uint64_t>(wait.count()), 0);
    return;
  }
}

std::optional<Error> EnsureRuntime() {
  // relaxed, both: written before or by the fork, which orders them for the child.
  if (forked_since_start.load(std::memory_order_relaxed) && runtime_started.load(std::memory_order_relaxed)) {
    return Error(
        "this process was forked after its parent had used penstock, whose threads did not come along: fork before the "
        "first use, or call exec after it");
  }
  Loop::Get();
  return std::nullopt;
}

struct SignalWatch::Handles {
  uv_signal_t terminate{};
  uv_signal_t interrupt{};
  std::function<void(int)> heard;
  struct sigaction before_terminate {};
  struct sigaction before_interrupt {};
  int closing = 2;
};

namespace {

// Runs the function on the loop thread and waits for it.
template <class Function>
void RunAndWait(Function function) {
  std::promise<void> done;
  Loop::Get().Run([&] {
    function();
    done.set_value();
  });
  done.get_future().wait();
}

}  // namespace

SignalWatch::SignalWatch(std::function<void(int)> heard) : handles_(new Handles) {
  handles_->heard = std::move(heard);
  handles_->terminate.data = handles_;
  handles_->interrupt.data = handles_;
  sigaction(SIGTERM, nullptr, &handles_->before_terminate);
  sigaction(SIGINT, nullptr, &handles_->before_interrupt);
  RunAndWait([this] {
    uv_loop_t* loop = Loop::Get().uv();
    const auto start = [&](uv_signal_t& handle, int number) {
      uv_signal_init(loop, &handle);
      uv_signal_start(
          &handle, [](uv_signal_t* signal, int heard_number) { static_cast<Handles*>(signal->data)->heard(heard_number); }, number);
    };
    start(handles_->terminate, SIGTERM);
    start(handles_->interrupt, SIGINT);
  });
}

SignalWatch::~SignalWatch() {
  RunAndWait([this] {
    // libuv leaves the default action behind; the program's own handlers come back, at once.
    uv_signal_stop(&handles_->terminate);
    sigaction(SIGTERM, &handles_->before_terminate, nullptr);
    uv_signal_stop(&handles_->interrupt);
    sigaction(SIGINT, &handles_->before_interrupt, nullptr);
  });
  Loop::Get().Run([handles = handles_] {
    const auto closed = [](uv_handle_t* handle) {
      auto* owner = static_cast<Handles*>(handle->data);
      if (--owner->closing == 0) delete owner;
    };
    uv_close(reinterpret_cast<uv_handle_t*>(&handles->terminate), closed);
    uv_close(reinterpret_cast<uv_handle_t*>(&handles->interrupt), closed);
  });
}

}  // namespace detail

const std::shared_ptr<TimeSource>& ProcessTime() {
  // Not owning: the loop is never destroyed, and neither is this pointer to it.
  static const std::shared_ptr<TimeSource>& time =
      *new std::shared_ptr<TimeSource>(std::shared_ptr<void>(), &detail::Loop::Get());
  return time;
}

Result<RuntimeSettings> ConfigureRuntime(const RuntimeSettings& settings) {
  if (settings.heartbeat != Duration::zero() &&
      (settings.heartbeat < detail::kLeastHeartbeat || settings.heartbeat > detail::kGreatestHeartbeat)) {
    return Error("heartbeat: " + detail::Milliseconds(settings.heartbeat) + "; expected 0 (off) or 50 to 900 ms");
  }
  if (auto error = detail::EnsureRuntime()) return *std::move(error);
  detail::Loop::Get().SetHeartbeat(settings.heartbeat);
  return settings;
}

}  // namespace penstock::inline v0
