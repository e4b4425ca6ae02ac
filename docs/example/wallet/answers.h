#pragma once

// The ledger's answers in the wallet's own words.
//
// An app that talks to the wallet must not have to know the ledger: each end of a call to it becomes a status of the wallet's,
// with a wallet.v1.Refusal in its details.

#include <grpcpp/support/status.h>

#include <string>

#include "penstock/client/call.h"
#include "wallet/v1/wallet.pb.h"

namespace example::wallet {

// A status with a Refusal in its details.
grpc::Status Refuse(grpc::StatusCode code, const std::string& message, ::wallet::v1::Refusal::Reason reason);

// For the end of a call that only asks. Not for OK.
grpc::Status AnswerOfRead(const penstock::CallResult& result);

// For the end of a transfer: what may have been done is said to be unknown. Not for OK.
grpc::Status AnswerOfTransfer(const penstock::CallResult& result);

}  // namespace example::wallet
