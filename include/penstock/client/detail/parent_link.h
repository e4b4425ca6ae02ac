#pragma once

// Cancels a call with the server call that it is made for, through that call's scope (behaviour.md L10).
//
// Threads: Attach() and Detach() by the call's driver.
// Ownership: a member of the call; attached, it holds a reference of it.

#include "penstock/client/call.h"
#include "penstock/client/detail/live_call.h"
#include "penstock/runtime/call_scope.h"

namespace penstock::inline v0::detail {

class ParentLink final : private CallScope::Listener {
 public:
  explicit ParentLink(LiveCall& call) noexcept : call_(call) {}

  // False: the parent has ended already. Of a call without a parent's scope, or detached from it, there is nothing to attach.
  bool Attach(const CallOptions& options) noexcept;

  // While the options that it was attached for still hold the scope. Never drops the last reference: the driver has one.
  void Detach() noexcept;

 private:
  void OnScopeEnded(CallScope::Ending ending) noexcept override;

  LiveCall& call_;
  CallScope* scope_ = nullptr;
};

}  // namespace penstock::inline v0::detail
