#pragma once

// What C10 keeps with each attempt: when it began, in the count of broken connections.

#include <cstdint>

namespace penstock::inline v0::detail {

struct BrokenAttempt {
  std::uint64_t began = 0;
};

}  // namespace penstock::inline v0::detail
