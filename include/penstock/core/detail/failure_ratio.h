#pragma once

// A share of failures as a fraction, so that "10 of 100 is a tenth" holds whatever 0.1 is in binary.

#include <cmath>
#include <cstdint>

namespace penstock::inline v0::detail {

class FailureRatio {
 public:
  explicit FailureRatio(double ratio) noexcept : billionths_(static_cast<std::uint64_t>(std::llround(ratio * 1e9))) {}

  // Whether `failures` of `results` (at most 2^32) are at least the ratio.
  bool IsReached(std::uint64_t failures, std::uint64_t results) const noexcept {
    return failures * kOne >= billionths_ * results;
  }

  // The fewest failures of `results` that reach the ratio.
  std::uint64_t FailuresIn(std::uint64_t results) const noexcept { return (billionths_ * results + kOne - 1) / kOne; }

 private:
  static constexpr std::uint64_t kOne = 1'000'000'000;
  std::uint64_t billionths_;
};

}  // namespace penstock::inline v0::detail
