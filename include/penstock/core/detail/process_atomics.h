#pragma once

// The atomics of production: those of the standard library, and a counter line for each thread.

#include <atomic>
#include <cstdint>

#include "penstock/core/detail/thread_slot.h"

namespace penstock::inline v0::detail {

struct ProcessAtomics {
  template <class T>
  using Atomic = std::atomic<T>;

  // Counter lines: one for each slot, the last one shared.
  static constexpr std::uint32_t kLines = kSlotLines;

  // The calling thread's line; more than the last one if it has none yet.
  static std::uint32_t ThreadLine() noexcept { return thread_slot; }
  static std::uint32_t AssignThreadLine() noexcept { return AssignThreadSlot(); }

  // How many lines, from the first, may have been written; the last one aside.
  static std::uint32_t UsedLines() noexcept { return UsedThreadSlots(); }
};

}  // namespace penstock::inline v0::detail
