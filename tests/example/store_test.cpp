// The ledger's stores: the same cases for SQLite and PostgreSQL.

#include <doctest/doctest.h>
#include <libpq-fe.h>
#include <sqlite3.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ledger/postgres_store.h"
#include "ledger/sqlite_store.h"
#include "support/postgres.h"

using namespace example::ledger;
using namespace std::chrono_literals;

namespace {

constexpr auto kPatience = 30s;

struct SqliteBench {
  SqliteBench() : folder(std::filesystem::temp_directory_path() / ("penstock-store-" + std::to_string(getpid()) + "-" + std::to_string(++count))) {
    std::filesystem::create_directories(folder);
  }
  ~SqliteBench() { std::filesystem::remove_all(folder); }

  std::unique_ptr<Store> Open() {
    auto opened = OpenSqlite({.path = (folder / "ledger.db").string()});
    REQUIRE_MESSAGE(opened.index() == 0, (opened.index() == 1 ? std::get<1>(opened) : ""));
    return std::move(std::get<0>(opened));
  }

  static inline int count = 0;
  std::filesystem::path folder;
};

struct PostgresBench {
  std::unique_ptr<Store> Open() {
    auto opened = OpenPostgres({.connection = postgres.connection()});
    REQUIRE_MESSAGE(opened.index() == 0, (opened.index() == 1 ? std::get<1>(opened) : ""));
    return std::move(std::get<0>(opened));
  }
  penstock::test::Postgres postgres;
};

StoreResult<AccountRecord> Get(Store& store, const std::string& id, Limits limits = {}) {
  auto done = std::make_shared<std::promise<StoreResult<AccountRecord>>>();
  auto result = done->get_future();
  store.Get(id, limits, [done](StoreResult<AccountRecord> record) { done->set_value(std::move(record)); });
  REQUIRE(result.wait_for(kPatience) == std::future_status::ready);
  return result.get();
}

StoreResult<Transferred> Transfer(Store& store, TransferOrder order, Limits limits = {}) {
  auto done = std::make_shared<std::promise<StoreResult<Transferred>>>();
  auto result = done->get_future();
  store.Transfer(std::move(order), limits, [done](StoreResult<Transferred> moved) { done->set_value(std::move(moved)); });
  REQUIRE(result.wait_for(kPatience) == std::future_status::ready);
  return result.get();
}

template <class T>
StoreProblem ProblemOf(const StoreResult<T>& result) {
  REQUIRE(std::holds_alternative<StoreError>(result));
  return std::get<StoreError>(result).problem;
}

std::int64_t Balance(Store& store, const std::string& id) { return std::get<AccountRecord>(Get(store, id)).balance; }

}  // namespace

TEST_CASE_TEMPLATE("ledger store: a transfer moves money once, and its key answers again without moving", Bench, SqliteBench, PostgresBench) {
  Bench bench;
  auto store = bench.Open();
  CHECK(std::get<AccountRecord>(store->CreateAccount("alice", 100)) == AccountRecord{"alice", 100, 1});
  store->CreateAccount("bob", 0);
  CHECK(std::get<AccountRecord>(store->CreateAccount("alice", 7)).balance == 100);

  const auto moved = std::get<Transferred>(Transfer(*store, {"k1", "alice", "bob", 30}));
  CHECK(moved.from == AccountRecord{"alice", 70, 2});
  CHECK(moved.to == AccountRecord{"bob", 30, 2});
  CHECK_FALSE(moved.repeated);
  CHECK(std::get<Transferred>(Transfer(*store, {"k1", "alice", "bob", 30})).repeated);
  CHECK(Balance(*store, "alice") == 70);

  CHECK(ProblemOf(Transfer(*store, {"k1", "alice", "bob", 31})) == StoreProblem::kKeyReused);
  CHECK(ProblemOf(Transfer(*store, {"k2", "alice", "bob", 71})) == StoreProblem::kInsufficientFunds);
  CHECK(ProblemOf(Transfer(*store, {"k3", "alice", "nobody", 1})) == StoreProblem::kNotFound);
  CHECK(ProblemOf(Get(*store, "nobody")) == StoreProblem::kNotFound);
  CHECK(Balance(*store, "alice") + Balance(*store, "bob") == 100);
}

TEST_CASE_TEMPLATE("ledger store: an operation without time left, or whose caller is gone, does nothing", Bench, SqliteBench, PostgresBench) {
  Bench bench;
  auto store = bench.Open();
  store->CreateAccount("alice", 100);
  store->CreateAccount("bob", 0);
  CHECK(ProblemOf(Transfer(*store, {"k", "alice", "bob", 1}, {.deadline = std::chrono::steady_clock::now() - 1ms, .stop = {}})) == StoreProblem::kDeadline);
  std::stop_source gone;
  gone.request_stop();
  CHECK(ProblemOf(Get(*store, "alice", {.stop = gone.get_token()})) == StoreProblem::kCancelled);
  CHECK(Balance(*store, "alice") == 100);
}

TEST_CASE_TEMPLATE("ledger store: transfers in all directions at once, repeated at random, keep the sum", Bench, SqliteBench, PostgresBench) {
  Bench bench;
  auto store = bench.Open();
  auto other = bench.Open();  // another ledger on the same database
  constexpr int kAccounts = 4;
  for (int i = 0; i < kAccounts; ++i) store->CreateAccount("a" + std::to_string(i), 1000);
  std::atomic<int> left{400};
  std::atomic<int> unexpected{0};
  std::mt19937 random(7);
  std::promise<void> all;
  const int total = left;
  for (int i = 0; i < total; ++i) {
    const int key = static_cast<int>(random() % 300);
    TransferOrder order{"key" + std::to_string(key), "a" + std::to_string(key % kAccounts), "a" + std::to_string((key + 1 + key / 4 % 3) % kAccounts), key % 17};
    (i % 2 == 0 ? store : other)->Transfer(order, {}, [&](const StoreResult<Transferred>& result) {
      if (std::holds_alternative<StoreError>(result)) unexpected.fetch_add(1);
      if (left.fetch_sub(1) == 1) all.set_value();
    });
  }
  REQUIRE(all.get_future().wait_for(kPatience) == std::future_status::ready);
  CHECK(unexpected == 0);
  std::int64_t sum = 0;
  for (int i = 0; i < kAccounts; ++i) sum += Balance(*store, "a" + std::to_string(i));
  CHECK(sum == 1000 * kAccounts);
}

TEST_CASE_TEMPLATE("ledger store: a watch hears of a change that another process made, and of none once it is gone", Bench, SqliteBench, PostgresBench) {
  Bench bench;
  auto store = bench.Open();
  auto other = bench.Open();
  store->CreateAccount("alice", 100);
  store->CreateAccount("bob", 0);
  std::atomic<int> heard{0};
  auto watch = store->WatchChanges([&](const std::string& id) { heard += id == "bob"; });
  // Until the listener is there a change may go unheard, and is then announced as "any"; so change until it is heard.
  const auto limit = std::chrono::steady_clock::now() + kPatience;
  int moved = 0;
  while (heard == 0 && std::chrono::steady_clock::now() < limit) {
    Transfer(*other, {"k" + std::to_string(moved), "alice", "bob", 1});
    ++moved;
    const auto soon = std::chrono::steady_clock::now() + 100ms;
    while (heard == 0 && std::chrono::steady_clock::now() < soon) std::this_thread::sleep_for(1ms);
  }
  CHECK(heard > 0);
  watch.reset();
  const int before = heard;
  Transfer(*other, {"last", "alice", "bob", 1});
  Transfer(*store, {"own", "alice", "bob", 1});
  CHECK(heard == before);
}

namespace {

// Somebody else keeps the accounts locked for as long as this lives.
class SqliteLock {
 public:
  explicit SqliteLock(const SqliteBench& bench) {
    REQUIRE(sqlite3_open((bench.folder / "ledger.db").c_str(), &database_) == SQLITE_OK);
    REQUIRE(sqlite3_exec(database_, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr) == SQLITE_OK);
  }
  ~SqliteLock() { sqlite3_close(database_); }

 private:
  sqlite3* database_ = nullptr;
};

class PostgresLock {
 public:
  explicit PostgresLock(const PostgresBench& bench) : connection_(PQconnectdb(bench.postgres.connection().c_str())) {
    PQclear(PQexec(connection_, "BEGIN"));
    PGresult* locked = PQexec(connection_, "SELECT * FROM account FOR UPDATE");
    CHECK(PQresultStatus(locked) == PGRES_TUPLES_OK);
    PQclear(locked);
  }
  ~PostgresLock() { PQfinish(connection_); }

 private:
  PGconn* connection_;
};

template <class Bench, class Lock>
void WaitForALockUntilTheDeadline() {
  Bench bench;
  auto store = bench.Open();
  store->CreateAccount("alice", 100);
  store->CreateAccount("bob", 0);
  {
    const Lock lock(bench);
    const auto began = std::chrono::steady_clock::now();
    CHECK(ProblemOf(Transfer(*store, {"k", "alice", "bob", 1}, {.deadline = began + 300ms, .stop = {}})) == StoreProblem::kDeadline);
    const auto took = std::chrono::steady_clock::now() - began;
    CHECK(took >= 300ms);
    CHECK(took < 3s);  // not the five seconds of SQLite's own patience
    CHECK(Balance(*store, "alice") == 100);  // readers go on
  }
  CHECK_FALSE(std::get<Transferred>(Transfer(*store, {"k", "alice", "bob", 1})).repeated);
  CHECK(Balance(*store, "alice") == 99);
}

}  // namespace

TEST_CASE("ledger store: a transfer that waits for another's lock ends at its deadline and has moved nothing, on SQLite") {
  WaitForALockUntilTheDeadline<SqliteBench, SqliteLock>();
}

TEST_CASE("ledger store: a transfer that waits for another's lock ends at its deadline and has moved nothing, on PostgreSQL") {
  WaitForALockUntilTheDeadline<PostgresBench, PostgresLock>();
}

TEST_CASE("ledger store: a crashed PostgreSQL refuses in time, and is found again when it is back") {
  PostgresBench bench;
  auto store = bench.Open();
  store->CreateAccount("alice", 5);
  bench.postgres.Stop("immediate");
  const auto start = std::chrono::steady_clock::now();
  const StoreProblem problem = ProblemOf(Get(*store, "alice", {.deadline = start + 300ms, .stop = {}}));
  CHECK((problem == StoreProblem::kDeadline || problem == StoreProblem::kUnavailable));
  CHECK(std::chrono::steady_clock::now() - start < 5s);
  bench.postgres.Start();
  const auto back = Get(*store, "alice", {.deadline = std::chrono::steady_clock::now() + kPatience, .stop = {}});
  const auto* account = std::get_if<AccountRecord>(&back);
  const bool refused_by_the_old_connection = account == nullptr;
  CHECK((refused_by_the_old_connection || account->balance == 5));
  CHECK(Balance(*store, "alice") == 5);
}

TEST_CASE_TEMPLATE("ledger store: closing ends what waits, each once", Bench, SqliteBench, PostgresBench) {
  Bench bench;
  auto store = bench.Open();
  store->CreateAccount("alice", 5);
  std::atomic<int> done{0};
  for (int i = 0; i < 100; ++i) store->Get("alice", {}, [&](const StoreResult<AccountRecord>&) { done.fetch_add(1); });
  store.reset();
  CHECK(done == 100);
}
