#pragma once

// The one loop thread of the process: timers by the real clock, signals while a server's Run() asks for them, and the
// heartbeat that keeps gRPC's callback threads awake. No user code runs on it.
//
// It starts with the first use, is never destroyed, and falls silent when exit() begins.

#include <uv.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "penstock/core/clock.h"
#include "penstock/core/result.h"
#include "penstock/core/timer_queue.h"
#include "penstock/runtime/time_source.h"

namespace penstock::inline v0::detail {

class Loop final : public TimeSource {
 public:
  // Starts the thread on the first call.
  static Loop& Get();

  // Whether this is the loop's thread.
  static bool OnThread() noexcept;

  const Clock& clock() const noexcept override { return SteadyClock(); }
  void Arm(Timer& timer, TimePoint due) noexcept override;
  bool Disarm(Timer& timer) noexcept override;

  // For handles of the runtime itself; on the loop thread only.
  uv_loop_t* uv() noexcept { return &loop_; }

  // Runs the function on the loop thread, soon. It must neither block nor throw.
  void Run(std::function<void()> function);

  // 0 turns the heartbeat off.
  void SetHeartbeat(Duration interval);

 private:
  class Heartbeat;

  Loop();

  void ThreadMain();
  void OnWake();
  void FireDue();
  void Wake() noexcept;

  uv_loop_t loop_{};
  uv_async_t async_{};
  uv_timer_t timer_{};
  std::mutex mutex_;
  // Held while timers fire, so that exit() can wait for the last one.
  std::mutex firing_mutex_;
  bool silent_ = false;                      // under firing_mutex_
  bool firing_ = false;                      // the loop thread's: it will look for timers again
  TimerQueue timers_;                        // under mutex_
  TimePoint wake_at_ = TimePoint::max();     // under mutex_: when the loop comes back by itself
  std::vector<std::function<void()>> runs_;  // under mutex_
  std::unique_ptr<Heartbeat> heartbeat_;
};

// Starts what the process needs (loop thread, a channel that lives for ever). An error when this process was forked from
// one that had started it: its threads are not here (G8).
std::optional<Error> EnsureRuntime();

// Hears SIGTERM and SIGINT from construction to destruction, then puts the handlers back that were there before. One at a
// time in a process. The function runs on the loop thread and must neither block nor run user code. Neither constructed
// nor destroyed on the loop thread.
class SignalWatch {
 public:
  explicit SignalWatch(std::function<void(int signal)> heard);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

 private:
  struct Handles;
  Handles* handles_;
};

}  // namespace penstock::inline v0::detail
