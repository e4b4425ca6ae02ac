#include "wallet/answers.h"

namespace example::wallet {

using ::wallet::v1::Refusal;
using penstock::CallResult;
using penstock::Reached;

grpc::Status Refuse(grpc::StatusCode code, const std::string& message, Refusal::Reason reason) {
  Refusal refusal;
  refusal.set_reason(reason);
  ::wallet::v1::StatusDetails details;
  details.set_code(code);
  details.set_message(message);
  details.add_details()->PackFrom(refusal);
  return {code, message, details.SerializeAsString()};
}

grpc::Status AnswerOfRead(const CallResult& result) {
  switch (result.status.error_code()) {
    case grpc::StatusCode::NOT_FOUND: return Refuse(grpc::StatusCode::NOT_FOUND, "no such account", Refusal::UNKNOWN_ACCOUNT);
    case grpc::StatusCode::FAILED_PRECONDITION:
      return Refuse(grpc::StatusCode::FAILED_PRECONDITION, "not enough money", Refusal::INSUFFICIENT_FUNDS);
    case grpc::StatusCode::ALREADY_EXISTS:
      return Refuse(grpc::StatusCode::ALREADY_EXISTS, "this payment_id was used for another payment", Refusal::PAYMENT_ID_REUSED);
    case grpc::StatusCode::OUT_OF_RANGE:  // more than an account can hold
    case grpc::StatusCode::INVALID_ARGUMENT: return Refuse(result.status.error_code(), result.status.error_message(), Refusal::BAD_REQUEST);
    case grpc::StatusCode::CANCELLED:
      if (result.reason != penstock::EndReason::kCancelled) break;  // By a ledger that is stopping.
      [[fallthrough]];
    case grpc::StatusCode::DEADLINE_EXCEEDED: return Refuse(result.status.error_code(), "the ledger did not answer in time", Refusal::LEDGER_UNAVAILABLE);
    default: break;
  }
  return Refuse(grpc::StatusCode::UNAVAILABLE, "the ledger can't be reached", Refusal::LEDGER_UNAVAILABLE);
}

grpc::Status AnswerOfTransfer(const CallResult& result) {
  grpc::Status answer = AnswerOfRead(result);
  const bool refused_by_the_ledger = answer.error_code() != grpc::StatusCode::UNAVAILABLE && answer.error_code() != grpc::StatusCode::CANCELLED &&
                                     answer.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED;
  if (refused_by_the_ledger || result.reached == Reached::kNotSent) return answer;
  return Refuse(answer.error_code(), "the payment may have been made: repeat it with the same payment_id", Refusal::OUTCOME_UNKNOWN);
}

}  // namespace example::wallet
