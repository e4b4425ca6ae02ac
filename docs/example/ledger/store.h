#pragma once

// Where the ledger keeps its accounts.
//
// Every operation is asynchronous: it ends by calling `done` once, on a thread of the store's, also when its deadline passes.
// Its stop token keeps one that waits from beginning, and ends a statement that SQLite runs; one that PostgreSQL runs goes on to
// its end or its deadline, since libpq cancels over a further connection and blocks meanwhile. A transfer with a known idempotency key moves nothing and answers as the first one did.
//
//     auto store = OpenSqlite({.path = "ledger.db"});
//     store->Transfer({"key-1", "alice", "bob", 5}, {.deadline = ...}, [](StoreResult<Transferred> result) { ... });
//
// Threads: every member may be called from any thread.
// Ownership: the destructor ends what is in flight, calling each `done`, and waits for it.
// Time: deadlines on the steady clock.
// Errors: a StoreError with a text for the log, never an exception.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>
#include <variant>

namespace example::ledger {

struct AccountRecord {
  std::string id;
  std::int64_t balance = 0;
  std::int64_t version = 0;

  friend bool operator==(const AccountRecord&, const AccountRecord&) = default;
};

struct TransferOrder {
  std::string idempotency_key;
  std::string from;
  std::string to;
  std::int64_t amount = 0;
};

struct Transferred {
  AccountRecord from;
  AccountRecord to;
  bool repeated = false;
};

enum class StoreProblem {
  kNotFound,           // an account that does not exist
  kInsufficientFunds,  // nothing was moved
  kTooMuch,            // more than the target can hold: nothing was moved
  kKeyReused,          // the idempotency key belongs to another transfer
  kDeadline,           // the statement ran out of time: nothing was done
  kCancelled,          // the caller went away: nothing was done
  kUnavailable,        // the database cannot be reached, or its answer was lost: the transfer may have been done
};

struct StoreError {
  StoreProblem problem = StoreProblem::kUnavailable;
  std::string text;
};

template <class T>
using StoreResult = std::variant<T, StoreError>;

template <class T>
using Done = std::function<void(StoreResult<T>)>;

struct Limits {
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  std::stop_token stop;
};

// Hears of changes for as long as it lives.
class Watch {
 public:
  virtual ~Watch() = default;
};

class Store {
 public:
  virtual ~Store() = default;

  virtual void Get(std::string id, Limits limits, Done<AccountRecord> done) = 0;
  virtual void Transfer(TransferOrder order, Limits limits, Done<Transferred> done) = 0;

  // Makes the account if there is none. For set-up; blocks.
  virtual StoreResult<AccountRecord> CreateAccount(const std::string& id, std::int64_t balance) = 0;

  // Calls `changed` with an account's id after it may have changed, whichever process changed it, or with an empty id when
  // any may have (the database was out of reach for a while), on a thread of the store's. `changed` must not block. No call runs any more once the Watch is destroyed.
  virtual std::unique_ptr<Watch> WatchChanges(std::function<void(const std::string& id)> changed) = 0;
};

}  // namespace example::ledger
