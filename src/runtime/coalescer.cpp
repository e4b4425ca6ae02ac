#include "penstock/runtime/detail/coalescer.h"

#include <utility>

#include "penstock/runtime/callback_thread.h"

namespace penstock::inline v0::detail {

Coalescer& Coalescer::Get() noexcept {
  static auto& coalescer = *new Coalescer(PostToCallbackThread);  // never destroyed: calls may outlive main() (G7)
  return coalescer;
}

bool Coalescer::Pays() noexcept {
  // relaxed: a few more or less do not matter.
  if (at_once_.load(std::memory_order_relaxed) <= 0) return true;
  at_once_.fetch_sub(1, std::memory_order_relaxed);
  return false;
}

void Coalescer::Add(Coalesced& waiting) noexcept {
  std::lock_guard lock(mutex_);
  waiting.next_ = nullptr;
  if (first_ != nullptr) {
    last_->next_ = &waiting;
  } else {
    first_ = &waiting;
    post_([this] { Start(); });
  }
  last_ = &waiting;
}

void Coalescer::Start() noexcept {
  Coalesced* next = nullptr;
  {
    std::lock_guard lock(mutex_);
    next = std::exchange(first_, nullptr);
  }
  std::size_t messages = 0;
  while (next != nullptr) {
    Coalesced& waiting = *next;
    next = waiting.next_;  // Read first: it may wait again, or be gone, as soon as it has started.
    messages += waiting.StartCoalesced();
  }
  if (messages < kWorthwhile) at_once_.store(kAtOnce, std::memory_order_relaxed);  // relaxed: see Pays()
}

}  // namespace penstock::inline v0::detail
