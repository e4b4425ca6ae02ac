#include "penstock/client/detail/parent_link.h"

namespace penstock::inline v0::detail {

bool ParentLink::Attach(const CallOptions& options) noexcept {
  scope_ = options.detached ? nullptr : options.parent.scope().get();
  if (scope_ == nullptr) return true;
  call_.AddReference();
  if (scope_->Attach(*this)) return true;
  scope_ = nullptr;
  call_.Release();
  return false;
}

void ParentLink::Detach() noexcept {
  if (scope_ != nullptr && scope_->Detach(*this)) call_.Release();
  scope_ = nullptr;
}

void ParentLink::OnScopeEnded(CallScope::Ending /*ending*/) noexcept {
  LiveCall& call = call_;
  call.Cancel(CancelReason::kParent);
  call.Release();
}

}  // namespace penstock::inline v0::detail
