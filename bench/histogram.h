#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace bench {

// Latencies in buckets at most 3% wide: no allocation while measuring.
class Histogram {
 public:
  void Add(std::uint64_t nanoseconds) noexcept { ++buckets_[Index(nanoseconds)]; }
  void Merge(const Histogram& other) noexcept;
  // In nanoseconds; 0 where nothing was added.
  double Quantile(double q) const noexcept;

 private:
  static constexpr int kSteps = 32;
  static std::size_t Index(std::uint64_t value) noexcept;
  std::array<std::uint32_t, 64 * kSteps> buckets_{};
};

}  // namespace bench
