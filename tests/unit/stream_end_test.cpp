#include "client/stream_end.h"

#include <doctest/doctest.h>

#include <vector>

using namespace penstock;
using detail::CancelReason;
using detail::JudgeStreamEnd;
using detail::StreamFacts;
using detail::Verdict;

namespace {

StreamFacts Facts(int code, bool opened, bool sent, CancelReason cancelled = CancelReason::kNone, bool deadline_passed = false) {
  StreamFacts facts;
  facts.attempt.code = static_cast<grpc::StatusCode>(code);
  facts.attempt.cancelled = cancelled;
  facts.attempt.deadline_passed = deadline_passed;
  facts.opened = opened;
  facts.sent = sent;
  return facts;
}

}  // namespace

TEST_CASE("S3, S4: every end of a stream that is decided without Classify, for each code and how far it came") {
  const Verdict success{.classification = {Decision::kSuccess, Outcome::kSuccess, {}}};
  const Verdict neutral{.classification = {Decision::kStop, Outcome::kIgnored, {}}};
  for (int code = 0; code <= 16; ++code) {
    CAPTURE(code);
    const auto not_sent = JudgeStreamEnd(Facts(code, false, false));
    const auto sent = JudgeStreamEnd(Facts(code, false, true));
    const auto opened = JudgeStreamEnd(Facts(code, true, true));
    switch (code) {
      case grpc::StatusCode::OK:
        CHECK(not_sent == success);
        CHECK(opened == success);
        break;
      case grpc::StatusCode::UNAVAILABLE:
        CHECK_FALSE(not_sent.has_value());
        CHECK(sent == neutral);
        CHECK(opened == neutral);
        break;
      case grpc::StatusCode::CANCELLED:
        CHECK_FALSE(not_sent.has_value());
        CHECK(sent == neutral);
        CHECK_FALSE(opened.has_value());
        break;
      default:
        CHECK_FALSE(not_sent.has_value());
        CHECK_FALSE(sent.has_value());
        CHECK_FALSE(opened.has_value());
        break;
    }
  }
}

TEST_CASE("C2: a stream that its own side ended is ignored, or a failure where its deadline did it") {
  for (const bool opened : {false, true}) {
    for (const CancelReason reason : {CancelReason::kCaller, CancelReason::kParent, CancelReason::kClosed}) {
      const auto verdict = JudgeStreamEnd(Facts(1, opened, true, reason));
      REQUIRE(verdict.has_value());
      CHECK(verdict->classification == Classification{Decision::kStop, Outcome::kIgnored, {}});
      CHECK_FALSE(verdict->deadline_passed);
    }
    const auto verdict = JudgeStreamEnd(Facts(14, opened, true, CancelReason::kDeadline, true));
    REQUIRE(verdict.has_value());
    CHECK(verdict->classification == Classification{Decision::kStop, Outcome::kFailure, {}});
    CHECK(verdict->deadline_passed);
  }
  StreamFacts hurried = Facts(4, false, false, CancelReason::kDeadline, true);
  hurried.attempt.began_short_of_time = true;
  CHECK(JudgeStreamEnd(hurried)->classification.outcome == Outcome::kIgnored);
}

TEST_CASE("S3: a stream with the signature of a shutdown's kill is neutral, and not retried") {
  StreamFacts killed = Facts(1, false, true);
  killed.attempt.looks_killed_at_shutdown = true;
  const auto verdict = JudgeStreamEnd(killed);
  REQUIRE(verdict.has_value());
  CHECK(verdict->classification == Classification{Decision::kStop, Outcome::kIgnored, {}});
}
