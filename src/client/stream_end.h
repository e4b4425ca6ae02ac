#pragma once

// What the end of a stream's attempt says, where that is decided without asking Classify (behaviour.md C2, S3, S4). Facts in,
// verdict out.
//
//     ends with              not sent       sent, not opened     opened
//     OK                                    (is an opening)      success
//     by its caller          ignored        ignored              ignored
//     by its own deadline    failure        failure              failure
//     UNAVAILABLE            Classify       ignored              ignored
//     CANCELLED              Classify       ignored              Classify
//     any other              Classify       Classify             Classify
//
// Opened: response headers, a message, or an OK end. Sent: a connection was picked, so that a server may know of it.

#include <optional>

#include "client/judge.h"

namespace penstock::inline v0::detail {

struct StreamFacts {
  AttemptFacts attempt;
  bool opened = false;
  bool sent = false;
};

struct StreamVerdict {
  Classification classification;
  bool deadline_passed = false;
  // The stream's own side ended it: the caller, the parent, the client's closing, the deadline.
  bool by_caller = false;

  friend bool operator==(const StreamVerdict&, const StreamVerdict&) = default;
};

// Nothing where Classify has to be asked.
std::optional<StreamVerdict> JudgeStreamEnd(const StreamFacts& facts) noexcept;

}  // namespace penstock::inline v0::detail
