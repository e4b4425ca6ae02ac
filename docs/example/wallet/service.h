#pragma once

// The wallet as a gRPC service. It keeps nothing: every call is a call to the ledger, and every watch relays one of the ledger's.

#include <chrono>

#include "penstock/client/client.h"
#include "penstock/server/service.h"
#include "wallet/v1/wallet.grpc.pb.h"

namespace example::wallet {

class WalletService final : public penstock::Service<::wallet::v1::Wallet> {
 public:
  // The client outlives the service. A watch ends once the ledger has been out of reach for `give_up_after`.
  WalletService(penstock::Client& ledger, std::chrono::milliseconds give_up_after) : ledger_(ledger), give_up_after_(give_up_after) {}

  grpc::ServerUnaryReactor* Pay(grpc::CallbackServerContext* context, const ::wallet::v1::PayRequest* request,
                                ::wallet::v1::PayResponse* response) override;
  grpc::ServerUnaryReactor* GetBalance(grpc::CallbackServerContext* context, const ::wallet::v1::GetBalanceRequest* request,
                                       ::wallet::v1::Balance* response) override;
  grpc::ServerWriteReactor<::wallet::v1::Balance>* WatchBalance(grpc::CallbackServerContext* context,
                                                                const ::wallet::v1::WatchBalanceRequest* request) override;

 private:
  penstock::Client& ledger_;
  const std::chrono::milliseconds give_up_after_;
};

}  // namespace example::wallet
