// The calls that docs/calling.md shows, made: each listing there stands in this file.
#include <doctest/doctest.h>

#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "ledger/v1/ledger.grpc.pb.h"
#include "penstock/client/client.h"
#include "penstock/server/auth.h"
#include "penstock/server/server.h"
#include "penstock/testing/certificates.h"

namespace {

using namespace std::chrono_literals;

constexpr auto kGetAccount = PENSTOCK_METHOD(ledger::v1::Ledger, GetAccount);

// Aborts the first attempt of each GetAccount of the account "raced"; Transfer asks another ledger.
class LedgerService final : public penstock::Service<ledger::v1::Ledger> {
 public:
  grpc::ServerUnaryReactor* GetAccount(grpc::CallbackServerContext* context, const ledger::v1::GetAccountRequest* request,
                                       ledger::v1::Account* account) override {
    return Handle(context, [=, this]() -> grpc::Status {
      if (request->id() == "raced" && raced++ % 2 == 0) return {grpc::ABORTED, "lost a race"};
      account->set_id(request->id());
      return grpc::Status::OK;
    });
  }
  grpc::ServerUnaryReactor* Transfer(grpc::CallbackServerContext* context, const ledger::v1::TransferRequest* transfer,
                                     ledger::v1::TransferResponse* response) override {
    ledger::v1::GetAccountRequest request;
    request.set_id(transfer->from());
    return Handle(context, [&](penstock::Reply reply) {
      auto kept = std::make_shared<penstock::Reply>(std::move(reply));
      auto callback = [kept, response](const penstock::CallResult& result, ledger::v1::Account& account) {
        *response->mutable_from() = account;
        kept->Finish(result.status);
      };
      auto later = [this](const penstock::CallResult& result, ledger::v1::Account&) { outlived.set_value(result.ok()); };
      penstock::Client* ledger = next;
      const auto method = kGetAccount;
      if (transfer->amount() == 0) {
        ledger->Call(method, request, {.parent = context, .detached = true, .timeout = 30s}, later);
        kept->Finish(grpc::Status::OK);
      } else {
        ledger->Call(method, request, {.parent = context}, callback);    // what the handler was given
      }
    });
  }

  penstock::Client* next = nullptr;
  std::atomic<int> raced{0};
  std::promise<bool> outlived;
};

// A ledger over TLS, and what its clients need to know.
struct Ledger {
  explicit Ledger(penstock::ServerSettings settings = {}) {
    settings.address = "127.0.0.1:0";
    if (!settings.plaintext) settings.tls = penstock::Tls{.certificate = identity.certificate, .key = identity.key};
    settings.drain = 0s;
    auto made = penstock::Server::Create(std::move(settings), {&service});
    REQUIRE_MESSAGE(made.ok(), made.error().message());
    server = *std::move(made);
    address = "127.0.0.1:" + std::to_string(server->port());
  }

  const penstock::testing::CertificateAuthority authority{};
  const penstock::testing::Identity identity = authority.Issue();
  LedgerService service;
  std::unique_ptr<penstock::Server> server;
  std::string address;
};

std::promise<std::string> first_call;  // what the first call came to: empty, or why it failed
void Show(const ledger::v1::Account& /*account*/) { first_call.set_value(""); }
void Log(const std::string& text) { first_call.set_value(text); }

// docs/calling.md, the first call.
std::string Main(const std::string& address, const std::string& ca, const ledger::v1::GetAccountRequest& request,
                 std::optional<penstock::Client>& kept) {
  const auto Fail = [](const std::string& why) { return why; };
  auto ledger = penstock::Client::Create({.address = address, .tls = penstock::Tls{.roots = ca}});  // "ledger:9090"
  if (!ledger.ok()) return Fail(ledger.error().message());

  ledger->Call(PENSTOCK_METHOD(ledger::v1::Ledger, GetAccount), request, {},
               [](const penstock::CallResult& result, ledger::v1::Account& account) {
                 result.ok() ? Show(account) : Log(result.status.error_message());
               });
  kept = *std::move(ledger);
  return {};
}

// docs/calling.md, a client that is kept.
class Wallet {
 public:
  explicit Wallet(penstock::Client ledger) : ledger_(std::move(ledger)) {}

  bool Reaches(const std::string& id) {
    ledger::v1::GetAccountRequest request;
    request.set_id(id);
    return ledger_.CallAndWait(kGetAccount, request).ok();
  }

 private:
  penstock::Client ledger_;
};

class Poll final : public penstock::UnaryReactor<ledger::v1::GetAccountRequest, ledger::v1::Account> {
 public:
  // Last of all: it may be started again, or deleted, in here.
  void OnDone(const penstock::CallResult& result) override { ended.set_value(result.ok()); }

  std::promise<bool> ended;
};

penstock::Client Connect(const Ledger& server, penstock::ClientSettings settings = {}) {
  settings.address = server.address;
  settings.tls = penstock::Tls{.roots = server.authority.certificate()};
  auto client = penstock::Client::Create(std::move(settings));
  REQUIRE_MESSAGE(client.ok(), client.error().message());
  return *std::move(client);
}

}  // namespace

TEST_CASE("L15: the first call") {
  Ledger server;
  std::optional<penstock::Client> client;
  CHECK(Main(server.address, server.authority.certificate(), {}, client) == "");
  REQUIRE(client.has_value());
  CHECK(first_call.get_future().get() == "");
  CHECK(client->CloseAndWait(std::chrono::steady_clock::now() + 30s));
  CHECK_FALSE(Main("dns:///ledger", "", {}, client).empty());
}

TEST_CASE("L1: a client is moved out of its result into what keeps it") {
  Ledger server;
  const penstock::Tls tls{.roots = server.authority.certificate()};
  const std::string& address = server.address;
  penstock::Result<penstock::Client> ledger = penstock::Client::Create({.address = address, .tls = tls});
  REQUIRE(ledger.ok());
  Wallet wallet(*std::move(ledger));
  CHECK(wallet.Reaches("7"));
}

TEST_CASE("T3, V6: a token goes with one call, or with every call of a client, over TLS only") {
  const std::string token = "wallet's";
  penstock::ServerSettings guarded;
  guarded.authenticator = penstock::BearerTokens([](std::string_view sent) -> std::optional<penstock::Identity> {
    if (sent != "wallet's") return std::nullopt;
    return penstock::Identity{.scheme = "", .subject = "wallet", .attributes = {}};
  });
  Ledger server(guarded);
  penstock::Client client = Connect(server);
  penstock::Client* ledger = &client;
  const ledger::v1::GetAccountRequest request;
  CHECK(client.CallAndWait(kGetAccount, request).result.status.error_code() == grpc::UNAUTHENTICATED);
  std::promise<bool> ended;
  auto callback = [&](const penstock::CallResult& result, ledger::v1::Account&) { ended.set_value(result.ok()); };
  ledger->Call(kGetAccount, request, {.credentials = grpc::AccessTokenCredentials(token)}, callback);
  CHECK(ended.get_future().get());

  const penstock::Tls tls{.roots = server.authority.certificate()};
  const std::string& address = server.address;
  auto every = penstock::Client::Create(
      {.address = address, .tls = tls, .credentials = grpc::AccessTokenCredentials(token)});
  REQUIRE(every.ok());
  CHECK(every->CallAndWait(kGetAccount, request).ok());
  const auto stub = ledger::v1::Ledger::NewStub(every->GuardedChannel());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + 30s);
  ledger::v1::Account account;
  CHECK(stub->GetAccount(&context, request, &account).ok());

  penstock::ServerSettings open;
  open.plaintext = true;
  Ledger plain(open);
  auto without_tls = penstock::Client::Create({.address = plain.address, .plaintext = true});
  REQUIRE(without_tls.ok());
  const auto refused =
      without_tls->CallAndWait(kGetAccount, request, {.credentials = grpc::AccessTokenCredentials(token)}).result;
  CHECK(refused.status.error_code() == grpc::UNAUTHENTICATED);
  CHECK(refused.reason == penstock::EndReason::kStopped);
  CHECK(without_tls->CallAndWait(kGetAccount, request).ok());
}

TEST_CASE("R1: one call says why a client does not turn ready") {
  Ledger server;
  const penstock::testing::CertificateAuthority stranger("stranger");
  auto ledger = penstock::Client::Create({.address = server.address, .tls = penstock::Tls{.roots = stranger.certificate()}});
  REQUIRE(ledger.ok());
  const std::string why = ledger->CallAndWait(kGetAccount, {}).result.status.error_message();
  CHECK_MESSAGE(why.find("handshake failed") != std::string::npos, why);
}

TEST_CASE("L8: a handle cancels, once the call has ended too") {
  Ledger server;
  penstock::Client client = Connect(server);
  penstock::Client* ledger = &client;
  const ledger::v1::GetAccountRequest request;
  std::promise<void> ended;
  auto callback = [&](const penstock::CallResult&, ledger::v1::Account&) { ended.set_value(); };
  penstock::CallHandle call = ledger->Call(kGetAccount, request, {}, callback);
  call.Cancel();  // any thread, any time, any number of times
  ended.get_future().get();
  call.Cancel();
}

TEST_CASE("L10: a handler hands its call down, and detaches what is to outlive it") {
  Ledger leaf;
  Ledger middle;
  penstock::Client to_leaf = Connect(leaf);
  middle.service.next = &to_leaf;
  penstock::Client client = Connect(middle);
  ledger::v1::TransferRequest transfer;
  transfer.set_from("7");
  transfer.set_amount(1);
  constexpr auto kTransfer = PENSTOCK_METHOD(ledger::v1::Ledger, Transfer);
  const auto waited = client.CallAndWait(kTransfer, transfer);
  CHECK(waited.ok());
  CHECK(waited.response.from().id() == "7");
  transfer.set_amount(0);
  CHECK(client.CallAndWait(kTransfer, transfer).ok());
  CHECK(middle.service.outlived.get_future().get());
}

TEST_CASE("C1, L16: a method's own settings, and a Classify of one's own") {
  Ledger server;
  const penstock::Tls tls{.roots = server.authority.certificate()};
  const std::string& address = server.address;
  auto client = penstock::Client::Create({.address = address, .tls = tls,
      .methods = {{.method = PENSTOCK_METHOD(ledger::v1::Ledger, Transfer), .timeout = 500ms, .max_attempts = 2}}});
  CHECK(client.ok());

  penstock::ClientSettings settings;
  settings.classify = [](std::string_view method, const grpc::Status& status, const penstock::ServerMetadata& trailers) {
    // This service says ABORTED when a transaction lost a race: worth another try, and no sign of illness.
    if (status.error_code() == grpc::ABORTED) {
      return penstock::Classification{penstock::Decision::kRetry, penstock::Outcome::kSuccess, std::nullopt};
    }
    return penstock::DefaultClassify(method, status, trailers);
  };
  penstock::Client own = Connect(server, std::move(settings));
  ledger::v1::GetAccountRequest request;
  request.set_id("raced");
  const auto waited = own.CallAndWait(kGetAccount, request);
  CHECK(waited.ok());
  CHECK(waited.result.attempts == 2);
  CHECK(own.circuit_totals().failures == 0);
}

TEST_CASE("L11, L18: a reactor of one's own, and the blocking form") {
  Ledger server;
  penstock::Client client = Connect(server);
  Poll poll;
  poll.request().set_id("7");
  client.Start(PENSTOCK_METHOD(ledger::v1::Ledger, GetAccount), poll);
  CHECK(poll.ended.get_future().get());
  CHECK(poll.response().id() == "7");
  CHECK(client.CallAndWait(kGetAccount, {}).ok());
  CHECK(client.CloseAndWait(std::chrono::steady_clock::now() + 30s));
}
