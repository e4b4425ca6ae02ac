// The wallet and the ledger in one process, with time that stands still until a case moves it.

#include <doctest/doctest.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "example/app.h"
#include "ledger/service.h"
#include "penstock/server/server.h"
#include "penstock/telemetry.h"
#include "penstock/testing/manual_time.h"
#include "wallet/service.h"

namespace penstock::test {

namespace {

using example::ledger::AccountRecord;
using example::ledger::Done;
using example::ledger::Limits;
using example::ledger::StoreError;
using example::ledger::StoreProblem;
using example::ledger::StoreResult;
using example::ledger::Transferred;
using example::ledger::TransferOrder;

// One account, "bob", whose every question a case may hold back or refuse.
class TestStore final : public example::ledger::Store {
 public:
  void Get(std::string id, Limits, Done<AccountRecord> done) override {
    if (refuses) return done(StoreError{StoreProblem::kUnavailable, "away"});
    done(AccountRecord{std::move(id), 10, version});
  }
  void Transfer(TransferOrder order, Limits, Done<Transferred> done) override {
    ++transfers;
    if (refuses) return done(StoreError{StoreProblem::kUnavailable, "away"});
    auto answer = [order, done = std::move(done)] { done(Transferred{{order.from, 1, 2}, {order.to, 1, 2}, false}); };
    std::lock_guard lock(mutex_);
    if (!holds) return answer();
    held_.emplace_back(std::move(answer));
  }
  StoreResult<AccountRecord> CreateAccount(const std::string& id, std::int64_t balance) override { return AccountRecord{id, balance, 1}; }
  std::unique_ptr<example::ledger::Watch> WatchChanges(std::function<void(const std::string&)>) override {
    return std::make_unique<example::ledger::Watch>();
  }

  void Release() {
    holds = false;
    std::deque<std::function<void()>> held;
    {
      std::lock_guard lock(mutex_);
      held.swap(held_);
    }
    for (const auto& answer : held) answer();
  }

  std::atomic<bool> refuses{false};
  std::atomic<bool> holds{false};
  std::atomic<int> transfers{0};
  std::atomic<std::int64_t> version{1};

 private:
  std::mutex mutex_;
  std::deque<std::function<void()>> held_;
};

std::unique_ptr<Server> Serve(AnyService& service, const std::string& address, const std::shared_ptr<TimeSource>& time) {
  auto made = Server::Create({.address = address, .plaintext = true, .drain = {}, .time = time}, {&service});
  REQUIRE_MESSAGE(made.ok(), made.error().message());
  return std::move(made).value();
}

// Counts the attempts of a client.
class Attempts final : public ClientObserver {
 public:
  std::unique_ptr<AttemptObservation> OnAttempt(const AttemptStart&, OutgoingMetadata&) noexcept override {
    ++count;
    return nullptr;
  }
  std::atomic<int> count{0};
};

// The servers and the wallet's client are on manual time, so that deadlines that are handed down are, too; the app is on real time.
struct Lab {
  explicit Lab(std::uint32_t max_attempts = 3) {
    ledger_server = Serve(ledger, "127.0.0.1:0", time);
    ClientSettings settings{.address = "127.0.0.1:" + std::to_string(ledger_server->port()), .plaintext = true, .timeout = 2s};
    settings.max_attempts = max_attempts;
    settings.time = time;
    settings.observer = attempts;
    auto made = Client::Create(std::move(settings));
    REQUIRE(made.ok());
    to_ledger.emplace(*std::move(made));
    wallet.emplace(*to_ledger, 10s);
    wallet_server = Serve(*wallet, "127.0.0.1:0", time);
    ClientSettings to_wallet{.address = "127.0.0.1:" + std::to_string(wallet_server->port()), .plaintext = true, .timeout = 60s, .max_attempts = 1};
    to_wallet.breaker.trip = [](const Counts&) { return false; };  // the wallet's is looked at
    auto client = Client::Create(std::move(to_wallet));
    REQUIRE(client.ok());
    app.emplace(*std::move(client));
  }
  ~Lab() {
    store.Release();
    CHECK(app->CloseAndWait(std::chrono::steady_clock::now() + 30s));
  }

  // A payment under way; its status once it has ended.
  struct Paying {
    std::atomic<bool> ended{false};
    grpc::Status status;
  };
  std::shared_ptr<Paying> Pay(const std::string& id) {
    auto paying = std::make_shared<Paying>();
    app->Call(PENSTOCK_METHOD(Wallet, Pay), Payment(id, 1), {}, [paying](const CallResult& result, ::wallet::v1::PayResponse&) {
      paying->status = result.status;
      paying->ended = true;
    });
    return paying;
  }

  // Until the wallet has noticed: it tries to watch again.
  void LoseLedger() {
    const int before = attempts->count;
    ledger_server.reset();
    REQUIRE(Eventually([&] { return attempts->count > before; }));
  }

  std::shared_ptr<testing::ManualTime> time = std::make_shared<testing::ManualTime>();
  std::shared_ptr<Attempts> attempts = std::make_shared<Attempts>();
  TestStore store;
  example::ledger::LedgerService ledger{store};
  std::unique_ptr<Server> ledger_server;
  std::optional<Client> to_ledger;
  std::optional<example::wallet::WalletService> wallet;
  std::unique_ptr<Server> wallet_server;
  std::optional<Client> app;
};

}  // namespace

TEST_CASE("L3: a payment that the ledger does not answer ends at the wallet's two seconds to the nanosecond, its outcome unknown") {
  Lab lab;
  lab.store.holds = true;
  const auto paying = lab.Pay("slow");
  REQUIRE(Eventually([&] { return lab.store.transfers == 1; }));
  lab.time->Advance(2s - 1ns);
  CHECK_FALSE(paying->ended);
  lab.time->Advance(1ns);
  REQUIRE(Eventually([&] { return paying->ended.load(); }));
  CHECK(paying->status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
  CHECK(ReasonOf(paying->status) == Refusal::OUTCOME_UNKNOWN);

  // The app repeats it, as it is told to.
  lab.store.Release();
  const auto again = lab.Pay("slow");
  REQUIRE(Eventually([&] { return again->ended.load(); }));
  CHECK(again->status.ok());
}

TEST_CASE("K1, L4: a payment is tried again after the backoff, and not before") {
  Lab lab;
  lab.store.refuses = true;
  const auto paying = lab.Pay("retried");
  REQUIRE(lab.time->WaitForTimer(lab.time->Now() + 100ms));  // the backoff, at most its base
  CHECK(lab.store.transfers == 1);
  CHECK_FALSE(paying->ended);
  lab.store.refuses = false;
  lab.time->Advance(100ms);
  REQUIRE(Eventually([&] { return paying->ended.load(); }));
  CHECK(paying->status.ok());
  CHECK(lab.store.transfers == 2);
}

TEST_CASE("B2: while the breaker is open payments are refused without asking the ledger, and after ten seconds they pass") {
  Lab lab(1);
  lab.store.refuses = true;
  const auto pay = [&](const std::string& id) {
    const auto paying = lab.Pay(id);
    REQUIRE(Eventually([&] { return paying->ended.load(); }));
    return paying->status;
  };
  for (int i = 0; i < 5; ++i) CHECK(ReasonOf(pay("refused" + std::to_string(i))) == Refusal::OUTCOME_UNKNOWN);
  lab.store.refuses = false;
  lab.time->Advance(10s - 1ns);
  CHECK(ReasonOf(pay("rejected")) == Refusal::LEDGER_UNAVAILABLE);
  CHECK(lab.store.transfers == 5);
  lab.time->Advance(1ns);
  CHECK(pay("probe").ok());
  CHECK(lab.store.transfers == 6);
}

TEST_CASE("S8: a watch ends with the wallet's own status ten seconds after the ledger was lost, and not before") {
  Watcher watcher;  // outlives the client that it belongs to
  Lab lab;
  ::wallet::v1::WatchBalanceRequest request;
  request.set_account("bob");
  lab.app->Open(PENSTOCK_METHOD(Wallet, WatchBalance), request, {}, watcher);
  REQUIRE(Eventually([&] { return watcher.version() == 1; }));
  lab.LoseLedger();
  const TimePoint lost = lab.time->Now();
  lab.time->AdvanceTo(lost + 10s - 1ns);
  CHECK_FALSE(watcher.ended());
  lab.time->AdvanceTo(lost + 10s);
  REQUIRE(Eventually([&] { return watcher.ended(); }));
  CHECK(watcher.status().error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK(watcher.status().error_message() == "the ledger can't be reached");
  CHECK(ReasonOf(watcher.status()) == Refusal::LEDGER_UNAVAILABLE);
}

TEST_CASE("S8: a ledger that comes back within ten seconds goes on with the watch where it stopped") {
  Watcher watcher;  // outlives the client that it belongs to
  Lab lab;
  ::wallet::v1::WatchBalanceRequest request;
  request.set_account("bob");
  lab.app->Open(PENSTOCK_METHOD(Wallet, WatchBalance), request, {}, watcher);
  REQUIRE(Eventually([&] { return watcher.version() == 1; }));
  const std::string address = "127.0.0.1:" + std::to_string(lab.ledger_server->port());
  lab.LoseLedger();
  lab.store.version = 2;
  lab.ledger_server = Serve(lab.ledger, address, lab.time);
  // However often the backoff is waited out meanwhile: short of the limit.
  for (int i = 0; i < 90 && watcher.version() < 2; ++i) {
    lab.time->Advance(100ms);
    Eventually([&] { return watcher.version() == 2 || watcher.ended(); }, 100ms);
  }
  CHECK(watcher.version() == 2);
  CHECK_FALSE(watcher.ended());
}

}  // namespace penstock::test
