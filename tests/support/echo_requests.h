#pragma once

// Requests to the Echo service, and what hears how a client's calls went.

#include <grpcpp/support/status.h>

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/client/method.h"
#include "penstock/telemetry.h"
#include "penstock/test/v1/echo.grpc.pb.h"

namespace penstock::test {

inline constexpr auto kUnary = PENSTOCK_METHOD(v1::Echo, Unary);
inline constexpr auto kRepeatable = PENSTOCK_METHOD(v1::Echo, Repeatable);
inline constexpr auto kIdempotent = PENSTOCK_METHOD(v1::Echo, Idempotent);
inline constexpr auto kOnceOnly = PENSTOCK_METHOD(v1::Echo, OnceOnly);

inline v1::EchoRequest Request(std::string text) {
  v1::EchoRequest request;
  request.set_text(std::move(text));
  return request;
}

inline v1::EchoRequest Failing(grpc::StatusCode code, std::string message = "as asked") {
  v1::EchoRequest request;
  request.set_code(code);
  request.set_message(std::move(message));
  return request;
}

// Answered only when it is cancelled.
inline v1::EchoRequest Hanging() {
  v1::EchoRequest request;
  request.set_delay_ms(-1);
  return request;
}

// Counts attempts, and how they and calls ended.
struct RecordingObserver final : ClientObserver {
  struct Observation final : AttemptObservation {
    explicit Observation(RecordingObserver& of) : observer(of) {}
    void End(const AttemptEnd& end) noexcept override {
      std::lock_guard lock(observer.mutex);
      observer.codes.push_back(end.status.error_code());
      observer.outcomes.push_back(end.outcome);
    }
    RecordingObserver& observer;
  };

  std::unique_ptr<AttemptObservation> OnAttempt(const AttemptStart& start, OutgoingMetadata& metadata) noexcept override {
    std::lock_guard lock(mutex);
    attempts.push_back(std::string(start.method) + " " + std::to_string(start.attempt));
    metadata.Set("observed", std::to_string(start.attempt));
    metadata.Set("Illegal", "dropped");
    return std::make_unique<Observation>(*this);
  }
  void OnRejected(const AttemptStart& start, const OutgoingMetadata& /*metadata*/, const grpc::Status& /*status*/) noexcept override {
    std::lock_guard lock(mutex);
    rejected.emplace_back(start.method);
  }
  void OnDecision(std::string_view /*method*/, RetryDecision decision) noexcept override {
    std::lock_guard lock(mutex);
    decisions.push_back(decision);
  }
  void OnError(std::string_view message) noexcept override {
    std::lock_guard lock(mutex);
    errors.emplace_back(message);
  }

  std::mutex mutex;
  std::vector<std::string> attempts;
  std::vector<grpc::StatusCode> codes;
  std::vector<Outcome> outcomes;
  std::vector<std::string> rejected;
  std::vector<RetryDecision> decisions;
  std::vector<std::string> errors;
};

}  // namespace penstock::test
