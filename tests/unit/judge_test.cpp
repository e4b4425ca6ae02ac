// Which ends of an attempt are decided without Classify, what the default Classify says, and what becomes of one that errs.

#include "client/judge.h"

#include <doctest/doctest.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

namespace penstock::inline v0::detail {
namespace {

using namespace std::chrono_literals;

constexpr Classification kIgnore{Decision::kStop, Outcome::kIgnored, {}};
constexpr Classification kFail{Decision::kStop, Outcome::kFailure, {}};

Classification Default(int code, const std::vector<std::string>& pushback = {}) {
  ServerMetadata trailers;
  for (const std::string& value : pushback) trailers.emplace("grpc-retry-pushback-ms", value);
  return DefaultClassify("/a.B/C", grpc::Status(static_cast<grpc::StatusCode>(code), ""), trailers);
}

struct Silent : std::exception {
  const char* what() const noexcept override { return nullptr; }
};

}  // namespace

TEST_CASE("C2: the ends that are decided without asking Classify") {
  struct Case {
    const char* what;
    AttemptFacts facts;
    bool asked;
    Classification expected = kIgnore;
    bool deadline_passed = false;
    bool killed = false;
  };
  using enum grpc::StatusCode;
  const std::vector<Case> cases = {
      {"OK", {.code = OK}, true},
      {"OK after a cancel", {.code = OK, .cancelled = CancelReason::kCaller}, true},
      {"OK after the deadline", {.code = OK, .deadline_passed = true}, true},
      {"UNAVAILABLE", {.code = UNAVAILABLE}, true},
      {"cancelled by its caller", {.code = CANCELLED, .cancelled = CancelReason::kCaller}, false},
      {"UNAVAILABLE after the caller's cancel", {.code = UNAVAILABLE, .cancelled = CancelReason::kCaller}, false},
      {"the client closed", {.code = CANCELLED, .cancelled = CancelReason::kClosed}, false},
      {"the parent ended", {.code = CANCELLED, .cancelled = CancelReason::kParent}, false},
      {"the caller's cancel comes before the deadline",
       {.code = CANCELLED, .cancelled = CancelReason::kCaller, .deadline_passed = true},
       false},
      {"own deadline", {.code = CANCELLED, .cancelled = CancelReason::kDeadline, .deadline_passed = true}, false, kFail, true},
      {"UNAVAILABLE after the deadline", {.code = UNAVAILABLE, .deadline_passed = true}, false, kFail, true},
      {"an inherited deadline, as the parent's cancel",
       {.code = CANCELLED, .cancelled = CancelReason::kParent, .deadline_passed = true},
       false, kFail, true},
      {"own deadline, begun short of time",
       {.code = CANCELLED, .cancelled = CancelReason::kDeadline, .deadline_passed = true, .began_short_of_time = true},
       false, kIgnore, true},
      {"short of time alone", {.code = UNAVAILABLE, .began_short_of_time = true}, true},
      {"over a size limit", {.code = RESOURCE_EXHAUSTED, .over_size_limit = true}, false},
      {"killed at shutdown", {.code = CANCELLED, .looks_killed_at_shutdown = true}, false, kIgnore, false, true},
      {"killed at shutdown, but the parent ended",
       {.code = CANCELLED, .cancelled = CancelReason::kParent, .looks_killed_at_shutdown = true},
       false},
      {"the server's CANCELLED", {.code = CANCELLED}, true},
      {"the server's DEADLINE_EXCEEDED", {.code = DEADLINE_EXCEEDED}, true},
  };
  for (const Case& tried : cases) {
    CAPTURE(tried.what);
    const std::optional<Verdict> verdict = JudgeWithoutClassify(tried.facts);
    REQUIRE(verdict.has_value() == !tried.asked);
    if (!verdict) continue;
    CHECK(verdict->classification == tried.expected);
    CHECK(verdict->deadline_passed == tried.deadline_passed);
    CHECK(verdict->killed_at_shutdown == tried.killed);
  }
}

TEST_CASE("C3: the default, code by code") {
  for (int code = -1; code <= 17; ++code) {
    CAPTURE(code);
    Classification expected{Decision::kStop, Outcome::kSuccess, {}};
    if (code == grpc::OK) expected = {Decision::kSuccess, Outcome::kSuccess, {}};
    if (code == grpc::UNAVAILABLE) expected = {Decision::kRetry, Outcome::kFailure, {}};
    if (code == grpc::RESOURCE_EXHAUSTED || code == grpc::DEADLINE_EXCEEDED) expected = kFail;
    if (code == grpc::CANCELLED) expected = kIgnore;
    CHECK(Default(code) == expected);
  }
  CHECK(Default(grpc::RESOURCE_EXHAUSTED, {"250"}) == Classification{Decision::kRetry, Outcome::kFailure, 250ms});
}

TEST_CASE("C4, G4: the pushback in every form") {
  const auto after = [](Duration wait) { return Classification{Decision::kRetry, Outcome::kFailure, wait}; };
  CHECK(Default(grpc::UNAVAILABLE, {"0"}) == after(0ms));
  CHECK(Default(grpc::UNAVAILABLE, {"500"}) == after(500ms));
  CHECK(Default(grpc::UNAVAILABLE, {"007"}) == after(7ms));
  CHECK(Default(grpc::UNAVAILABLE, {"2147483648"}) == after(std::chrono::milliseconds(2147483648)));
  CHECK(Default(grpc::UNAVAILABLE, {"9223372036854775807"}) == after(Duration::max()));
  for (const char* value : {"-1", "abc", "", "1.5", "9223372036854775808x", "+5", " 5", "5 ", "-9223372036854775808", "0x10"}) {
    CAPTURE(value);
    CHECK(Default(grpc::UNAVAILABLE, {value}) == kFail);
    CHECK(Default(grpc::RESOURCE_EXHAUSTED, {value}) == kFail);
  }
  CHECK(Default(grpc::UNAVAILABLE, {"1", "1"}) == kFail);
  CHECK(Default(grpc::OK, {"abc"}) == Classification{Decision::kSuccess, Outcome::kSuccess, {}});
  // A pushback does not make a status one to retry that is none.
  CHECK(Default(grpc::NOT_FOUND, {"5"}) == Classification{Decision::kStop, Outcome::kSuccess, {}});
  CHECK(Default(grpc::DEADLINE_EXCEEDED, {"5"}) == kFail);
}

TEST_CASE("C6: a classification that makes no sense is named, never used") {
  const grpc::Status status(grpc::UNAVAILABLE, "");
  const auto ask = [&](Classification classification) {
    return AskClassify([=](auto, const auto&, const auto&) { return classification; }, "/a.B/C", status, {});
  };
  const Answer negative = ask({Decision::kRetry, Outcome::kFailure, -1ns});
  CHECK(negative.fault == "Classify returned retry with a negative retry_after: -1 ns");
  CHECK(negative.classification == kIgnore);
  const Answer outcome = ask({Decision::kRetry, static_cast<Outcome>(7), {}});
  CHECK(outcome.fault == "Classify returned an outcome outside the enumeration: 7");
  const Answer decision = ask({static_cast<Decision>(9), Outcome::kFailure, {}});
  CHECK(decision.fault == "Classify returned a decision outside the enumeration: 9");
  const Answer answered = AskClassify([](auto, const auto&, const auto&) { return Classification{Decision::kRetry, Outcome::kSuccess, {}}; },
                                      "/a.B/C", grpc::Status::OK, {});
  CHECK(answered.fault == "Classify returned retry for OK");
  CHECK(answered.classification == kIgnore);
  // What is not used is not judged.
  CHECK(ask({Decision::kStop, Outcome::kFailure, -1ns}).fault.empty());
  CHECK(ask({Decision::kRetry, Outcome::kFailure, 0ns}).fault.empty());
}

TEST_CASE("C11: a Classify that throws stops, ignored") {
  const grpc::Status status(grpc::UNAVAILABLE, "");
  const Answer known = AskClassify(
      [](auto, const auto&, const auto&) -> Classification { throw std::runtime_error("broken"); }, "/a.B/C", status, {});
  CHECK(known.fault == "Classify threw: broken");
  CHECK(known.classification == kIgnore);
  const Answer unknown =
      AskClassify([](auto, const auto&, const auto&) -> Classification { throw 7; }, "/a.B/C", status, {});
  CHECK(unknown.fault == "Classify threw: something that is no std::exception");
  const Answer silent = AskClassify([](auto, const auto&, const auto&) -> Classification { throw Silent(); }, "/a.B/C", status, {});
  CHECK(silent.fault == "Classify threw: an exception without a text");
  CHECK(silent.classification == kIgnore);
}

TEST_CASE("C1: the status says whether success or stop ends the call") {
  const auto ask = [](int code, Decision decision) {
    return AskClassify([=](auto, const auto&, const auto&) { return Classification{decision, Outcome::kIgnored, {}}; }, "/a.B/C",
                       grpc::Status(static_cast<grpc::StatusCode>(code), ""), {})
        .classification.decision;
  };
  CHECK(ask(grpc::OK, Decision::kStop) == Decision::kSuccess);
  CHECK(ask(grpc::NOT_FOUND, Decision::kSuccess) == Decision::kStop);
  CHECK(ask(grpc::ABORTED, Decision::kRetry) == Decision::kRetry);
}

}  // namespace penstock::inline v0::detail
