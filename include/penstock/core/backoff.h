#pragma once

// How long to wait before trying again.
//
// Callers that fail together and wait equally long come back together, and fail together again. So each wait is drawn at
// random, from nothing to a bound that doubles with each attempt ("full jitter": Brooker, "Exponential Backoff And
// Jitter", AWS Architecture Blog, 2015).
//
//     const Backoff backoff{.base = 100ms, .max = 5s};
//     Duration wait = WithRetryAfter(backoff.Draw(attempt, RandomBits()), retry_after);
//     if (!EndsBefore(now, wait, deadline)) return Fail(last_status);
//     timers.Arm(timer, now + wait);
//
// Threads: plain values and functions; every one may be called from any thread.
// Ownership: none.
// Time: lengths only; the caller says what time it is.
// Errors: none; CheckSettings() says what is wrong with a backoff that makes no sense.

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/core/clock.h"

namespace penstock::inline v0 {

struct Backoff {
  // The longest wait after the first attempt; above 0.
  Duration base = std::chrono::milliseconds(100);

  // The longest wait after any attempt; at least `base`.
  Duration max = std::chrono::seconds(5);

  // The longest wait after attempt `attempt` (the first is 1): base * 2^(attempt - 1), at most `max`. No overflow for any
  // attempt; attempt 0 is taken as 1.
  Duration Bound(std::uint64_t attempt) const noexcept;

  // A wait between zero and Bound(attempt), both included, each length as likely as any other if all 64 `random_bits` are.
  Duration Draw(std::uint64_t attempt, std::uint64_t random_bits) const noexcept;
};

// Appends a sentence for each setting that makes no sense, its name preceded by `prefix`: "backoff_" for backoff_base.
void CheckSettings(const Backoff& settings, std::string_view prefix, std::vector<std::string>& problems);

// The larger of the wait that was drawn and what the server asked for.
constexpr Duration WithRetryAfter(Duration drawn, Duration retry_after) noexcept {
  return drawn < retry_after ? retry_after : drawn;
}

// Whether a wait that starts `now` ends before the deadline; one that ends at it is not worth starting. Never overflows.
constexpr bool EndsBefore(TimePoint now, Duration wait, TimePoint deadline) noexcept {
  return SaturatingAdd(now, wait) < deadline;
}

// 64 random bits from a generator of the calling thread's own, seeded from the kernel, so that no two threads, processes (forked
// ones too) or machines draw the same. Not for secrets. Never blocks, never fails.
std::uint64_t RandomBits() noexcept;

}  // namespace penstock::inline v0
