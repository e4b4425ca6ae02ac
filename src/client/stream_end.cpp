#include "client/stream_end.h"

namespace penstock::inline v0::detail {

std::optional<Verdict> JudgeStreamEnd(const StreamFacts& facts) noexcept {
  if (facts.attempt.code == grpc::StatusCode::OK) {
    return Verdict{.classification = {Decision::kSuccess, Outcome::kSuccess, {}}};
  }
  AttemptFacts attempt = facts.attempt;
  // A stream that a server's shutdown killed before its handler is neutral like the others that were sent and did not open.
  attempt.looks_killed_at_shutdown = false;
  if (std::optional<Verdict> verdict = JudgeWithoutClassify(attempt)) return verdict;
  const Verdict neutral{.classification = {Decision::kStop, Outcome::kIgnored, {}}};
  if (facts.attempt.code == grpc::StatusCode::UNAVAILABLE && (facts.opened || facts.sent)) return neutral;
  if (facts.attempt.code == grpc::StatusCode::CANCELLED && !facts.opened && facts.sent) return neutral;
  return std::nullopt;
}

}  // namespace penstock::inline v0::detail
