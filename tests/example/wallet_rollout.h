#pragma once

// The wallet itself is replaced, again and again, under the watches of its apps; all in one process.

#include <doctest/doctest.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "example/app.h"
#include "ledger/service.h"
#include "penstock/client/subscription.h"
#include "penstock/server/server.h"
#include "penstock/testing/router.h"
#include "wallet/service.h"

namespace penstock::test {

// One account that never changes.
class StillStore final : public example::ledger::Store {
 public:
  void Get(std::string id, example::ledger::Limits, example::ledger::Done<example::ledger::AccountRecord> done) override {
    done(example::ledger::AccountRecord{std::move(id), 10, 1});
  }
  void Transfer(example::ledger::TransferOrder, example::ledger::Limits, example::ledger::Done<example::ledger::Transferred>) override {}
  example::ledger::StoreResult<example::ledger::AccountRecord> CreateAccount(const std::string& id, std::int64_t balance) override {
    return example::ledger::AccountRecord{id, balance, 1};
  }
  std::unique_ptr<example::ledger::Watch> WatchChanges(std::function<void(const std::string&)>) override {
    return std::make_unique<example::ledger::Watch>();
  }
};

// Replaces the wallet under so many subscriptions. Each of their streams ends with UNAVAILABLE, as a stream of a server that
// shuts down does, so that none of the subscriptions ever ends.
inline void RollOutTheWallet(int watches, int rollouts) {
  const auto serve = [](AnyService& service) {
    auto made = Server::Create({.address = "127.0.0.1:0", .plaintext = true, .drain = {}, .handshake_window = 20ms}, {&service});
    REQUIRE_MESSAGE(made.ok(), made.error().message());
    return std::move(made).value();
  };
  const auto connect = [](const std::string& address) {
    auto made = Client::Create({.address = address, .plaintext = true});
    REQUIRE(made.ok());
    return *std::move(made);
  };
  StillStore store;
  example::ledger::LedgerService ledger(store);
  const auto ledger_server = serve(ledger);
  Client to_ledger = connect("127.0.0.1:" + std::to_string(ledger_server->port()));
  std::deque<example::wallet::WalletService> wallets;  // a service is one server's
  std::unique_ptr<Server> serving = serve(wallets.emplace_back(to_ledger, 10s));
  auto router = testing::Router::Create({.targets = {static_cast<std::uint16_t>(serving->port())}});
  REQUIRE(router.ok());

  struct App {
    std::atomic<int> delivered{0};  // one message a stream: the account as it is
    std::atomic<bool> ended{false};
    Subscription watch;
  };
  std::mutex mutex;
  std::vector<std::string> odd;  // ends other than that of a server which shuts down
  std::atomic<bool> over{false};
  const auto note = [&](const char* what, const grpc::Status& status) {
    std::lock_guard lock(mutex);
    if (!over) odd.push_back(what + std::to_string(status.error_code()) + " " + status.error_message());
  };
  Client to_wallet = connect((*router)->address());
  std::deque<App> apps(static_cast<std::size_t>(watches));
  // Also where a check fails, no app goes before its subscription.
  const auto close = [&](Client* client) {
    over = true;
    client->CloseAndWait(std::chrono::steady_clock::now() + 30s);
  };
  const std::unique_ptr<Client, decltype(close)> closing(&to_wallet, close);
  for (App& app : apps) {
    ::wallet::v1::WatchBalanceRequest request;
    request.set_account("bob");
    app.watch = to_wallet.Subscribe(PENSTOCK_METHOD(Wallet, WatchBalance), request,
                                    {.on_message = [&app](const Balance&) { ++app.delivered; },
                                     .on_gap = [&](const Gap& gap) {
                                       const bool shut_down = gap.why.error_code() == grpc::StatusCode::UNAVAILABLE &&
                                                              gap.why.error_message() == "server is shutting down";
                                       if (gap.attempts == 0 && !shut_down) note("a stream: ", gap.why);
                                       return GapDecision::kGoOn;
                                     },
                                     .on_end = [&](const CallResult& result) {
                                       note("a subscription: ", result.status);
                                       app.ended = true;
                                     }});
  }
  const auto all_delivered = [&](int count) {
    return Eventually([&] {
      for (const App& app : apps) {
        if (app.delivered < count && !app.ended) return false;
      }
      return true;
    });
  };
  CHECK(all_delivered(1));
  for (int rollout = 1; rollout <= rollouts; ++rollout) {
    CAPTURE(rollout);
    std::unique_ptr<Server> next = serve(wallets.emplace_back(to_ledger, 10s));
    (*router)->SetTargets({static_cast<std::uint16_t>(next->port())});
    serving->Shutdown();
    REQUIRE(serving->Wait() == 0);
    serving = std::move(next);
    CHECK(all_delivered(rollout + 1));
    std::lock_guard lock(mutex);
    REQUIRE_MESSAGE(odd.empty(), odd.size() << " odd ends, the first: " << odd.front());
  }
  for (const App& app : apps) CHECK_FALSE(app.ended);
  MESSAGE(rollouts << " rollouts of the wallet under " << watches << " watches");
}

}  // namespace penstock::test
