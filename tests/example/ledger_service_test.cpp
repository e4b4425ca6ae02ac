// The ledger's service over gRPC, in one process, asked by a plain stub.

#include <doctest/doctest.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ledger/service.h"
#include "ledger/sqlite_store.h"
#include "penstock/server/server.h"
#include "penstock/testing/certificates.h"
#include "support/eventually.h"

namespace penstock::test {

namespace {

using namespace std::chrono_literals;
using example::ledger::AccountRecord;
using example::ledger::Done;
using example::ledger::Limits;
using example::ledger::Store;
using example::ledger::StoreError;
using example::ledger::StoreProblem;
using example::ledger::StoreResult;
using example::ledger::Transferred;
using example::ledger::TransferOrder;
using ::ledger::v1::Account;
using ::ledger::v1::Ledger;

struct Serving {
  explicit Serving(Store& store) : service(store) {
    auto made = Server::Create({.address = "127.0.0.1:0", .plaintext = true, .drain = {}}, {&service});
    REQUIRE_MESSAGE(made.ok(), made.error().message());
    server = std::move(made).value();
    stub = Ledger::NewStub(grpc::CreateChannel("127.0.0.1:" + std::to_string(server->port()), grpc::InsecureChannelCredentials()));
  }
  example::ledger::LedgerService service;
  std::unique_ptr<Server> server;
  std::unique_ptr<Ledger::Stub> stub;
};

struct SqliteLab {
  SqliteLab() {
    auto opened = example::ledger::OpenSqlite({.path = folder.path() + "/ledger.db"});
    REQUIRE(opened.index() == 0);
    store = std::move(std::get<0>(opened));
    store->CreateAccount("alice", 100);
    store->CreateAccount("bob", 0);
    serving.emplace(*store);
  }
  Ledger::Stub& stub() { return *serving->stub; }

  grpc::Status Transfer(const std::string& key, const std::string& from, const std::string& to, std::int64_t amount) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + 30s);
    ::ledger::v1::TransferRequest request;
    request.set_idempotency_key(key);
    request.set_from(from);
    request.set_to(to);
    request.set_amount(amount);
    ::ledger::v1::TransferResponse response;
    return stub().Transfer(&context, request, &response);
  }

  testing::TemporaryFolder folder;
  std::unique_ptr<Store> store;
  std::optional<Serving> serving;
};

// A database that answers nobody before he goes away, as one does that waits for a lock.
class HangingStore final : public Store {
 public:
  void Get(std::string, Limits limits, Done<AccountRecord> done) override {
    ++asked;
    Hang(limits.stop, std::move(done));
  }
  void Transfer(TransferOrder, Limits, Done<Transferred>) override {}
  StoreResult<AccountRecord> CreateAccount(const std::string& id, std::int64_t balance) override { return AccountRecord{id, balance, 1}; }
  std::unique_ptr<example::ledger::Watch> WatchChanges(std::function<void(const std::string&)>) override {
    return std::make_unique<example::ledger::Watch>();
  }

  std::atomic<int> asked{0};
  std::atomic<int> given_up{0};

 private:
  void Hang(const std::stop_token& stop, Done<AccountRecord> done) {
    auto answer = [this, done = std::move(done)]() mutable {
      ++given_up;
      const auto once = std::exchange(done, nullptr);  // it holds its call
      once(StoreError{StoreProblem::kCancelled, "the caller went away"});
    };
    std::lock_guard lock(mutex_);
    hanging_.push_back(std::make_unique<std::stop_callback<std::function<void()>>>(stop, std::move(answer)));
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<std::stop_callback<std::function<void()>>>> hanging_;
};

}  // namespace

TEST_CASE("ledger: a transfer that makes no sense is refused, and the store's answers are statuses") {
  SqliteLab lab;
  CHECK(lab.Transfer("", "alice", "bob", 1).error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(lab.Transfer("k", "alice", "bob", 0).error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(lab.Transfer("k", "alice", "alice", 1).error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(lab.Transfer("k", "alice", "bob", 5).ok());
  CHECK(lab.Transfer("k", "alice", "bob", 5).ok());
  CHECK(lab.Transfer("k", "alice", "bob", 6).error_code() == grpc::StatusCode::ALREADY_EXISTS);
  CHECK(lab.Transfer("l", "alice", "bob", 96).error_code() == grpc::StatusCode::FAILED_PRECONDITION);
  CHECK(lab.Transfer("m", "alice", "carol", 1).error_code() == grpc::StatusCode::NOT_FOUND);
  lab.store->CreateAccount("rich", std::numeric_limits<std::int64_t>::max());
  CHECK(lab.Transfer("n", "alice", "rich", 1).error_code() == grpc::StatusCode::OUT_OF_RANGE);
}

TEST_CASE("ledger: a name with a NUL in it is refused wherever it stands, since PostgreSQL would take it for another") {
  SqliteLab lab;
  const std::string nul("k\0", 2);
  CHECK(lab.Transfer(nul, "alice", "bob", 1).error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(lab.Transfer("k", std::string("alice\0", 6), "bob", 1).error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(lab.Transfer("k", "alice", std::string("bob\0x", 5), 1).error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  const auto limited = [] {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(std::chrono::system_clock::now() + 30s);
    return context;
  };
  Account account;
  ::ledger::v1::GetAccountRequest get;
  get.set_id(std::string("alice\0", 6));
  CHECK(lab.stub().GetAccount(limited().get(), get, &account).error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  ::ledger::v1::WatchAccountRequest watch;
  watch.set_id(get.id());
  const auto watch_context = limited();
  CHECK(lab.stub().WatchAccount(watch_context.get(), watch)->Finish().error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  ::ledger::v1::ReconcileRequest ask;
  ask.mutable_expected()->set_id(get.id());
  const auto reconcile_context = limited();
  const auto reconcile = lab.stub().Reconcile(reconcile_context.get());
  CHECK(reconcile->Write(ask));
  CHECK(reconcile->Finish().error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(lab.Transfer("k", "alice", "bob", 1).ok());  // the key is free
}

TEST_CASE("ledger: Reconcile answers each question in turn, also about an account that there is none of, and ends with its caller") {
  SqliteLab lab;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + 30s);
  auto stream = lab.stub().Reconcile(&context);
  const auto ask = [&](const std::string& id, std::int64_t balance, std::int64_t version) {
    ::ledger::v1::ReconcileRequest request;
    request.mutable_expected()->set_id(id);
    request.mutable_expected()->set_balance(balance);
    request.mutable_expected()->set_version(version);
    ::ledger::v1::ReconcileResponse response;
    CHECK(stream->Write(request));
    CHECK(stream->Read(&response));
    return response;
  };
  CHECK(ask("alice", 100, 1).equal());
  CHECK_FALSE(ask("alice", 99, 1).equal());
  CHECK_FALSE(ask("alice", 100, 2).equal());
  CHECK(ask("bob", 7, 1).actual().balance() == 0);
  const auto unknown = ask("carol", 0, 1);
  CHECK_FALSE(unknown.equal());
  CHECK_FALSE(unknown.has_actual());
  CHECK(stream->WritesDone());
  ::ledger::v1::ReconcileResponse none;
  CHECK_FALSE(stream->Read(&none));
  CHECK(stream->Finish().ok());
}

TEST_CASE("ledger: WatchAccount begins with the account as it is, or behind a version, and refuses an unknown account") {
  SqliteLab lab;
  const auto watch = [&](const std::string& id, std::int64_t after_version, const std::function<void(grpc::ClientReader<Account>&)>& read) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + 30s);
    ::ledger::v1::WatchAccountRequest request;
    request.set_id(id);
    request.set_after_version(after_version);
    auto stream = lab.stub().WatchAccount(&context, request);
    read(*stream);
    if (id != "carol") context.TryCancel();
    Account rest;
    while (stream->Read(&rest)) {
    }
    return stream->Finish();
  };
  Account account;
  CHECK(watch("alice", 0, [&](auto& stream) { CHECK(stream.Read(&account)); }).error_code() == grpc::StatusCode::CANCELLED);
  CHECK(account.balance() == 100);
  CHECK(account.version() == 1);
  watch("alice", 1, [&](auto& stream) {
    CHECK(lab.Transfer("k", "alice", "bob", 1).ok());
    CHECK(stream.Read(&account));
    CHECK(account.version() == 2);
  });
  CHECK(watch("carol", 0, [&](auto& stream) { CHECK_FALSE(stream.Read(&account)); }).error_code() == grpc::StatusCode::NOT_FOUND);
}

TEST_CASE("V5: watches and reconciliations that wait for the database give their query up when their caller goes, or the server does") {
  HangingStore store;
  std::optional<Serving> serving(store);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<Account>>> watches;
  std::vector<std::unique_ptr<grpc::ClientReaderWriter<::ledger::v1::ReconcileRequest, ::ledger::v1::ReconcileResponse>>> others;
  for (int i = 0; i < 10; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    if (i % 2 == 0) {
      watches.push_back(serving->stub->WatchAccount(contexts.back().get(), {}));
    } else {
      others.push_back(serving->stub->Reconcile(contexts.back().get()));
      CHECK(others.back()->Write({}));
    }
  }
  REQUIRE(Eventually([&] { return store.asked == 10; }));
  for (int i = 0; i < 6; ++i) contexts[static_cast<std::size_t>(i)]->TryCancel();
  CHECK(Eventually([&] { return store.given_up == 6; }));
  CHECK(Eventually([&] { return serving->server->counts().in_flight == 4; }));
  serving->server->Shutdown();
  CHECK(serving->server->Wait() == 0);
  CHECK(store.given_up == 10);
  for (const auto& watch : watches) CHECK_FALSE(watch->Finish().ok());
  for (const auto& other : others) CHECK_FALSE(other->Finish().ok());
}

}  // namespace penstock::test
