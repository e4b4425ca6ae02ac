#pragma once

// The ends of an attempt that the client decides by itself, without asking Classify (behaviour.md C2, C3, C7), and the guard
// around Classify (C6, C11). No I/O: facts in, verdict out.

#include <optional>
#include <string>

#include "penstock/client/classify.h"
#include "penstock/client/detail/live_call.h"

namespace penstock::inline v0::detail {

struct AttemptFacts {
  grpc::StatusCode code = grpc::StatusCode::OK;  // One of gRPC's.
  CancelReason cancelled = CancelReason::kNone;
  // The call's own deadline has passed, inherited or not.
  bool deadline_passed = false;
  // The attempt began with less time than deadline_floor.
  bool began_short_of_time = false;
  // C7: certainly a message over one of the client's own limits.
  bool over_size_limit = false;
  // The signature of a call that a server killed as it shut down.
  bool looks_killed_at_shutdown = false;
};

struct Verdict {
  Classification classification;
  bool deadline_passed = false;
  bool killed_at_shutdown = false;

  friend bool operator==(const Verdict&, const Verdict&) = default;
};

// Nothing where Classify has to be asked.
std::optional<Verdict> JudgeWithoutClassify(const AttemptFacts& facts) noexcept;

struct Answer {
  Classification classification;
  // Not empty: Classify threw or made no sense, and this says how. The call then ends with INTERNAL.
  std::string fault;
};

// Asks `classify`, or the default where it is null.
Answer AskClassify(const Classifier& classify, std::string_view method, const grpc::Status& status,
                   const ServerMetadata& trailers) noexcept;

}  // namespace penstock::inline v0::detail
