// The wallet and the ledger as whole processes, replaced, killed and configured wrongly.

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"
#include "penstock/client/client.h"
#include "penstock/client/stream.h"
#include "penstock/testing/certificates.h"
#include "penstock/testing/router.h"
#include "support/postgres.h"
#include "support/program.h"
#include "wallet/v1/wallet.grpc.pb.h"

using namespace penstock;
using namespace std::chrono_literals;
using ::penstock::test::Postgres;
using ::penstock::test::Program;
using ::wallet::v1::Balance;
using ::wallet::v1::Refusal;
using ::wallet::v1::Wallet;

namespace {

// `tests/run --full` asks for the numbers of the rules; else a few of each.
int Runs(int few, int all) { return std::getenv("PENSTOCK_TEST_FULL") != nullptr ? all : few; }

bool Until(const std::function<bool()>& condition, std::chrono::milliseconds limit = 30s) {
  const auto until = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

struct Pod {
  Program program;
  std::uint16_t port;
};

// A ledger of replaceable pods behind one address, and a wallet that calls it.
class Setting {
 public:
  explicit Setting(std::string database = {}) : database_(database.empty() ? folder_.path() + "/ledger.db" : std::move(database)) {
    auto made = testing::Router::Create();
    REQUIRE(made.ok());
    router_ = *std::move(made);
    StartLedger();
    StartWallet();
  }

  void StartLedger() {
    Program program({LEDGER_PROGRAM, "--plaintext", "--address", "127.0.0.1:0", "--database", database_, "--accounts", "alice=100000,bob=0", "--drain-ms", "50"});
    const auto port = program.WaitForNumber("serving on port ");
    REQUIRE_MESSAGE(port.has_value(), program.text());
    ledgers_.push_back({std::move(program), static_cast<std::uint16_t>(*port)});
    router_->SetTargets({ledgers_.back().port});
  }

  void StartWallet(std::vector<std::string> more = {}) {
    std::vector<std::string> command{WALLET_PROGRAM, "--plaintext", "--address", "127.0.0.1:" + std::to_string(wallet_port_),
                                     "--ledger-address", router_->address(), "--drain-ms", "50", "--watch-give-up-ms", "1500"};
    command.insert(command.end(), more.begin(), more.end());
    wallet_.emplace(std::move(command));
    const auto port = wallet_->WaitForNumber("serving on port ");
    REQUIRE_MESSAGE(port.has_value(), wallet_->text());
    wallet_port_ = *port;
  }

  // A new pod takes over, and the old one is told to go. Its exit code.
  int ReplaceLedger() {
    StartLedger();
    Program& old = ledgers_.front().program;
    old.Signal(SIGTERM);
    const auto code = old.WaitForExit();
    REQUIRE_MESSAGE(code.has_value(), old.text());
    ledgers_.pop_front();
    return *code;
  }

  Client Caller(Duration timeout = 10s) {
    auto made = Client::Create({.address = "127.0.0.1:" + std::to_string(wallet_port_), .plaintext = true, .timeout = timeout});
    REQUIRE(made.ok());
    return *std::move(made);
  }

  Pod& ledger() { return ledgers_.back(); }
  Program& wallet() { return *wallet_; }
  testing::Router& router() { return *router_; }
  int wallet_port() const { return wallet_port_; }

 private:
  testing::TemporaryFolder folder_;
  std::string database_;
  std::unique_ptr<testing::Router> router_;
  std::deque<Pod> ledgers_;
  std::optional<Program> wallet_;
  int wallet_port_ = 0;
};

// Watches an account through the wallet, and notes whether the watch ever ends.
class Watcher final : public ClientReadReactor<Balance> {
 public:
  std::int64_t version() const { return version_; }
  bool ended() const { return ended_; }
  const grpc::Status& status() const { return status_; }

 private:
  void OnOpened() override { (void)StartRead(&balance_); }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    version_ = balance_.version();
    (void)StartRead(&balance_);
  }
  void OnDone(const CallResult& result) override {
    status_ = result.status;
    ended_ = true;
  }

  Balance balance_;
  std::atomic<std::int64_t> version_{0};
  std::atomic<bool> ended_{false};
  grpc::Status status_;
};

::wallet::v1::PayRequest Payment(const std::string& id, std::int64_t amount) {
  ::wallet::v1::PayRequest pay;
  pay.set_payment_id(id);
  pay.set_from("alice");
  pay.set_to("bob");
  pay.set_amount(amount);
  return pay;
}

Refusal::Reason ReasonOf(const grpc::Status& status) {
  ::wallet::v1::StatusDetails details;
  Refusal refusal;
  if (!details.ParseFromString(status.error_details()) || details.details_size() != 1 || !details.details(0).UnpackTo(&refusal)) {
    return Refusal::REASON_UNSPECIFIED;
  }
  return refusal.reason();
}

// A connection that never says anything: held in its handshake.
class Silent {
 public:
  explicit Silent(std::uint16_t port) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  }
  ~Silent() { close(socket_); }

 private:
  int socket_;
};

// Replaces the ledger again and again while `watches` watches are open: none ends, each sees every rollout's payment.
void RollOut(Setting& setting, int watches, int rollouts, bool hold_a_handshake) {
  Client caller = setting.Caller();
  std::vector<std::unique_ptr<Watcher>> watchers;
  for (int i = 0; i < watches; ++i) {
    watchers.push_back(std::make_unique<Watcher>());
    ::wallet::v1::WatchBalanceRequest request;
    request.set_account("bob");
    caller.Open(PENSTOCK_METHOD(Wallet, WatchBalance), request, {}, *watchers.back());
  }
  const auto all_saw = [&](std::int64_t version) {
    return Until([&] {
      for (const auto& watcher : watchers) {
        if (watcher->ended()) return true;
        if (watcher->version() < version) return false;
      }
      return true;
    });
  };
  CHECK(all_saw(1));
  static int payments = 0;
  for (int rollout = 0; rollout < rollouts; ++rollout) {
    CAPTURE(rollout);
    std::optional<Silent> silent;
    if (hold_a_handshake) silent.emplace(setting.ledger().port);
    CHECK(setting.ReplaceLedger() == 0);
    const auto paid = caller.CallAndWait(PENSTOCK_METHOD(Wallet, Pay), Payment("rollout" + std::to_string(payments++), 1));
    REQUIRE_MESSAGE(paid.ok(), paid.result.status.error_message());
    const auto balance = caller.CallAndWait(PENSTOCK_METHOD(Wallet, GetBalance), [] {
      ::wallet::v1::GetBalanceRequest request;
      request.set_account("bob");
      return request;
    }());
    REQUIRE(balance.ok());
    CHECK(all_saw(balance.response.version()));
    for (const auto& watcher : watchers) REQUIRE_MESSAGE(!watcher->ended(), watcher->status().error_message());
  }
  CHECK(caller.CloseAndWait(std::chrono::steady_clock::now() + 30s));
  for (const auto& watcher : watchers) CHECK(watcher->ended());
}

}  // namespace

TEST_CASE("S7, V4: no watch of the wallet ends while the ledger is replaced, on SQLite") {
  Setting setting;
  RollOut(setting, 8, Runs(3, 50), false);
  RollOut(setting, 64, Runs(1, 50), true);
}

TEST_CASE("S7, V4: no watch of the wallet ends while the ledger is replaced, on PostgreSQL") {
  Postgres postgres;
  Setting setting(postgres.connection());
  RollOut(setting, 8, Runs(1, 50), true);
  RollOut(setting, 64, Runs(1, 50), false);
}

TEST_CASE("S8: a ledger that is down ends a watch with the wallet's own status, and a payment with what is known") {
  Setting setting;
  Client caller = setting.Caller();
  Watcher watcher;
  ::wallet::v1::WatchBalanceRequest request;
  request.set_account("bob");
  caller.Open(PENSTOCK_METHOD(Wallet, WatchBalance), request, {}, watcher);
  REQUIRE(Until([&] { return watcher.version() == 1; }));
  setting.ledger().program.Signal(SIGKILL);
  setting.router().DropTarget(setting.ledger().port);
  CHECK(Until([&] { return watcher.ended(); }));
  CHECK(watcher.status().error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK(watcher.status().error_message() == "the ledger can't be reached");
  CHECK(ReasonOf(watcher.status()) == Refusal::LEDGER_UNAVAILABLE);
  const auto paid = caller.CallAndWait(PENSTOCK_METHOD(Wallet, Pay), Payment("down", 1));
  CHECK(paid.result.status.error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK(caller.CloseAndWait(std::chrono::steady_clock::now() + 30s));
}

TEST_CASE("C9: the ledger's refusals reach an app in the wallet's words, with their reason") {
  Setting setting;
  Client caller = setting.Caller();
  const auto pay = [&](::wallet::v1::PayRequest payment) { return caller.CallAndWait(PENSTOCK_METHOD(Wallet, Pay), std::move(payment)); };
  const auto first = pay(Payment("a", 10));
  REQUIRE_MESSAGE(first.ok(), first.result.status.error_message());
  CHECK(first.response.balance() == 99990);
  CHECK_FALSE(first.response.repeated());
  CHECK(pay(Payment("a", 10)).response.repeated());
  CHECK(ReasonOf(pay(Payment("a", 11)).result.status) == Refusal::PAYMENT_ID_REUSED);
  CHECK(ReasonOf(pay(Payment("b", 1'000'000)).result.status) == Refusal::INSUFFICIENT_FUNDS);
  CHECK(ReasonOf(pay(Payment("c", -1)).result.status) == Refusal::BAD_REQUEST);
  auto unknown = Payment("d", 1);
  unknown.set_to("nobody");
  const auto refused = pay(unknown);
  CHECK(refused.result.status.error_code() == grpc::StatusCode::NOT_FOUND);
  CHECK(ReasonOf(refused.result.status) == Refusal::UNKNOWN_ACCOUNT);
}

TEST_CASE("C10: whatever is killed under load at whatever moment, the money adds up and no payment is doubled") {
  Setting setting;
  const int kills = Runs(6, 200);
  std::atomic<bool> stop{false};
  std::atomic<int> acknowledged{0};
  std::mutex callers_mutex;
  auto caller = std::make_shared<Client>(setting.Caller(2s));
  std::vector<std::thread> payers;
  for (int payer = 0; payer < 4; ++payer) {
    payers.emplace_back([&, payer] {
      for (int i = 0; !stop; ++i) {
        const std::string id = fmt::format("p{}-{}", payer, i);
        // As an app does: the same payment again until its outcome is known.
        for (bool known = false; !known;) {
          std::shared_ptr<Client> now;
          {
            std::lock_guard lock(callers_mutex);
            now = caller;
          }
          const auto paid = now->CallAndWait(PENSTOCK_METHOD(Wallet, Pay), Payment(id, 1));
          known = paid.ok();
          if (known) ++acknowledged;
        }
      }
    });
  }
  std::srand(42);
  for (int i = 0; i < kills; ++i) {
    const int before = acknowledged;
    CHECK(Until([&] { return acknowledged > before + std::rand() % 20; }));
    if (i % 2 == 0) {
      setting.ledger().program.Signal(SIGKILL);
      setting.router().DropTarget(setting.ledger().port);
      setting.StartLedger();
    } else {
      setting.wallet().Signal(SIGKILL);
      setting.wallet().WaitForExit();
      setting.StartWallet();
    }
  }
  stop = true;
  for (auto& payer : payers) payer.join();
  const auto balance = [&](const std::string& account) {
    ::wallet::v1::GetBalanceRequest request;
    request.set_account(account);
    const auto answered = caller->CallAndWait(PENSTOCK_METHOD(Wallet, GetBalance), request);
    REQUIRE_MESSAGE(answered.ok(), answered.result.status.error_message());
    return answered.response.balance();
  };
  CHECK(balance("alice") + balance("bob") == 100000);
  CHECK(balance("bob") == acknowledged);
}

TEST_CASE("R2: a wallet whose ledger has a wrong address never turns ready but is alive, and one that reaches it is ready") {
  Setting setting;
  const auto health = [](int port, const std::string& service) {
    auto stub = grpc::health::v1::Health::NewStub(grpc::CreateChannel("127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + 10s);
    context.set_wait_for_ready(true);
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(service);
    grpc::health::v1::HealthCheckResponse response;
    return stub->Check(&context, request, &response).ok() ? response.status() : grpc::health::v1::HealthCheckResponse::UNKNOWN;
  };
  CHECK(Until([&] { return health(setting.wallet_port(), "readiness") == grpc::health::v1::HealthCheckResponse::SERVING; }));

  Program lost({WALLET_PROGRAM, "--plaintext", "--address", "127.0.0.1:0", "--ledger-address", "127.0.0.1:1", "--drain-ms", "0"});
  const auto port = lost.WaitForNumber("serving on port ");
  REQUIRE(port.has_value());
  CHECK(health(*port, "liveness") == grpc::health::v1::HealthCheckResponse::SERVING);
  for (int i = 0; i < 20; ++i) CHECK(health(*port, "readiness") == grpc::health::v1::HealthCheckResponse::NOT_SERVING);
  lost.Signal(SIGTERM);
  CHECK(lost.WaitForExit() == 0);
}

TEST_CASE("T1: a program that is configured wrongly names every bad value and ends with 78") {
  Program ledger({LEDGER_PROGRAM, "--address", "", "--drain-ms", "soon", "--accounts", "alice"}, {"LEDGER_PLAINTEXT=perhaps"});
  CHECK(ledger.WaitForExit() == 78);
  for (const char* name : {"LEDGER_ADDRESS", "LEDGER_DRAIN_MS", "LEDGER_PLAINTEXT"}) {
    CAPTURE(ledger.text());
    CHECK(ledger.text().find(name) != std::string::npos);
  }
  Program wallet({WALLET_PROGRAM, "--ledger-address", "http://ledger", "--plaintext"});
  CHECK(wallet.WaitForExit() == 78);
  CHECK_MESSAGE(wallet.text().find("http://ledger") != std::string::npos, wallet.text());
  Program insecure({WALLET_PROGRAM, "--ledger-address", "ledger:9090"});
  CHECK(insecure.WaitForExit() == 78);
  CHECK(insecure.text().find("--plaintext") != std::string::npos);
}
