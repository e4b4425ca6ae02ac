#include "penstock/server/detail/reactor_base.h"

#include "penstock/server/reactors.h"
#include "server_core.h"

namespace penstock::inline v0 {

bool ServerUnaryReactor::StartSendInitialMetadata() {
  if (!Enter(kHeaders, kHeaders)) return false;
  GrpcSendInitialMetadata();
  Leave();
  return true;
}

namespace detail {

ReactorBase::ReactorBase() noexcept : context_(starting_context), call_(ServerCall::Of(starting_context)) {}

ReactorBase::~ReactorBase() = default;

bool ReactorBase::Enter(std::uint32_t flag, std::uint32_t unless) noexcept {
  std::uint32_t state = state_.load(std::memory_order_acquire);
  do {
    if ((state & (kClaimed | unless)) != 0) return false;
    // acq_rel: after a Leave() or a Clear() of another thread, before whoever finishes the call.
  } while (!state_.compare_exchange_weak(state, (state | flag) + kHold, std::memory_order_acq_rel, std::memory_order_acquire));
  return true;
}

void ReactorBase::Leave() noexcept {
  std::uint32_t state = state_.fetch_sub(kHold, std::memory_order_acq_rel) - kHold;
  // Nothing of the reactor may be touched from here on unless a finish is left to be made: without one, another thread may
  // finish the call and gRPC delete the reactor.
  while ((state & kReady) != 0 && state < kHold && (state & kFinished) == 0) {
    if (state_.compare_exchange_weak(state, state | kFinished, std::memory_order_acq_rel, std::memory_order_acquire)) {
      GrpcFinish(std::move(finish_status_));
      return;
    }
  }
}

bool ReactorBase::Claim(std::uint32_t unless) noexcept {
  std::uint32_t state = state_.load(std::memory_order_acquire);
  do {
    if ((state & (kClaimed | unless)) != 0) return false;
    // The claimer takes a hold too, which Settle() lets go of.
  } while (!state_.compare_exchange_weak(state, (state | kClaimed) + kHold, std::memory_order_acq_rel, std::memory_order_acquire));
  return true;
}

void ReactorBase::Settle() noexcept {
  EndScope(call_, CallScope::Ending::kFinished);
  finish_status_ = Conclude(call_, std::move(finish_status_));
  state_.fetch_or(kReady, std::memory_order_acq_rel);  // release: publishes the status to whoever leaves last
  Leave();
}

bool ReactorBase::Finish(grpc::Status status) {
  if (!Claim()) return false;
  finish_status_ = std::move(status);
  Settle();
  return true;
}

CallHold ReactorBase::Hold() noexcept { return CallHold(Enter(0, 0) ? this : nullptr); }

void ReactorBase::Begin() noexcept {
  const bool leaving = call_ != nullptr && !call_->core_.registry().Add(*this);
  if (leaving && is_stream()) {
    Finish(StoppingStatus());
    return;
  }
  if (is_stream() && Enter(kHeaders, kHeaders)) {
    GrpcSendInitialMetadata();
    Leave();
  }
}

void ReactorBase::HandleCancel() noexcept {
  EndScope(call_, CallScope::Ending::kCancelled);
  // gRPC lets OnDone wait for this method, whoever finishes the call meanwhile.
  Guard("OnCancelled", [&] { OnCancelled(); });
  if (is_stream()) Finish({grpc::StatusCode::CANCELLED, "cancelled"});
}

void ReactorBase::ShutDownHeld() noexcept {
  Guard("OnShutdown", [&] { OnShutdown(); });
  if (is_stream()) Finish(StoppingStatus());
  Leave();
}

void ReactorBase::HandleDone() noexcept {
  if (registered_) call_->core_.registry().Remove(*this);
  Guard("OnDone", [&] { OnDone(); });
  delete this;
}

}  // namespace detail
}  // namespace penstock::inline v0
