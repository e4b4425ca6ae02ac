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

// Nothing where Classify has to be asked.
std::optional<Verdict> JudgeStreamEnd(const StreamFacts& facts) noexcept;

}  // namespace penstock::inline v0::detail
