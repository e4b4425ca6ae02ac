#include "penstock/core/detail/thread_slot.h"

#include <atomic>
#include <bit>

namespace penstock::inline v0::detail {

namespace {

// A bit for each slot that a thread has. Constant-initialised and trivially destroyed: threads start before main() and
// end after static destructors have run.
constinit std::atomic<std::uint64_t> taken{0};
constinit std::atomic<std::uint32_t> used{0};

std::uint32_t TakeSlot() noexcept {
  std::uint64_t before = taken.load(std::memory_order_relaxed);
  for (;;) {
    const auto slot = static_cast<std::uint32_t>(std::countr_one(before));
    if (slot == kOwnedSlots) return kSharedSlot;
    // Acquire: pairs with the release in GiveSlot(); the new owner of a line continues from the last owner's counts.
    if (!taken.compare_exchange_weak(before, before | std::uint64_t{1} << slot, std::memory_order_acquire,
                                     std::memory_order_relaxed)) {
      continue;
    }
    std::uint32_t seen = used.load(std::memory_order_relaxed);
    // Relaxed: whoever must see this thread's counts is ordered after it by other means, and so sees this store as well.
    while (seen <= slot && !used.compare_exchange_weak(seen, slot + 1, std::memory_order_relaxed, std::memory_order_relaxed)) {
    }
    return slot;
  }
}

void GiveSlot(std::uint32_t slot) noexcept {
  if (slot == kSharedSlot) return;
  // Release: pairs with the acquire in TakeSlot().
  taken.fetch_and(~(std::uint64_t{1} << slot), std::memory_order_release);
}

// Gives the slot back at the thread's exit. The C library keeps a shared library loaded while such destructors are to
// run, so that dlclose() is safe.
struct SlotHolder {
  SlotHolder() noexcept { thread_slot = TakeSlot(); }
  ~SlotHolder() {
    // First the mark, then the slot: destructors that run after this one count on the shared line.
    const std::uint32_t slot = thread_slot;
    thread_slot = kSharedSlot;
    GiveSlot(slot);
  }
};

}  // namespace

constinit thread_local std::uint32_t thread_slot [[gnu::tls_model("initial-exec")]] = kNoThreadSlot;

std::uint32_t AssignThreadSlot() noexcept {
  if (thread_slot == kNoThreadSlot) {
    static thread_local SlotHolder holder;
    (void)holder;
  }
  return thread_slot;
}

std::uint32_t UsedThreadSlots() noexcept { return used.load(std::memory_order_relaxed); }

}  // namespace penstock::inline v0::detail
