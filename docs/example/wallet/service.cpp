#include "wallet/service.h"

#include <memory>
#include <mutex>
#include <utility>

#include "ledger/v1/ledger.grpc.pb.h"
#include "penstock/client/subscription.h"
#include "wallet/answers.h"

namespace example::wallet {

namespace {

using ::ledger::v1::Ledger;
using penstock::CallResult;
using penstock::Reply;
using penstock::ServerCall;

void Fill(const ::ledger::v1::Account& account, ::wallet::v1::Balance& balance) {
  balance.set_account(account.id());
  balance.set_balance(account.balance());
  balance.set_version(account.version());
}

}  // namespace

grpc::ServerUnaryReactor* WalletService::Pay(grpc::CallbackServerContext* context, const ::wallet::v1::PayRequest* request,
                                             ::wallet::v1::PayResponse* response) {
  return Handle(context, [&](Reply reply) {
    ::ledger::v1::TransferRequest transfer;
    transfer.set_idempotency_key(request->payment_id());
    transfer.set_from(request->from());
    transfer.set_to(request->to());
    transfer.set_amount(request->amount());
    ledger_.Call(PENSTOCK_METHOD(Ledger, Transfer), std::move(transfer), {.parent = context},
                 [reply = std::move(reply), response](const CallResult& result, const ::ledger::v1::TransferResponse& done) mutable {
                   if (!result.ok()) return reply.Finish(AnswerOfTransfer(result));
                   response->set_balance(done.from().balance());
                   response->set_repeated(done.repeated());
                   reply.Finish(grpc::Status::OK);
                 });
  });
}

grpc::ServerUnaryReactor* WalletService::GetBalance(grpc::CallbackServerContext* context, const ::wallet::v1::GetBalanceRequest* request,
                                                    ::wallet::v1::Balance* response) {
  return Handle(context, [&](Reply reply) {
    ::ledger::v1::GetAccountRequest get;
    get.set_id(request->account());
    ledger_.Call(PENSTOCK_METHOD(Ledger, GetAccount), std::move(get), {.parent = context},
                 [reply = std::move(reply), response](const CallResult& result, const ::ledger::v1::Account& account) mutable {
                   if (!result.ok()) return reply.Finish(AnswerOfRead(result));
                   Fill(account, *response);
                   reply.Finish(grpc::Status::OK);
                 });
  });
}

namespace {

// Relays the ledger's watch. The newest balance counts: while a write is under way, newer ones replace each other.
class BalanceRelay final : public penstock::ServerWriteReactor<::wallet::v1::Balance> {
 public:
  BalanceRelay(penstock::Client& ledger, const std::string& account, std::chrono::milliseconds give_up_after) {
    ::ledger::v1::WatchAccountRequest watch;
    watch.set_id(account);
    // The subscription hangs on this call's scope, and ends with it: when the app goes, and when this server does. Its end lets go
    // of the hold, so this object outlives every hook.
    auto hold = std::make_shared<penstock::CallHold>(Hold());
    watch_ = ledger.Subscribe(PENSTOCK_METHOD(Ledger, WatchAccount), std::move(watch),
                              {.on_message = [this](const ::ledger::v1::Account& changed) { Relay(changed); },
                               // After a rollout the next pod goes on where the last one stopped.
                               .before_reopen = [this](::ledger::v1::WatchAccountRequest& again) { again.set_after_version(seen_version_); },
                               .on_end = [this, hold](const CallResult& result) { Finish(AnswerOfRead(result)); }},
                              {.call = {.parent = call()->Scope()}, .give_up_after = give_up_after});
  }

 private:
  void Relay(const ::ledger::v1::Account& changed) {
    seen_version_ = changed.version();
    std::lock_guard lock(mutex_);
    Fill(changed, newest_);
    pending_ = true;
    WriteNewest();
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    writing_ = false;
    if (ok) WriteNewest();
  }

  // With the lock held.
  void WriteNewest() {
    if (writing_ || !pending_) return;
    pending_ = false;
    message_ = newest_;
    writing_ = StartWrite(&message_);  // false when the stream is ending
  }

  std::int64_t seen_version_ = 0;  // of the subscription's hooks, which run one at a time
  std::mutex mutex_;
  bool pending_ = false;
  bool writing_ = false;
  ::wallet::v1::Balance newest_;
  ::wallet::v1::Balance message_;  // what is being written
  penstock::Subscription watch_;
};

}  // namespace

grpc::ServerWriteReactor<::wallet::v1::Balance>* WalletService::WatchBalance(grpc::CallbackServerContext* context,
                                                                             const ::wallet::v1::WatchBalanceRequest* request) {
  return Start<BalanceRelay>(context, ledger_, request->account(), give_up_after_);
}

}  // namespace example::wallet
