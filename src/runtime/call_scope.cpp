#include "penstock/runtime/call_scope.h"

#include <utility>

#include "runtime/metadata.h"

namespace penstock::inline v0 {

namespace {

// G1: an illegal one would abort the process.
CallScope::Metadata Legal(CallScope::Metadata relayed) {
  std::erase_if(relayed, [](const auto& header) { return detail::MetadataProblem(header.first, header.second).has_value(); });
  return relayed;
}

}  // namespace

CallScope::CallScope(TimePoint deadline, Metadata relayed) : deadline_(deadline), relayed_(Legal(std::move(relayed))) {}

std::shared_ptr<CallScope> CallScope::Create(TimePoint deadline, Metadata relayed) {
  return std::make_shared<CallScope>(deadline, std::move(relayed));
}

bool CallScope::ended() const noexcept {
  std::lock_guard lock(mutex_);
  return ended_;
}

bool CallScope::Attach(Listener& listener) noexcept {
  std::lock_guard lock(mutex_);
  if (ended_) return false;
  listener.previous_ = nullptr;
  listener.next_ = first_;
  if (first_ != nullptr) first_->previous_ = &listener;
  first_ = &listener;
  listener.attached_ = true;
  return true;
}

bool CallScope::Detach(Listener& listener) noexcept {
  std::lock_guard lock(mutex_);
  if (!listener.attached_) return false;
  Unlink(listener);
  return true;
}

void CallScope::End(Ending ending) noexcept {
  {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    ended_ = true;
  }
  // One at a time, so that a listener that detaches another meanwhile is heard.
  for (;;) {
    Listener* listener = nullptr;
    {
      std::lock_guard lock(mutex_);
      listener = first_;
      if (listener == nullptr) return;
      Unlink(*listener);
    }
    listener->OnScopeEnded(ending);
  }
}

void CallScope::Unlink(Listener& listener) noexcept {
  if (listener.previous_ != nullptr) {
    listener.previous_->next_ = listener.next_;
  } else {
    first_ = listener.next_;
  }
  if (listener.next_ != nullptr) listener.next_->previous_ = listener.previous_;
  listener.attached_ = false;
}

}  // namespace penstock::inline v0
