#pragma once

// Memory for the calls by callback.
//
// A call's block is larger than what malloc keeps for a thread (1,032 bytes in glibc), so that every call would go to the
// arena and its lock. Blocks are kept by threads instead, by size (kept.h).

#include <cstddef>

namespace penstock::inline v0::detail {

void* TakeCallMemory(std::size_t size);
// `size` as it was taken with. On any thread.
void GiveCallMemory(void* memory, std::size_t size) noexcept;

}  // namespace penstock::inline v0::detail
