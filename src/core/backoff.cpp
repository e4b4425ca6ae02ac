#include "penstock/core/backoff.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>

#include "core/milliseconds.h"
#include "penstock/core/detail/split_mix.h"

namespace penstock::inline v0 {

namespace {
__extension__ typedef unsigned __int128 Product;  // NOLINT: `using` takes no __extension__ in GCC 12

// Of the calling thread; 0: not yet seeded.
constinit thread_local std::uint64_t random_state = 0;

[[gnu::noinline, gnu::cold]] void Seed() noexcept {
  // A forked child has one thread, with a copy of its parent's state, of which it must not draw. Where no handler can be had
  // it draws as its parent does: no harm but to the jitter.
  static const bool reseeds = pthread_atfork(nullptr, nullptr, [] { random_state = 0; }) == 0;
  (void)reseeds;
  if (getrandom(&random_state, sizeof random_state, GRND_NONBLOCK) != static_cast<ssize_t>(sizeof random_state)) {
    // Before the kernel's pool is ready, early in the boot: the time and where this thread's memory lies must do.
    random_state = static_cast<std::uint64_t>(SteadyClock().Now().time_since_epoch().count()) * detail::kSplitMixStep ^
                   reinterpret_cast<std::uintptr_t>(&random_state) ^ static_cast<std::uint64_t>(getpid()) << 32;
  }
  random_state |= 1;  // any value but the mark for "not yet seeded"
}
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
    problems.push_back(fmt::format("{}base: {}; expected more than 0", prefix, detail::Milliseconds(settings.base)));
  }
  if (settings.max <= Duration::zero() || settings.max < settings.base) {
    problems.push_back(fmt::format("{}max: {}; expected more than 0, and at least {}base, which is {}", prefix,
                                   detail::Milliseconds(settings.max), prefix, detail::Milliseconds(settings.base)));
  }
}

std::uint64_t RandomBits() noexcept {
  if (random_state == 0) [[unlikely]] Seed();
  return detail::SplitMix(random_state += detail::kSplitMixStep);
}

}  // namespace penstock::inline v0
