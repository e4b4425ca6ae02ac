#pragma once

// A small number for each running thread, so that each can have a counter of its own in an array.
//
// Threads: ThreadSlot() is each thread's own; the numbers come from one lock-free pool for the process, are taken at a
// thread's first use and given back at its exit.
// Ownership: of slot s < kOwnedSlots by the one thread that has it: it may count there with a load and a store. The slot
// kSharedSlot belongs to all other threads (the 65th and further ones, and threads past their thread-local destructors):
// they count there with an atomic addition.
// Time: none.
// Errors: none.

#include <cstdint>

namespace penstock::inline v0::detail {

inline constexpr std::uint32_t kOwnedSlots = 64;
inline constexpr std::uint32_t kSharedSlot = kOwnedSlots;
inline constexpr std::uint32_t kSlotLines = kOwnedSlots + 1;

// What it is before a thread's first AssignThreadSlot().
inline constexpr std::uint32_t kNoThreadSlot = 0xffffffff;

// Of the initial-exec model: a load from a fixed offset to the thread pointer also where penstock is a shared library, where
// the default model would call a function. The four bytes come from the space that the loader keeps for such variables, so
// dlopen() works. constinit: no wrapper function stands before each use.
extern constinit thread_local std::uint32_t thread_slot [[gnu::tls_model("initial-exec")]];

// Takes a slot for the calling thread if it has none; returns its slot: at most kSharedSlot.
std::uint32_t AssignThreadSlot() noexcept;

// All slots below this one have been used, or are about to be; kSharedSlot aside.
std::uint32_t UsedThreadSlots() noexcept;

}  // namespace penstock::inline v0::detail
