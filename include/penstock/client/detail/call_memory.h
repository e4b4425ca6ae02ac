#pragma once

// Memory for the calls by callback.
//
// A call's block is larger than what malloc keeps for a thread (1,032 bytes in glibc), so that every call would go to the
// arena and its lock. Calls mostly begin and end on the same few callback threads: each keeps the last few blocks for itself.

#include <cstddef>
#include <cstdint>

namespace penstock::inline v0::detail {

// False under AddressSanitizer: so that a use after the end is seen.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kKeepsCallMemory = false;
#else
inline constexpr bool kKeepsCallMemory = true;
#endif

void* TakeCallMemory(std::size_t size);
// `size` as it was taken with. On any thread.
void GiveCallMemory(void* memory, std::size_t size) noexcept;

}  // namespace penstock::inline v0::detail
