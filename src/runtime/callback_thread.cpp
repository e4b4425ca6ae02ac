#include "penstock/runtime/callback_thread.h"

#include <grpc/support/time.h>
#include <grpcpp/alarm.h>

#include <utility>

#include "loop.h"

namespace penstock::inline v0 {

bool OnCallbackThread() noexcept { return detail::user_code_depth > 0 || detail::Loop::OnThread(); }

namespace detail {

namespace {

// An Alarm that is due already: gRPC runs its callback on a thread of its executor's, never inline. (1.51 has at most two of
// those for each core, and adds one only where more than two functions wait for another.)
struct Hop {
  grpc::Alarm alarm;
  std::function<void()> function;
};

}  // namespace

void PostToCallbackThread(std::function<void()> function) {
  auto* hop = new Hop{{}, std::move(function)};
  // Long past: gRPC counts an alarm's time in milliseconds, upwards, so that one set for now waits for the next.
  hop->alarm.Set(gpr_time_0(GPR_CLOCK_MONOTONIC), [hop](bool) {
    const std::function<void()> run = std::move(hop->function);
    delete hop;  // an alarm may be destroyed in its own callback: gRPC counts references to it
    run();
  });
}

}  // namespace detail
}  // namespace penstock::inline v0
