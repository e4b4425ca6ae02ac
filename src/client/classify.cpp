#include "penstock/client/classify.h"

#include "runtime/pushback.h"
#include "runtime/status_code.h"

namespace penstock::inline v0 {

Classification DefaultClassify(std::string_view /*method*/, const grpc::Status& status, const ServerMetadata& trailers) {
  const grpc::StatusCode code = detail::NormalCode(static_cast<int>(status.error_code()));
  Classification classification;
  switch (code) {
    case grpc::StatusCode::OK:
      return {Decision::kSuccess, Outcome::kSuccess, {}};
    case grpc::StatusCode::UNAVAILABLE:
      classification = {Decision::kRetry, Outcome::kFailure, {}};
      break;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      classification = {Decision::kStop, Outcome::kFailure, {}};
      break;
    case grpc::StatusCode::CANCELLED:
      classification = {Decision::kStop, Outcome::kIgnored, {}};
      break;
    default:
      return {Decision::kStop, Outcome::kSuccess, {}};
  }
  const detail::Pushback pushback = detail::ReadPushback(trailers);
  switch (pushback.kind) {
    case detail::Pushback::Kind::kNone:
      break;
    case detail::Pushback::Kind::kStop:
      classification.decision = Decision::kStop;
      break;
    case detail::Pushback::Kind::kAfter:
      if (code == grpc::StatusCode::RESOURCE_EXHAUSTED) classification.decision = Decision::kRetry;
      if (classification.decision == Decision::kRetry) classification.retry_after = pushback.after;
      break;
  }
  return classification;
}

}  // namespace penstock::inline v0
