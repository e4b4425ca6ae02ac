#pragma once

// What a subscription tells its user between two of its streams.
//
//     .on_gap = [](const Gap& gap) { return gap.lasted > 1min ? GapDecision::kEnd : GapDecision::kGoOn; }
//
// Threads: plain values.
// Ownership: `why` lives until on_gap returns.
// Time: lengths on the clock of the client.
// Errors: none.

#include <grpcpp/support/status.h>

#include <cstdint>

#include "penstock/core/clock.h"

namespace penstock::inline v0 {

// A time in which a subscription delivers nothing because there is no stream that does.
struct Gap {
  // Since the stream that had delivered (or been open for backoff_max) ended; since the beginning, if there was none.
  Duration lasted;
  // Streams that were opened since, or tried, and ended before they had delivered. 0: the gap begins.
  std::uint32_t attempts;
  // How the last stream ended.
  const grpc::Status& why;
};

enum class GapDecision : std::uint8_t {
  kGoOn,  // the next stream is opened
  kEnd,   // the subscription ends with the last stream's status
};

}  // namespace penstock::inline v0
