// The examples of docs/serving.md, and that they do what it says.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <iostream>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "ledger/v1/ledger.grpc.pb.h"
#include "penstock/client/client.h"
#include "penstock/server/auth.h"
#include "penstock/server/server.h"
#include "support/eventually.h"
#include "support/program.h"

namespace {

using namespace std::chrono_literals;
using ledger::v1::Account;
using ledger::v1::GetAccountRequest;
using ledger::v1::Ledger;
using ledger::v1::TransferRequest;
using ledger::v1::TransferResponse;
using ledger::v1::WatchAccountRequest;

class AccountWatch;

// Accounts, and those who watch them.
class Store {
 public:
  bool Get(const std::string& id, Account* account) {
    std::lock_guard lock(mutex_);
    const auto found = accounts_.find(id);
    if (found != accounts_.end()) *account = found->second;
    return found != accounts_.end();
  }
  void Put(const Account& account);
  bool Watch(const std::string& id, AccountWatch& watch);
  void Unwatch(AccountWatch& watch);

 private:
  std::mutex mutex_;
  std::map<std::string, Account> accounts_;
  std::map<AccountWatch*, std::string> watches_;
};

class LedgerService final : public penstock::Service<Ledger> {
 public:
  explicit LedgerService(Store& store) : store_(store) {}

  grpc::ServerUnaryReactor* GetAccount(grpc::CallbackServerContext* context, const GetAccountRequest* request,
                                       Account* account) override {
    return Handle(context, [&]() -> grpc::Status {
      if (!store_.Get(request->id(), account)) return {grpc::StatusCode::NOT_FOUND, "no such account"};
      return grpc::Status::OK;
    });
  }

 private:
  Store& store_;
};

int Serve(std::string address, penstock::Tls tls) {
  Store store;
  LedgerService service(store);
  auto server = penstock::Server::Create({.address = std::move(address), .tls = std::move(tls)}, {&service});
  if (!server.ok()) {
    std::cerr << server.error().message() << "\n";
    return 2;
  }
  const int code = (*server)->Run();
  if (code != 0) std::_Exit(code);  // a handler may still run: destroy nothing under it
  return code;
}

// Sends the newest state of an account, one write at a time.
class AccountWatch final : public penstock::ServerWriteReactor<Account> {
 public:
  AccountWatch(Store& store, const std::string& id) : store_(store) {
    if (!store_.Watch(id, *this)) throw grpc::Status(grpc::StatusCode::NOT_FOUND, "no such account");
  }

  // The store calls this under the lock that Unwatch() takes too, so the reactor is alive.
  void Changed(const Account& account) {
    std::lock_guard lock(mutex_);
    newest_ = account;
    Send();
  }

 private:
  void Send() {
    if (writing_ || !newest_) return;
    sent_ = *std::exchange(newest_, std::nullopt);
    writing_ = StartWrite(&sent_);  // false: the stream is ending, and OnDone is on its way
  }
  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    writing_ = false;
    if (ok) Send();
  }
  void OnCancelled() override {}                     // the client went; the stream is finished once this returns
  void OnShutdown() override {}                      // the server goes; the stream is finished once this returns
  void OnDone() override { store_.Unwatch(*this); }  // the last one; deleted after it

  Store& store_;
  std::mutex mutex_;
  std::optional<Account> newest_;
  Account sent_;
  bool writing_ = false;
};

void Store::Put(const Account& account) {
  std::lock_guard lock(mutex_);
  accounts_[account.id()] = account;
  for (const auto& [watch, id] : watches_) {
    if (id == account.id()) watch->Changed(account);
  }
}

bool Store::Watch(const std::string& id, AccountWatch& watch) {
  std::lock_guard lock(mutex_);
  const auto found = accounts_.find(id);
  if (found == accounts_.end()) return false;
  watches_[&watch] = id;
  watch.Changed(found->second);
  return true;
}

void Store::Unwatch(AccountWatch& watch) {
  std::lock_guard lock(mutex_);
  watches_.erase(&watch);
}

constexpr auto kTransfer = PENSTOCK_METHOD(Ledger, Transfer);

class Replica final : public penstock::Service<Ledger> {
 public:
  Replica(Store& store, penstock::Client& primary, penstock::WorkPool& pool)
      : store_(store), primary_(primary), pool_(pool) {}

  // Asks another service first: answers when that has.
  grpc::ServerUnaryReactor* Transfer(grpc::CallbackServerContext* context, const TransferRequest* request,
                                     TransferResponse* response) override {
    return Handle(context, [&](penstock::Reply reply) {
      primary_.Call(kTransfer, *request, {.parent = context},
                    [response, reply = std::move(reply)](const penstock::CallResult& result, TransferResponse& answer) mutable {
                      *response = std::move(answer);
                      reply.Finish(result.status);
                    });
    });
  }

  // Blocks, so it runs on a pool; in steps, so that it ends when nobody waits any more.
  grpc::ServerUnaryReactor* GetAccount(grpc::CallbackServerContext* context, const GetAccountRequest* request,
                                       Account* account) override {
    return HandleOn(pool_, context, [=, this]() -> grpc::Status {
      while (!ReadPart(request->id(), account)) {
        if (context->IsCancelled()) return grpc::Status::CANCELLED;
      }
      return grpc::Status::OK;
    });
  }

  // A stream is a reactor of its own.
  grpc::ServerWriteReactor<Account>* WatchAccount(grpc::CallbackServerContext* context,
                                                  const WatchAccountRequest* request) override {
    return Start<AccountWatch>(context, store_, request->id());
  }

  std::atomic<int> reading{0};

 private:
  // A slow disk: whether that was all of it.
  bool ReadPart(const std::string& id, Account* account) {
    ++reading;
    std::this_thread::sleep_for(5ms);
    --reading;
    return store_.Get(id, account);
  }

  Store& store_;
  penstock::Client& primary_;
  penstock::WorkPool& pool_;
};

// Who may call, by token.
struct Tokens {
  std::optional<penstock::Identity> Find(std::string_view token) const {
    if (token == "wallet's") return penstock::Identity{.scheme = "", .subject = "wallet", .attributes = {}};
    if (token == "intern's") return penstock::Identity{.scheme = "", .subject = "intern", .attributes = {{"role", "reader"}}};
    return std::nullopt;
  }
};

penstock::ServerSettings Guarded(penstock::ServerSettings settings, const Tokens& tokens) {
  settings.authenticator = penstock::BearerTokens([&tokens](std::string_view token) { return tokens.Find(token); });
  settings.filters = {[](penstock::ServerCall& call) {
    const bool reader = call.identity().attributes.contains("role");
    if (reader && call.method() == "/ledger.v1.Ledger/Transfer") {
      return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "readers move no money");
    }
    return grpc::Status::OK;
  }};
  settings.access_log = [](const penstock::AccessLogEntry& entry) {
    std::clog << entry.method << ' ' << entry.peer << ' ' << entry.identity.subject << ' ' << entry.end.code << '\n';
  };
  return settings;
}

penstock::ServerSettings ForTheWalletOnly(penstock::ServerSettings settings) {
  settings.authenticator = penstock::MutualTlsIdentity([](const penstock::Identity& who) { return who.subject == "wallet.example"; });
  return settings;
}

class ApiKeys final : public penstock::Authenticator {
 public:
  grpc::Status Authenticate(penstock::ServerCall& call, penstock::Identity& identity) override {
    const auto key = call.client_metadata().find("x-api-key");
    if (key == call.client_metadata().end()) return {grpc::StatusCode::UNAUTHENTICATED, "x-api-key is missing"};
    if (key->second != "the wallet's") return {grpc::StatusCode::UNAUTHENTICATED, "x-api-key is unknown"};
    identity = {.scheme = "api-key", .subject = "wallet", .attributes = {{"role", "reader"}}};
    return grpc::Status::OK;
  }
};

class PooledLedger final : public penstock::Service<Ledger> {
 public:
  PooledLedger() { PoolMessages(&PooledLedger::SetMessageAllocatorFor_GetAccount); }
};

penstock::ServerSettings Local() {
  penstock::ServerSettings settings{.address = "127.0.0.1:0"};
  settings.plaintext = true;
  settings.drain = settings.grace = 0s;
  return settings;
}

std::unique_ptr<penstock::Server> Started(penstock::ServerSettings settings, penstock::AnyService& service) {
  auto server = penstock::Server::Create(std::move(settings), {&service});
  if (!server.ok()) FAIL(server.error().message());
  return *std::move(server);
}

penstock::Client ClientOf(const penstock::Server& server) {
  auto client = penstock::Client::Create(
      {.address = "127.0.0.1:" + std::to_string(server.port()), .plaintext = true, .max_attempts = 1});
  if (!client.ok()) FAIL(client.error().message());
  return *std::move(client);
}

GetAccountRequest For(const char* id) {
  GetAccountRequest request;
  request.set_id(id);
  return request;
}

Account Alice(std::int64_t version) {
  Account account;
  account.set_id("alice");
  account.set_version(version);
  return account;
}

constexpr auto kGetAccount = PENSTOCK_METHOD(Ledger, GetAccount);

using penstock::test::Eventually;

TEST_CASE("docs/serving.md: the first server answers, and says what is wrong where it cannot start") {
  CHECK(Serve("ledger", {}) == 2);
  Store store;
  store.Put(Alice(1));
  LedgerService service(store);
  auto server = Started(Local(), service);
  auto client = ClientOf(*server);
  CHECK(client.CallAndWait(kGetAccount, For("alice")).response.version() == 1);
  CHECK(client.CallAndWait(kGetAccount, For("bob")).result.status.error_code() == grpc::StatusCode::NOT_FOUND);
  PooledLedger pooled;
  auto other = Started(ForTheWalletOnly(Local()), pooled);
  CHECK(ClientOf(*other).CallAndWait(kGetAccount, For("alice")).result.status.error_code() == grpc::StatusCode::UNIMPLEMENTED);
}

TEST_CASE("docs/serving.md: a reply, a handler on a pool that stops when nobody waits, a stream") {
  Store store;
  store.Put(Alice(1));
  LedgerService primary_service(store);  // implements no Transfer
  auto primary_server = Started(Local(), primary_service);
  auto primary = ClientOf(*primary_server);
  penstock::WorkPool pool({.threads = 2});
  Replica replica(store, primary, pool);
  auto server = Started(Local(), replica);
  auto client = ClientOf(*server);
  CHECK(client.CallAndWait(kTransfer, {}).result.status.error_code() == grpc::StatusCode::UNIMPLEMENTED);
  CHECK(client.CallAndWait(kGetAccount, For("alice")).response.version() == 1);
  CHECK(client.CallAndWait(kGetAccount, For("bob"), {.timeout = 50ms}).result.status.error_code() ==
        grpc::StatusCode::DEADLINE_EXCEEDED);
  CHECK(Eventually([&] { return pool.pending() == 0; }));  // it was told, and stopped

  std::atomic<std::int64_t> seen{0};
  WatchAccountRequest request;
  request.set_id("alice");
  auto subscription = client.Subscribe(PENSTOCK_METHOD(Ledger, WatchAccount), request,
                                       {.on_message = [&](Account& account) { seen = account.version(); }});
  CHECK(Eventually([&] { return seen == 1; }));
  store.Put(Alice(2));
  CHECK(Eventually([&] { return seen == 2; }));
}

TEST_CASE("docs/serving.md, V3: a process whose handler is stuck on a pool ends with 1 within drain, grace and a second") {
  const std::string path = (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "integration/pool_program").string();
  penstock::test::Program program({path, "127.0.0.1:0"});
  const auto port = program.WaitForNumber("serving on port ");
  REQUIRE(port);
  auto client = penstock::Client::Create({.address = "127.0.0.1:" + std::to_string(*port), .plaintext = true, .timeout = 60s, .max_attempts = 1});
  REQUIRE(client.ok());
  std::promise<grpc::StatusCode> ended;
  client->Call(kGetAccount, For("alice"), {},
               [&](const penstock::CallResult& result, Account&) { ended.set_value(result.status.error_code()); });
  REQUIRE(program.WaitForNumber("reading "));
  const auto began = std::chrono::steady_clock::now();
  program.Signal(SIGTERM);
  CHECK(program.WaitForExit() == 1);
  const auto took = std::chrono::steady_clock::now() - began;
  CHECK(took >= 1s);
  CHECK(took < (std::getenv("PENSTOCK_FULL") != nullptr ? 2500ms : 20s));  // no drain, a second's grace; the handler takes 60 s
  CHECK(program.text().find("destroyed") == std::string::npos);
  CHECK(ended.get_future().get() == grpc::StatusCode::UNAVAILABLE);
}

TEST_CASE("docs/serving.md: who has no token is not heard, and a reader moves no money") {
  Store store;
  store.Put(Alice(1));
  LedgerService primary_service(store);
  auto primary_server = Started(Local(), primary_service);
  auto primary = ClientOf(*primary_server);
  penstock::WorkPool pool;
  Replica replica(store, primary, pool);
  Tokens tokens;
  auto server = Started(Guarded(Local(), tokens), replica);
  auto client = ClientOf(*server);
  const auto code = [&](auto method, const char* token) {
    penstock::CallOptions options;
    if (*token != '\0') options.metadata = {{"authorization", std::string("Bearer ") + token}};
    return client.CallAndWait(method, {}, std::move(options)).result.status.error_code();
  };
  CHECK(code(kTransfer, "") == grpc::StatusCode::UNAUTHENTICATED);
  CHECK(code(kTransfer, "intern's") == grpc::StatusCode::PERMISSION_DENIED);
  CHECK(code(kTransfer, "wallet's") == grpc::StatusCode::UNIMPLEMENTED);
}

TEST_CASE("docs/serving.md: an authenticator of one's own says who calls, or why not") {
  Store store;
  store.Put(Alice(1));
  LedgerService service(store);
  auto settings = Local();
  settings.authenticator = std::make_shared<ApiKeys>();
  settings.filters = {[](penstock::ServerCall& call) {
    CHECK(call.identity().subject == "wallet");
    CHECK(call.identity().authenticated());
    return grpc::Status::OK;
  }};
  auto server = Started(std::move(settings), service);
  auto client = ClientOf(*server);
  const auto call = [&](std::multimap<std::string, std::string> metadata) {
    penstock::CallOptions options;
    for (const auto& [key, value] : metadata) options.metadata.emplace_back(key, value);
    return client.CallAndWait(kGetAccount, For("alice"), std::move(options)).result.status;
  };
  CHECK(call({}).error_message() == "x-api-key is missing");
  CHECK(call({{"x-api-key", "a guess"}}).error_message() == "x-api-key is unknown");
  CHECK(call({{"x-api-key", "the wallet's"}}).ok());
}

}  // namespace
