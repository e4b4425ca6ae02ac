// Guards a database with penstock's core alone: no gRPC, penstock_core_dep only.
//
// A program keeps an account in SQLite. Another one locks the database for a while, as a migration or a backup would: every
// statement then waits its busy time-out and fails. The breaker sees that and rejects further calls at once, so that the
// program answers "busy" in microseconds instead of piling up; when the lock is gone, a few probes find out.
//
//     guarded-database [FILE]      (default: a file of its own that it removes again)
//
// Exit code 0 when it went as told above, 1 when not, 2 for bad arguments.

#include <sqlite3.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "penstock/core/backoff.h"
#include "penstock/core/circuit_breaker.h"
#include "penstock/core/retry_budget.h"

using namespace std::chrono_literals;

namespace {

struct Close {
  void operator()(sqlite3* database) const { sqlite3_close(database); }
};
using Connection = std::unique_ptr<sqlite3, Close>;

Connection Open(const std::string& file) {
  sqlite3* database = nullptr;
  if (sqlite3_open(file.c_str(), &database) != SQLITE_OK) {
    std::fprintf(stderr, "cannot open %s: %s\n", file.c_str(), sqlite3_errmsg(database));
    sqlite3_close(database);
    return nullptr;
  }
  sqlite3_busy_timeout(database, 5);
  return Connection(database);
}

int Run(sqlite3* database, const char* statement) { return sqlite3_exec(database, statement, nullptr, nullptr, nullptr); }

// What a result says about the database itself. A statement that is wrong, or that breaks a constraint, was answered: the
// database is fine.
penstock::Outcome OutcomeOf(int code) {
  switch (code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_IOERR:
    case SQLITE_FULL:
    case SQLITE_CANTOPEN:
    case SQLITE_CORRUPT:
      return penstock::Outcome::kFailure;
    case SQLITE_INTERRUPT:  // our own doing
      return penstock::Outcome::kIgnored;
    default:
      return penstock::Outcome::kSuccess;
  }
}

// A connection behind a breaker and a retry budget, shared by all that use the database.
class GuardedDatabase {
 public:
  GuardedDatabase(Connection database, std::unique_ptr<penstock::CircuitBreaker> breaker,
                  std::unique_ptr<penstock::RetryBudget> budget)
      : database_(std::move(database)), breaker_(std::move(breaker)), budget_(std::move(budget)) {}

  enum class Answer { kDone, kRefused, kFailed, kBusy };

  Answer Execute(const char* statement) {
    constexpr int kAttempts = 3;
    for (int attempt = 1;; ++attempt) {
      auto admission = breaker_->Acquire();
      if (!admission.admitted()) return Answer::kBusy;  // at once: nothing was asked of the database
      const int code = Run(database_.get(), statement);
      const penstock::Outcome outcome = OutcomeOf(code);
      admission.ticket().Settle(outcome);
      if (outcome != penstock::Outcome::kFailure) {
        budget_->OnSuccess();
        return code == SQLITE_OK ? Answer::kDone : Answer::kRefused;
      }
      if (!budget_->OnRetryable() || attempt == kAttempts) return Answer::kFailed;
      std::this_thread::sleep_for(backoff_.Draw(static_cast<std::uint64_t>(attempt), penstock::RandomBits()));
    }
  }

  penstock::CircuitBreaker& breaker() { return *breaker_; }

 private:
  Connection database_;
  std::unique_ptr<penstock::CircuitBreaker> breaker_;
  std::unique_ptr<penstock::RetryBudget> budget_;
  penstock::Backoff backoff_{.base = 1ms, .max = 10ms};
};

const char* Name(penstock::CircuitState state) {
  switch (state) {
    case penstock::CircuitState::kClosed:
      return "closed";
    case penstock::CircuitState::kOpen:
      return "open";
    case penstock::CircuitState::kHalfOpen:
      return "half-open";
  }
  return "?";
}

bool Expect(bool holds, const char* what) {
  std::printf("%s %s\n", holds ? "ok  " : "BAD ", what);
  return holds;
}

int Demonstrate(const std::string& file) {
  penstock::CircuitBreakerSettings settings;
  settings.open_for = 50ms;  // short, for a demonstration; the default is 10 s
  settings.observer = [](const penstock::CircuitTransition& transition) {
    std::printf("     the breaker was %s and is %s\n", Name(transition.from), Name(transition.to));
  };
  auto breaker = penstock::CircuitBreaker::Create(settings);
  auto budget = penstock::RetryBudget::Create();
  if (!breaker.ok() || !budget.ok()) return 1;
  Connection connection = Open(file);
  Connection other = Open(file);
  if (connection == nullptr || other == nullptr) return 1;
  GuardedDatabase database(std::move(connection), std::move(*breaker), std::move(*budget));
  using Answer = GuardedDatabase::Answer;

  bool good = Expect(database.Execute("CREATE TABLE account (name TEXT PRIMARY KEY, balance INTEGER)") == Answer::kDone,
                     "the table is made");
  good &= Expect(database.Execute("INSERT INTO account VALUES ('alice', 100)") == Answer::kDone, "a row is written");
  for (int i = 0; i < 20; ++i) database.Execute("INSERT INTO account VALUES ('alice', 100)");
  good &= Expect(database.breaker().state() == penstock::CircuitState::kClosed,
                 "twenty refused statements are answers: the breaker stays closed");

  good &= Expect(Run(other.get(), "BEGIN EXCLUSIVE") == SQLITE_OK, "another program locks the database");
  int failed = 0;
  while (database.Execute("UPDATE account SET balance = balance + 1") == Answer::kFailed && failed < 10) ++failed;
  good &= Expect(failed < 10 && database.breaker().state() != penstock::CircuitState::kClosed,
                 "after five failures in a row calls are rejected at once");

  good &= Expect(Run(other.get(), "COMMIT") == SQLITE_OK, "the lock is gone");
  bool recovered = false;
  for (const auto limit = std::chrono::steady_clock::now() + 30s; !recovered && std::chrono::steady_clock::now() < limit;) {
    auto admission = database.breaker().Acquire();
    const penstock::Duration rest = admission.rejected_for();
    if (!admission.admitted()) {
      std::this_thread::sleep_for(rest);  // the breaker says how long there is no point in asking
      continue;
    }
    admission.ticket().Settle(penstock::Outcome::kIgnored);
    recovered = database.Execute("UPDATE account SET balance = balance + 1") == Answer::kDone &&
                database.breaker().state() == penstock::CircuitState::kClosed;
  }
  good &= Expect(recovered, "three probes succeed, and the breaker is closed");
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2 || (argc == 2 && argv[1][0] == '-')) {
    std::fprintf(stderr, "usage: guarded-database [FILE]\n");
    return 2;
  }
  if (argc == 2) return Demonstrate(argv[1]);
  std::string directory = "/tmp/guarded-database-XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) {
    std::perror("mkdtemp");
    return 1;
  }
  const std::string file = directory + "/accounts.sqlite";
  const int code = Demonstrate(file);
  for (const char* suffix : {"", "-journal", "-wal", "-shm"}) unlink((file + suffix).c_str());
  rmdir(directory.c_str());
  return code;
}
