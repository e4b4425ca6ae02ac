#include "reactor_registry.h"

#include <vector>

namespace penstock::inline v0::detail {

bool ReactorRegistry::Add(ReactorBase& reactor) noexcept {
  std::lock_guard lock(mutex_);
  if (shut_down_) return false;
  reactor.next_ = first_;
  if (first_ != nullptr) first_->previous_ = &reactor;
  first_ = &reactor;
  reactor.registered_ = true;
  ++size_;
  return true;
}

void ReactorRegistry::Remove(ReactorBase& reactor) noexcept {
  std::lock_guard lock(mutex_);
  (reactor.previous_ != nullptr ? reactor.previous_->next_ : first_) = reactor.next_;
  if (reactor.next_ != nullptr) reactor.next_->previous_ = reactor.previous_;
  --size_;
}

void ReactorRegistry::ShutDownAll() noexcept {
  std::vector<ReactorBase*> held;
  {
    std::lock_guard lock(mutex_);
    if (shut_down_) return;
    shut_down_ = true;
    held.reserve(size_);
    for (ReactorBase* reactor = first_; reactor != nullptr; reactor = reactor->next_) {
      // With the hold it can neither end nor be deleted. One that is ending already has nothing to be told.
      if (reactor->Enter(0, 0)) held.push_back(reactor);
    }
  }
  for (ReactorBase* reactor : held) reactor->ShutDownHeld();
}

}  // namespace penstock::inline v0::detail
