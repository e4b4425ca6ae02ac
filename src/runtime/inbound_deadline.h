#pragma once

// The deadline of a call that came in (G3).
//
// ServerContext::deadline() counts nanoseconds, and a grpc-timeout of a few hundred years (legal on the wire, up to
// 99999999H) wraps around to anywhere: mostly to a time long past, which would end the call at once. raw_deadline() has
// whole seconds and is converted here without overflow.
//
//     std::optional<TimePoint> deadline = InboundDeadline(context->raw_deadline(), clock.Now());
//
// Threads: pure but for reading gRPC's clocks.
// Ownership: values.
// Time: on penstock's clock (std::chrono::steady_clock).
// Errors: what is too far for the clock is no deadline.

#include <grpc/support/time.h>

#include <chrono>
#include <optional>

#include "penstock/core/clock.h"

namespace penstock::inline v0::detail {

// Later than this from now on is no deadline: it is beyond anything that is meant, and well within the clock's range.
inline constexpr Duration kFarthestDeadline = std::chrono::hours(24 * 365 * 100);

// What is left of a deadline, as gRPC's raw_deadline() tells it, at the time `now` of gRPC's monotonic clock. Negative
// when it has passed; nothing when there is none, or none that the clock can tell.
std::optional<Duration> RemainingOf(gpr_timespec raw, gpr_timespec now);

// The same as a time on the clock that says `now`. Reads gRPC's monotonic clock.
std::optional<TimePoint> InboundDeadline(gpr_timespec raw, TimePoint now);

}  // namespace penstock::inline v0::detail
