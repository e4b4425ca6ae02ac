#include "penstock/core/backoff.h"

#include <fmt/chrono.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>

namespace penstock::inline v0 {

namespace {
__extension__ typedef unsigned __int128 Product;  // NOLINT: `using` takes no __extension__ in GCC 12
}  // namespace

Duration Backoff::Bound(std::uint64_t attempt) const noexcept {
  const Duration first = std::clamp(base, Duration::zero(), std::max(max, Duration::zero()));
  const std::uint64_t doublings = attempt == 0 ? 0 : attempt - 1;
  // A Duration has 63 bits: that many doublings pass any bound (and shifting by 64 or more is undefined).
  if (doublings >= 63 || first.count() > (max.count() >> doublings)) return first == Duration::zero() ? first : max;
  return Duration(first.count() << doublings);
}

Duration Backoff::Draw(std::uint64_t attempt, std::uint64_t random_bits) const noexcept {
  // The high half of the product maps 2^64 values evenly onto the lengths from 0 to the bound: each gets as many, give
  // or take one (Lemire, "Fast Random Integer Generation in an Interval", 2019, without the rejection: the bias is at most
  // one part in 2^64 divided by the bound, and spread over the whole range).
  const std::uint64_t lengths = static_cast<std::uint64_t>(Bound(attempt).count()) + 1;
  const auto product = static_cast<Product>(random_bits) * lengths;
  return Duration(static_cast<std::int64_t>(product >> 64));
}

void CheckSettings(const Backoff& settings, std::string_view prefix, std::vector<std::string>& problems) {
  if (settings.base <= Duration::zero()) {
    problems.push_back(fmt::format("{}base is {}: it must be above 0.", prefix, settings.base));
  }
  if (settings.max <= Duration::zero() || settings.max < settings.base) {
    problems.push_back(fmt::format("{}max is {}: it must be above 0 and at least {}base, which is {}.", prefix, settings.max,
                                   prefix, settings.base));
  }
}

std::uint64_t RandomBits() noexcept {
  // SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
  constinit static thread_local std::uint64_t state = 0;
  if (state == 0) [[unlikely]] {
    if (getrandom(&state, sizeof state, GRND_NONBLOCK) != static_cast<ssize_t>(sizeof state)) {
      // Before the kernel's pool is ready, early in the boot: the time and where this thread's memory lies must do.
      state = static_cast<std::uint64_t>(SteadyClock().Now().time_since_epoch().count()) * 0x9e3779b97f4a7c15u ^
              reinterpret_cast<std::uintptr_t>(&state) ^ static_cast<std::uint64_t>(getpid()) << 32;
    }
    state |= 1;  // any value but the mark for "not yet seeded"
  }
  state += 0x9e3779b97f4a7c15u;
  std::uint64_t bits = state;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return bits ^ (bits >> 31);
}

}  // namespace penstock::inline v0
