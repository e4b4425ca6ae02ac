#pragma once

// What the end of an attempt means: for the call, and for the dependency.
//
// gRPC tells only a status. Whether another attempt makes sense, and whether the status says that the dependency is ill,
// are two questions, and Classify answers both. The default (behaviour.md C3) suits most services; one of your own
// changes single codes and leaves the rest to it:
//
//     settings.classify = [](std::string_view method, const grpc::Status& status, const ServerMetadata& trailers) {
//       if (status.error_code() == grpc::ABORTED) return Classification{Decision::kRetry, Outcome::kSuccess, {}};
//       return DefaultClassify(method, status, trailers);
//     };
//
// Threads: called on the thread that ends the attempt, from several threads at once.
// Ownership: the arguments live until it returns.
// Time: retry_after is a length from the end of the attempt.
// Errors: a classification that makes no sense (retry for OK, a negative retry_after), or an exception, ends the call with INTERNAL
// (C6, C11).

#include <grpcpp/support/status.h>
#include <grpcpp/support/string_ref.h>

#include <functional>
#include <map>
#include <optional>
#include <string_view>

#include "penstock/core/circuit_breaker.h"
#include "penstock/core/clock.h"

namespace penstock::inline v0 {

// What follows for the call.
enum class Decision : unsigned char {
  kSuccess,  // It is answered.
  kRetry,    // Another attempt may help.
  kStop,     // This status is the call's.
};

struct Classification {
  Decision decision = Decision::kStop;
  // What it says about the dependency; goes to the breaker.
  Outcome outcome = Outcome::kIgnored;
  // With kRetry: the next attempt begins this much later at the earliest. 0 up; longer than the setting backoff_max ends the
  // call (C5).
  std::optional<Duration> retry_after;

  friend bool operator==(const Classification&, const Classification&) = default;
};

// What a server sent beside its messages. The keys and values are views into the attempt.
using ServerMetadata = std::multimap<grpc::string_ref, grpc::string_ref>;

// `method` is the full path, `/package.Service/Method`. Called once an attempt, a unary call's OK included, but for the ends that are
// decided without it: those of the client's own side (C2, C7), a call killed at a server's shutdown (C3), and of a stream OK and
// the neutral ends (S3, S4).
using Classifier =
    std::function<Classification(std::string_view method, const grpc::Status& status, const ServerMetadata& trailers)>;

// The default: OK is success; UNAVAILABLE is retried and a failure; RESOURCE_EXHAUSTED is a failure, retried where the
// server says when (the trailer grpc-retry-pushback-ms, gRFC A6); DEADLINE_EXCEEDED is a failure; CANCELLED says nothing;
// any other code is an answer of a healthy server: stop, success.
Classification DefaultClassify(std::string_view method, const grpc::Status& status, const ServerMetadata& trailers);

}  // namespace penstock::inline v0
