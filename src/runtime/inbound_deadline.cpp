#include "runtime/inbound_deadline.h"

#include <cstdint>
#include <limits>

namespace penstock::inline v0::detail {
namespace {

constexpr std::int64_t kNanosecondsInSecond = 1'000'000'000;
constexpr std::int64_t kFarthestSeconds = kFarthestDeadline.count() / kNanosecondsInSecond;
// A deadline that has passed by more than this is held here, so that nothing overflows that subtracts it.
constexpr std::int64_t kLongestPast = -kFarthestSeconds;

}  // namespace

std::optional<Duration> RemainingOf(gpr_timespec raw, gpr_timespec now) {
  // gRPC's no deadline, and its "always".
  if (raw.tv_sec == std::numeric_limits<std::int64_t>::max()) return std::nullopt;
  if (raw.tv_sec == std::numeric_limits<std::int64_t>::min()) return std::chrono::seconds(kLongestPast);
  raw = gpr_convert_clock_type(raw, now.clock_type);
  const gpr_timespec left = gpr_time_sub(raw, now);
  if (left.tv_sec >= kFarthestSeconds) return std::nullopt;
  if (left.tv_sec <= kLongestPast) return std::chrono::seconds(kLongestPast);
  return Duration(left.tv_sec * kNanosecondsInSecond + left.tv_nsec);
}

std::optional<TimePoint> InboundDeadline(gpr_timespec raw, TimePoint now) {
  const std::optional<Duration> remaining = RemainingOf(raw, gpr_now(GPR_CLOCK_MONOTONIC));
  if (!remaining) return std::nullopt;
  return SaturatingAdd(now, *remaining);
}

}  // namespace penstock::inline v0::detail
