#include "bench/histogram.h"

#include <bit>

namespace bench {

std::size_t Histogram::Index(std::uint64_t value) noexcept {
  if (value < kSteps) return value;
  const int exponent = std::bit_width(value) - 6;  // value >> exponent lies in [32, 64)
  return static_cast<std::size_t>(exponent + 1) * kSteps + ((value >> exponent) - kSteps);
}

void Histogram::Merge(const Histogram& other) noexcept {
  for (std::size_t i = 0; i < buckets_.size(); ++i) buckets_[i] += other.buckets_[i];
}

double Histogram::Quantile(double q) const noexcept {
  std::uint64_t total = 0;
  for (const auto count : buckets_) total += count;
  if (total == 0) return 0;
  const auto wanted = static_cast<std::uint64_t>(q * static_cast<double>(total - 1)) + 1;
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    seen += buckets_[i];
    if (seen < wanted) continue;
    if (i < kSteps) return static_cast<double>(i);
    const auto exponent = i / kSteps - 1;
    return (static_cast<double>(i % kSteps + kSteps) + 0.5) * static_cast<double>(std::uint64_t{1} << exponent);
  }
  return 0;
}

}  // namespace bench
