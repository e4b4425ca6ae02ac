// The ledger's stores: the same cases for SQLite and PostgreSQL.

#include <doctest/doctest.h>
#include <libpq-fe.h>
#include <poll.h>
#include <sqlite3.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <future>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "ledger/postgres_store.h"
#include "ledger/sqlite_store.h"
#include "penstock/testing/certificates.h"
#include "support/eventually.h"
#include "support/postgres.h"

using namespace example::ledger;
using penstock::test::Eventually;
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

TEST_CASE_TEMPLATE("ledger store: a transfer that the target cannot hold moves nothing", Bench, SqliteBench, PostgresBench) {
  Bench bench;
  auto store = bench.Open();
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  store->CreateAccount("alice", 100);
  store->CreateAccount("rich", kMost - 1);
  CHECK(ProblemOf(Transfer(*store, {"k1", "alice", "rich", 2})) == StoreProblem::kTooMuch);
  CHECK(Balance(*store, "alice") == 100);
  CHECK(Balance(*store, "rich") == kMost - 1);
  CHECK(std::get<Transferred>(Transfer(*store, {"k1", "alice", "rich", 1})).to.balance == kMost);
}

TEST_CASE("ledger store: a watch hears of changes while operations never cease to wait, on SQLite") {
  SqliteBench bench;
  auto store = bench.Open();
  auto other = bench.Open();
  store->CreateAccount("alice", 100);
  store->CreateAccount("bob", 0);
  std::atomic<bool> heard{false};
  const auto watch = store->WatchChanges([&](const std::string& id) { heard = heard || id == "bob"; });
  // Each read asks for the next before it ends: something always waits.
  std::atomic<bool> stop{false};
  std::atomic<int> reading{3};
  std::atomic<int> reads{0};
  std::function<void()> read = [&] {
    store->Get("alice", {}, [&](const StoreResult<AccountRecord>&) {
      ++reads;
      stop ? static_cast<void>(--reading) : read();
    });
  };
  for (int i = 0; i < 3; ++i) read();
  Transfer(*other, {"k", "alice", "bob", 1});
  CHECK(Eventually([&] { return heard.load(); }, kPatience));
  stop = true;
  CHECK(Eventually([&] { return reading == 0; }, kPatience));
  CHECK(reads > 3);
}

TEST_CASE("ledger store: of the changes only the latest are kept, and who is further behind is told that any may have changed, on SQLite") {
  SqliteBench bench;
  auto opened = OpenSqlite({.path = (bench.folder / "ledger.db").string(), .kept_changes = 10});
  REQUIRE(opened.index() == 0);
  const auto store = std::move(std::get<0>(opened));
  store->CreateAccount("alice", 100);
  store->CreateAccount("bob", 0);
  for (int i = 0; i < 32; ++i) REQUIRE(std::holds_alternative<Transferred>(Transfer(*store, {"k" + std::to_string(i), "alice", "bob", 1})));
  sqlite3* database = nullptr;
  REQUIRE(sqlite3_open((bench.folder / "ledger.db").c_str(), &database) == SQLITE_OK);
  const auto run = [&](const char* sql, int (*row)(void*, int, char**, char**) = nullptr, void* result = nullptr) {
    REQUIRE_MESSAGE(sqlite3_exec(database, sql, row, result, nullptr) == SQLITE_OK, sqlite3_errmsg(database));
  };
  int kept = 0;
  run("SELECT count(*) FROM change", [](void* result, int, char** columns, char**) { return *static_cast<int*>(result) = std::stoi(columns[0]), 0; }, &kept);
  CHECK(kept >= 10);
  CHECK(kept <= 20);

  std::atomic<int> any{0};
  std::atomic<int> carol{0};
  const auto watch = store->WatchChanges([&](const std::string& id) {
    any += id.empty();
    carol += id == "carol";
  });
  // Another process's changes, all but the last of them already dropped when this one looks.
  run("BEGIN IMMEDIATE; INSERT INTO change (id) VALUES ('alice'), ('bob'), ('carol'); DELETE FROM change WHERE number < (SELECT max(number) FROM change); COMMIT");
  CHECK(Eventually([&] { return carol > 0; }, kPatience));
  CHECK(carol == 1);
  CHECK(any >= 1);  // also of its own changes, where many came between two looks
  sqlite3_close(database);
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

namespace {

// Stands before PostgreSQL and spoils the first LISTEN that passes.
class SpoilingProxy {
 public:
  explicit SpoilingProxy(std::string upstream) : upstream_(std::move(upstream)), listener_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const sockaddr_un address = Address(folder_.path() + kName);
    REQUIRE(bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(listen(listener_, 64) == 0);
    thread_ = std::thread([this] { Run(); });
  }
  ~SpoilingProxy() {
    stop_ = true;
    thread_.join();
    for (const auto& [from, to] : peers_) close(from);
    close(listener_);
  }
  std::string connection() const { return "host=" + folder_.path() + " user=ledger dbname=postgres"; }
  bool spoiled() const { return spoiled_; }

 private:
  static constexpr char kName[] = "/.s.PGSQL.5432";

  static sockaddr_un Address(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    REQUIRE(path.size() < sizeof address.sun_path);
    path.copy(address.sun_path, path.size());
    return address;
  }

  void Run() {
    while (!stop_) {
      std::vector<pollfd> all{{.fd = listener_, .events = POLLIN, .revents = 0}};
      for (const auto& [from, to] : peers_) all.push_back({.fd = from, .events = POLLIN, .revents = 0});
      if (poll(all.data(), all.size(), 10) <= 0) continue;
      if (all[0].revents != 0) Accept();
      for (std::size_t i = 1; i < all.size(); ++i) {
        if (all[i].revents != 0 && peers_.contains(all[i].fd)) Pass(all[i].fd);
      }
    }
  }

  void Accept() {
    const int client = accept(listener_, nullptr, nullptr);
    const int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_un address = Address(upstream_ + kName);
    CHECK(connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    peers_[client] = server;
    peers_[server] = client;
    clients_.insert(client);
  }

  void Pass(int from) {
    const int to = peers_.at(from);
    char buffer[65536];
    const ssize_t count = read(from, buffer, sizeof buffer);
    if (count <= 0) {
      peers_.erase(from);
      peers_.erase(to);
      clients_.erase(from);
      clients_.erase(to);
      close(from);
      close(to);
      return;
    }
    std::string bytes(buffer, static_cast<std::size_t>(count));
    const std::size_t at = clients_.contains(from) && !spoiled_ ? bytes.find("LISTEN ledger") : std::string::npos;
    if (at != std::string::npos) {
      bytes[at] = 'X';
      spoiled_ = true;
    }
    send(to, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }

  const penstock::testing::TemporaryFolder folder_;
  const std::string upstream_;
  const int listener_;
  std::map<int, int> peers_;
  std::set<int> clients_;
  std::atomic<bool> spoiled_{false};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace

TEST_CASE("ledger store: a LISTEN that fails is tried again, and only one that worked counts, on PostgreSQL") {
  PostgresBench bench;
  auto other = bench.Open();
  other->CreateAccount("alice", 100);
  other->CreateAccount("bob", 0);
  SpoilingProxy proxy(bench.postgres.folder());
  auto opened = OpenPostgres({.connection = proxy.connection()});
  REQUIRE_MESSAGE(opened.index() == 0, (opened.index() == 1 ? std::get<1>(opened) : ""));
  const auto store = std::move(std::get<0>(opened));
  std::atomic<int> heard{0};
  const auto watch = store->WatchChanges([&](const std::string& id) { heard += id == "bob"; });
  const auto limit = std::chrono::steady_clock::now() + kPatience;
  for (int i = 0; heard == 0 && std::chrono::steady_clock::now() < limit; ++i) {
    Transfer(*other, {"k" + std::to_string(i), "alice", "bob", 1});
    std::this_thread::sleep_for(50ms);
  }
  CHECK(proxy.spoiled());
  CHECK(heard > 0);
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
