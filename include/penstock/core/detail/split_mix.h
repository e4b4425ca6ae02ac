#pragma once

// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014): numbers as if by chance.
//
// The n-th number needs no other: it follows from a state that grows by kSplitMixStep.
//
//     state += kSplitMixStep; return SplitMix(state);
//
// Threads: a pure function. Ownership: none. Time: none. Errors: none.

#include <cstdint>

namespace penstock::inline v0::detail {

inline constexpr std::uint64_t kSplitMixStep = 0x9e3779b97f4a7c15u;

constexpr std::uint64_t SplitMix(std::uint64_t state) noexcept {
  state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
  state = (state ^ (state >> 27)) * 0x94d049bb133111ebu;
  return state ^ (state >> 31);
}

}  // namespace penstock::inline v0::detail
