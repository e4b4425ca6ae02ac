#include "penstock/server/detail/reactor_base.h"

#include "penstock/server/reactors.h"
#include "server_core.h"

namespace penstock::inline v0 {

bool ServerUnaryReactor::StartSendInitialMetadata() {
  if (!Enter(kHeaders, kHeaders)) return false;
  grpc_reactor()->StartSendInitialMetadata();
  Leave();
  return true;
}

void ServerUnaryReactor::HandleHeadersSent(bool ok) noexcept {
  Guard("OnSendInitialMetadataDone", [&] { OnSendInitialMetadataDone(ok); });
}

namespace detail {

ReactorBase::ReactorBase() noexcept : context_(starting_context), call_(ServerCall::Of(starting_context)) {}

ReactorBase::~ReactorBase() = default;

void ReactorBase::Leave() noexcept {
  // Where there is no finish to make, the reactor may be gone already.
  if (word_.Leave()) GrpcFinish(std::move(finish_status_));
}

void ReactorBase::Settle() noexcept {
  EndScope(call_, CallScope::Ending::kFinished);
  finish_status_ = Conclude(call_, std::move(finish_status_));
  if (word_.Settle()) GrpcFinish(std::move(finish_status_));
}

bool ReactorBase::Finish(grpc::Status status) {
  if (!Claim()) return false;
  finish_status_ = std::move(status);
  Settle();
  return true;
}

CallHold ReactorBase::Hold() noexcept { return CallHold(Enter(0, 0) ? this : nullptr); }

void ReactorBase::Begin() noexcept {
  if (call_ != nullptr && !call_->core_.registry().Add(*this)) {
    // Too late for the registry: told here, as the others were. One that its constructor has finished has nothing to be told.
    if (Enter(0, 0)) ShutDownHeld();
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
