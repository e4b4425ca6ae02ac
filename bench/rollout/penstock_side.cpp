#include <fmt/format.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <optional>

#include "ledger/v1/ledger.grpc.pb.h"
#include "penstock/client/client.h"
#include "penstock/server/server.h"
#include "side.h"

namespace rollout {
namespace {

using namespace std::chrono_literals;
using ledger::v1::Account;
using ledger::v1::GetAccountRequest;
using ledger::v1::Ledger;
using ledger::v1::TransferRequest;
using ledger::v1::TransferResponse;
using ledger::v1::WatchAccountRequest;

class LedgerService final : public penstock::Service<Ledger> {
 public:
  LedgerService(Store& store, Figures& figures) : store_(store), figures_(figures) {}

  grpc::ServerUnaryReactor* GetAccount(grpc::CallbackServerContext* context, const GetAccountRequest* request,
                                       Account* response) override {
    return Handle(context, [&] {
      *response = store_.Get(request->id());
      return grpc::Status::OK;
    });
  }

  grpc::ServerUnaryReactor* Transfer(grpc::CallbackServerContext* context, const TransferRequest* request,
                                     TransferResponse* response) override {
    return Handle(context, [&] {
      store_.Transfer(*request, *response);
      return grpc::Status::OK;
    });
  }

  grpc::ServerWriteReactor<Account>* WatchAccount(grpc::CallbackServerContext* context,
                                                  const WatchAccountRequest* request) override {
    return Start<AccountWatch>(context, *this, *request);
  }

 private:
  // Sends the newest state whenever the last write is done: what comes in between is passed over.
  class AccountWatch final : public penstock::ServerWriteReactor<Account>, private Watcher {
   public:
    AccountWatch(LedgerService& service, const WatchAccountRequest& request) : service_(service), id_(request.id()) {
      // acquire: pairs with the release in OnShutdown(); only counted.
      if (service_.ending_.load(std::memory_order_acquire)) service_.figures_.landed_on_old.Add();
      service_.store_.Watch(id_, request.after_version(), *this);
    }

   private:
    void Changed(const Account& account) override {
      std::lock_guard lock(mutex_);
      waiting_ = account;
      SendWaiting();
    }
    void OnWriteDone(bool ok) override {
      std::lock_guard lock(mutex_);
      writing_ = false;
      if (ok) SendWaiting();
    }
    void SendWaiting() {
      if (writing_ || waiting_.version() == 0) return;
      sent_.Swap(&waiting_);
      waiting_.Clear();
      writing_ = StartWrite(&sent_);
    }
    void OnShutdown() override { service_.ending_.store(true, std::memory_order_release); }
    void OnDone() override { service_.store_.Unwatch(id_, *this); }

    LedgerService& service_;
    const std::string id_;
    std::mutex mutex_;
    Account waiting_;  // under mutex_; version 0: nothing
    Account sent_;
    bool writing_ = false;  // under mutex_
  };

  Store& store_;
  Figures& figures_;
  std::atomic<bool> ending_{false};
};

class PenstockCaller final : public Caller {
 public:
  PenstockCaller(penstock::Client client, Figures& figures) : client_(std::move(client)), figures_(figures) {}
  ~PenstockCaller() override { Stop(); }

  void Watch(int streams) override {
    for (int i = 0; i < streams; ++i) {
      auto watch = std::make_shared<OneWatch>();
      WatchAccountRequest request;
      request.set_id(Store::IdOf(i));
      subscriptions_.push_back(client_.Subscribe(
          PENSTOCK_METHOD(Ledger, WatchAccount), std::move(request),
          {.on_message = [watch](Account& account) { watch->version = account.version(); },
           .before_reopen = [watch](WatchAccountRequest& again) { again.set_after_version(watch->version); },
           .on_gap =
               [this, watch](const penstock::Gap& gap) {
                 if (gap.attempts == 0 && watch->open.exchange(false)) {
                   figures_.streams_open.Add(-1);
                   watch->ended = std::chrono::steady_clock::now();
                 }
                 return penstock::GapDecision::kGoOn;
               },
           .on_open =
               [this, watch] {
                 figures_.streams_opened.Add();
                 if (!watch->open.exchange(true)) figures_.streams_open.Add();
                 if (watch->ended) figures_.Reopened(std::chrono::steady_clock::now() - *watch->ended);
               },
           .on_end =
               [this, watch](const penstock::CallResult& result) {
                 if (watch->open.exchange(false)) figures_.streams_open.Add(-1);
                 if (result.reason != penstock::EndReason::kCancelled) figures_.streams_lost.Add();
               }}));
    }
  }

  void Call(std::uint64_t number) override {
    const auto began = std::chrono::steady_clock::now();
    const auto done = [this, began](const penstock::CallResult& result, auto&) {
      figures_.unary_calls.Add();
      figures_.Answered(std::chrono::steady_clock::now() - began);
      if (result.reason == penstock::EndReason::kRejected) {
        figures_.unary_rejected.Add();
      } else if (!result.ok()) {
        figures_.unary_failed.Add();
      }
    };
    if (number % 10 != 0) {
      GetAccountRequest request;
      request.set_id(Store::IdOf(static_cast<int>(number)));
      client_.Call(PENSTOCK_METHOD(Ledger, GetAccount), std::move(request), {}, done);
    } else {
      TransferRequest request;
      request.set_idempotency_key(std::to_string(number));
      request.set_from(Store::IdOf(static_cast<int>(number / 10)));
      request.set_to(Store::IdOf(static_cast<int>(number / 10 + 1)));
      request.set_amount(1);
      client_.Call(PENSTOCK_METHOD(Ledger, Transfer), std::move(request), {}, done);
    }
  }

  const char* breaker_state() const override {
    switch (client_.circuit_state()) {
      case penstock::CircuitState::kClosed:
        return "closed";
      case penstock::CircuitState::kOpen:
        return "open";
      case penstock::CircuitState::kHalfOpen:
        return "half-open";
    }
    return "";
  }

  void Stop() override {
    subscriptions_.clear();
    client_.CloseAndWait(std::chrono::steady_clock::now() + 10s);
  }

 private:
  struct OneWatch {
    // Touched by one hook at a time.
    std::int64_t version = 0;
    std::optional<std::chrono::steady_clock::time_point> ended{};
    std::atomic<bool> open{false};
  };

  penstock::Client client_;
  Figures& figures_;
  std::deque<penstock::Subscription> subscriptions_;
};

}  // namespace

penstock::Result<std::unique_ptr<penstock::testing::Pod>> MakePenstockPod(Store& store, Figures& figures) {
  penstock::ServerSettings settings;
  settings.address = "127.0.0.1:0";
  settings.plaintext = true;
  settings.drain = 500ms;
  return penstock::testing::MakeServerPod(std::move(settings), {std::make_shared<LedgerService>(store, figures)});
}

std::unique_ptr<Caller> MakePenstockCaller(const std::string& address, int connections, Figures& figures) {
  penstock::ClientSettings settings;
  settings.address = address;
  settings.plaintext = true;
  settings.connection.channels = static_cast<std::uint32_t>(connections);
  settings.breaker.observer = [&figures](const penstock::CircuitTransition& transition) {
    if (transition.to == penstock::CircuitState::kOpen) figures.breaker_opened.Add();
  };
  auto client = penstock::Client::Create(std::move(settings));
  if (!client.ok()) {
    fmt::print(stderr, "bench/run rollout: {}\n", client.error().message());
    return nullptr;
  }
  return std::make_unique<PenstockCaller>(std::move(*client), figures);
}

}  // namespace rollout
