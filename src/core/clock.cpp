#include "penstock/core/clock.h"

#include <time.h>

namespace penstock::inline v0 {

namespace {

TimePoint Read(clockid_t id) noexcept {
  timespec now{};
  clock_gettime(id, &now);  // cannot fail for these two clocks
  return TimePoint(std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec));
}

class KernelClock final : public Clock {
 public:
  TimePoint Now() const noexcept override { return Read(CLOCK_MONOTONIC); }
  TimePoint CoarseNow() const noexcept override { return Read(CLOCK_MONOTONIC_COARSE); }
};

}  // namespace

const Clock& SteadyClock() noexcept {
  // Never destroyed: clients that outlive main() still read it (G7).
  static const KernelClock& clock = *new KernelClock;
  return clock;
}

}  // namespace penstock::inline v0
