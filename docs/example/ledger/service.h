#pragma once

// The ledger as a gRPC service: what comes in over the wire, put to the store, and the store's answers as statuses.

#include "ledger/store.h"
#include "ledger/v1/ledger.grpc.pb.h"
#include "penstock/server/service.h"

namespace example::ledger {

class LedgerService final : public penstock::Service<::ledger::v1::Ledger> {
 public:
  // The store outlives the service.
  explicit LedgerService(Store& store) : store_(store) {}

  grpc::ServerUnaryReactor* GetAccount(grpc::CallbackServerContext* context, const ::ledger::v1::GetAccountRequest* request,
                                       ::ledger::v1::Account* response) override;
  grpc::ServerUnaryReactor* Transfer(grpc::CallbackServerContext* context, const ::ledger::v1::TransferRequest* request,
                                     ::ledger::v1::TransferResponse* response) override;
  grpc::ServerWriteReactor<::ledger::v1::Account>* WatchAccount(grpc::CallbackServerContext* context,
                                                                const ::ledger::v1::WatchAccountRequest* request) override;
  grpc::ServerBidiReactor<::ledger::v1::ReconcileRequest, ::ledger::v1::ReconcileResponse>* Reconcile(
      grpc::CallbackServerContext* context) override;

 private:
  Store& store_;
};

}  // namespace example::ledger
