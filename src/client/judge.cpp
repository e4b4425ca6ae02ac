#include "client/judge.h"

#include <fmt/format.h>

#include "penstock/runtime/callback_thread.h"
#include "runtime/thrown.h"

namespace penstock::inline v0::detail {

std::optional<Verdict> JudgeWithoutClassify(const AttemptFacts& facts) noexcept {
  if (facts.code == grpc::StatusCode::OK) return std::nullopt;
  // C2b; a client that closes is its owner's wish as well.
  if (facts.cancelled == CancelReason::kCaller || facts.cancelled == CancelReason::kClosed) {
    return Verdict{.classification = {Decision::kStop, Outcome::kIgnored, {}}};
  }
  // C2c, before the parent: an inherited deadline shows as the parent's cancellation.
  if (facts.deadline_passed) {
    const Outcome outcome = facts.began_short_of_time ? Outcome::kIgnored : Outcome::kFailure;
    return Verdict{.classification = {Decision::kStop, outcome, {}}, .deadline_passed = true};
  }
  if (facts.cancelled != CancelReason::kNone) return Verdict{.classification = {Decision::kStop, Outcome::kIgnored, {}}};
  if (facts.over_size_limit) return Verdict{.classification = {Decision::kStop, Outcome::kIgnored, {}}};
  if (facts.code == grpc::StatusCode::CANCELLED && facts.looks_killed_at_shutdown) {
    return Verdict{.classification = {Decision::kStop, Outcome::kIgnored, {}}, .killed_at_shutdown = true};
  }
  return std::nullopt;
}

namespace {

std::string FaultIn(const Classification& classification, const grpc::Status& status) {
  switch (classification.decision) {
    case Decision::kSuccess:
    case Decision::kRetry:
    case Decision::kStop:
      break;
    default:
      return fmt::format("Classify returned a decision outside the enumeration: {}", static_cast<int>(classification.decision));
  }
  switch (classification.outcome) {
    case Outcome::kSuccess:
    case Outcome::kFailure:
    case Outcome::kIgnored:
      break;
    default:
      return fmt::format("Classify returned an outcome outside the enumeration: {}", static_cast<int>(classification.outcome));
  }
  if (classification.decision == Decision::kRetry && classification.retry_after && *classification.retry_after < Duration::zero()) {
    return fmt::format("Classify returned retry with a negative retry_after: {} ns", classification.retry_after->count());
  }
  // What is answered is not asked again: another attempt would do it twice.
  if (classification.decision == Decision::kRetry && status.ok()) return "Classify returned retry for OK";
  return {};
}

Answer Fault(std::string text) { return {{Decision::kStop, Outcome::kIgnored, {}}, std::move(text)}; }

}  // namespace

Answer AskClassify(const Classifier& classify, std::string_view method, const grpc::Status& status,
                   const ServerMetadata& trailers) noexcept {
  if (!classify) return {DefaultClassify(method, status, trailers), {}};
  try {
    UserCodeScope in_user_code;
    Classification classification = classify(method, status, trailers);
    std::string fault = FaultIn(classification, status);
    if (!fault.empty()) return Fault(std::move(fault));
    // Success and stop both end the call; which of them it is, is the status's to say.
    if (classification.decision != Decision::kRetry) {
      classification.decision = status.ok() ? Decision::kSuccess : Decision::kStop;
    }
    return {classification, {}};
  } catch (...) {
    return Fault(fmt::format("Classify threw: {}", WhatWasThrown()));
  }
}

}  // namespace penstock::inline v0::detail
