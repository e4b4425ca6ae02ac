#include "penstock/runtime/callback_thread.h"

#include <grpc/support/time.h>
#include <grpcpp/alarm.h>

#include <utility>

#include "loop.h"

namespace penstock::inline v0 {

bool OnCallbackThread() noexcept { return detail::user_code_depth > 0 || detail::Loop::OnThread(); }

namespace detail {

namespace {

// An Alarm that is due already: gRPC runs its callback on a thread of its own, never inline.
struct Hop {
  grpc::Alarm alarm;
  std::function<void()> function;
};

}  // namespace

void PostToCallbackThread(std::function<void()> function) {
  auto* hop = new Hop{{}, std::move(function)};
  hop->alarm.Set(gpr_now(GPR_CLOCK_MONOTONIC), [hop](bool) {
    const std::function<void()> run = std::move(hop->function);
    delete hop;  // an alarm may be destroyed in its own callback: gRPC counts references to it
    run();
  });
}

}  // namespace detail
}  // namespace penstock::inline v0
