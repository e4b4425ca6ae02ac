#pragma once

// The barrier between gRPC and what a user wrote: admission before a handler, and no exception after it.

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>
#include <grpcpp/support/status.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>

#include "penstock/runtime/callback_thread.h"
#include "penstock/server/call.h"

namespace penstock::inline v0::detail {

// The gates before a handler (behaviour.md V7): a status when the call is refused. `call` may be null: a context that
// another server made, for which there are no gates.
std::optional<grpc::Status> Admit(ServerCall* call) noexcept;

// Within a catch block: what the call ends with. Logs and counts it, unless a grpc::Status was thrown.
grpc::Status StatusOfException(ServerCall* call, const char* where) noexcept;

// A status as it may be sent: its message cut (G2), its code one of gRPC's; remembered as the call's end.
grpc::Status Conclude(ServerCall* call, grpc::Status status) noexcept;

// Ends the scope of a call whose handler is done, or that was cancelled.
void EndScope(ServerCall* call, CallScope::Ending ending) noexcept;

// Runs a function that returns a status; what it throws becomes one. On a callback thread, within a UserCodeScope.
template <class Function>
grpc::Status RunGuarded(ServerCall* call, Function& function) noexcept {
  try {
    return function();
  } catch (...) {
    return StatusOfException(call, "the handler");
  }
}

// Ends a call at once; for a call that must not reach its reactor.
template <class GrpcReactor>
class FinishedReactor final : public GrpcReactor {
 public:
  explicit FinishedReactor(grpc::Status status) { this->Finish(std::move(status)); }
  void OnDone() override { delete this; }
};

// What a call ends with when there is no room for it; adds the pushback.
grpc::Status Overloaded(grpc::CallbackServerContext* context, const char* why) noexcept;

// A unary call whose handler finishes later. Three hold it: the Reply, the handler while it runs, and gRPC until OnDone.
//
// gRPC frees the request and the response once the call is finished, so that only who holds the Reply may finish it: an
// exception of a handler that has handed its Reply on only says with what.
class ReplyReactor final : public grpc::ServerUnaryReactor {
 public:
  explicit ReplyReactor(grpc::CallbackServerContext* context) noexcept
      : context_(context), call_(ServerCall::Of(context)) {}

  // By who holds the Reply; counts once, and the Reply must be let go of too. After Fail() the status is Fail()'s.
  void FinishWith(grpc::Status status) noexcept;

  // The handler threw. Whatever finishes the call finishes it with this, unless it is finished already; the calls that were
  // made on its behalf end now.
  void Fail(grpc::Status status) noexcept;
  bool cancelled() const noexcept { return context_->IsCancelled(); }

  // By the Reply and by the handler's frame, once each. The last of the two finishes a call that nobody finished.
  void Release() noexcept;

  // Runs the handler, which gets the Reply, and releases.
  template <class Function>
  void Run(Function&& function) noexcept {
    try {
      UserCodeScope in_user_code;
      function(this);
    } catch (...) {
      Fail(StatusOfException(call_, "the handler"));
    }
    Release();
  }

 private:
  void OnCancel() override { EndScope(call_, CallScope::Ending::kCancelled); }
  void OnDone() override { Release(); }

  grpc::CallbackServerContext* context_;
  ServerCall* call_;
  static constexpr std::uint32_t kFinished = 1u << 8;
  static constexpr std::uint32_t kFailed = 1u << 9;

  grpc::Status failure_;  // published by kFailed

  // The number of holders, whether it was finished, and whether the handler threw, in one word.
  std::atomic<std::uint32_t> state_{3};
};

}  // namespace penstock::inline v0::detail
