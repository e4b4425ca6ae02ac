#include "sqlite_store.h"

#include <sqlite3.h>

#include <condition_variable>
#include <deque>
#include <future>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "change_hub.h"

namespace example::ledger {

namespace {

using std::chrono::steady_clock;

constexpr char kSchema[] = R"sql(
CREATE TABLE IF NOT EXISTS account (id TEXT PRIMARY KEY, balance INTEGER NOT NULL CHECK (balance >= 0), version INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS transfer (key TEXT PRIMARY KEY, source TEXT NOT NULL, target TEXT NOT NULL, amount INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS change (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL);
)sql";

// How a lock of another process's is waited for: five seconds in all where the task has no deadline.
constexpr std::chrono::milliseconds kBusyWait{1};
constexpr int kBusyWaits = 5000;

// Looked at every so many steps of SQLite's virtual machine while a statement runs.
constexpr int kProgressSteps = 1000;

struct CloseDatabase {
  void operator()(sqlite3* database) const { sqlite3_close_v2(database); }
};
using Database = std::unique_ptr<sqlite3, CloseDatabase>;

class Statement {
 public:
  Statement(sqlite3* database, const char* sql) { sqlite3_prepare_v2(database, sql, -1, &statement_, nullptr); }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& Bind(int at, const std::string& text) {
    sqlite3_bind_text(statement_, at, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT);
    return *this;
  }
  Statement& Bind(int at, std::int64_t number) {
    sqlite3_bind_int64(statement_, at, number);
    return *this;
  }
  int Step() { return sqlite3_step(statement_); }
  std::int64_t Number(int column) { return sqlite3_column_int64(statement_, column); }
  std::string Text(int column) {
    const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
    return text == nullptr ? std::string() : std::string(text, static_cast<std::size_t>(sqlite3_column_bytes(statement_, column)));
  }

 private:
  sqlite3_stmt* statement_ = nullptr;
};

class SqliteStore final : public Store {
 public:
  SqliteStore(SqliteSettings settings, Database database) : settings_(std::move(settings)), database_(std::move(database)) {
    // Another process writes: waits for it, but no longer than the task that waits may take.
    sqlite3_busy_handler(
        database_.get(),
        [](void* store, int waited) {
          if (waited == kBusyWaits || static_cast<SqliteStore*>(store)->Interrupted()) return 0;
          std::this_thread::sleep_for(kBusyWait);
          return 1;
        },
        this);
    last_change_ = LastChange();
    thread_ = std::thread([this] { ThreadMain(); });
  }

  ~SqliteStore() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  void Get(std::string id, Limits limits, Done<AccountRecord> done) override {
    Enqueue<AccountRecord>(std::move(limits), std::move(done), [this, id = std::move(id)] { return Read(id); });
  }

  void Transfer(TransferOrder order, Limits limits, Done<Transferred> done) override {
    Enqueue<Transferred>(std::move(limits), std::move(done), [this, order = std::move(order)] { return Move(order); });
  }

  StoreResult<AccountRecord> CreateAccount(const std::string& id, std::int64_t balance) override {
    auto made = std::make_shared<std::promise<StoreResult<AccountRecord>>>();
    Enqueue<AccountRecord>(
        {}, [made](StoreResult<AccountRecord> result) { made->set_value(std::move(result)); },
        [this, id, balance] {
          Statement insert(database_.get(), "INSERT OR IGNORE INTO account (id, balance, version) VALUES (?, ?, 1)");
          if (insert.Bind(1, id).Bind(2, balance).Step() != SQLITE_DONE) return StoreResult<AccountRecord>(Failure());
          return Read(id);
        });
    return made->get_future().get();
  }

  std::unique_ptr<Watch> WatchChanges(std::function<void(const std::string&)> changed) override { return hub_->Add(std::move(changed)); }

 private:
  struct Task {
    Limits limits;
    // Does the work, or refuses it with the error.
    std::function<void(std::optional<StoreError>)> run;
  };

  template <class T, class Work>
  void Enqueue(Limits limits, Done<T> done, Work work) {
    Task task{std::move(limits), [done = std::move(done), work = std::move(work)](std::optional<StoreError> refused) {
                done(refused ? StoreResult<T>(*std::move(refused)) : work());
              }};
    const char* refused = nullptr;
    {
      std::lock_guard lock(mutex_);
      if (stopping_) {
        refused = "the store is closing";
      } else if (tasks_.size() >= settings_.queue) {
        refused = "too many operations wait";
      } else {
        tasks_.push_back(std::move(task));
      }
    }
    if (refused != nullptr) return task.run(StoreError{StoreProblem::kUnavailable, refused});
    wake_.notify_one();
  }

  // Changes are told whenever nothing waits, and under a load that never ends as often as another process's are looked for.
  void ThreadMain() {
    auto told_at = steady_clock::now();
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait_for(lock, settings_.poll, [&] { return stopping_ || !tasks_.empty(); });
      if (tasks_.empty()) {
        if (stopping_) return;
      } else {
        Task task = std::move(tasks_.front());
        tasks_.pop_front();
        const bool stopping = stopping_;
        lock.unlock();
        if (stopping) {
          task.run(StoreError{StoreProblem::kUnavailable, "the store is closing"});
        } else {
          RunLimited(task);
        }
        lock.lock();
        if (!tasks_.empty() && steady_clock::now() - told_at < settings_.poll) continue;
      }
      lock.unlock();
      TellChanges();
      told_at = steady_clock::now();
      lock.lock();
    }
  }

  // SQLite asks between its steps whether to go on: no, once the deadline has passed or the caller has gone.
  void RunLimited(Task& task) {
    if (task.limits.stop.stop_requested()) return task.run(StoreError{StoreProblem::kCancelled, "the caller went away"});
    if (steady_clock::now() >= task.limits.deadline) return task.run(StoreError{StoreProblem::kDeadline, "no time was left"});
    running_ = &task.limits;
    sqlite3_progress_handler(
        database_.get(), kProgressSteps,
        [](void* store) { return static_cast<int>(static_cast<SqliteStore*>(store)->Interrupted()); }, this);
    task.run(std::nullopt);
    sqlite3_progress_handler(database_.get(), 0, nullptr, nullptr);
    running_ = nullptr;
  }

  bool Interrupted() const {
    return running_ != nullptr && (running_->stop.stop_requested() || steady_clock::now() >= running_->deadline);
  }

  StoreError Failure() const {
    if (running_ != nullptr && running_->stop.stop_requested()) return {StoreProblem::kCancelled, "the caller went away"};
    if (Interrupted()) return {StoreProblem::kDeadline, "the statement ran out of time"};
    return {StoreProblem::kUnavailable, std::string("sqlite: ") + sqlite3_errmsg(database_.get())};
  }

  StoreResult<AccountRecord> Read(const std::string& id) {
    Statement select(database_.get(), "SELECT balance, version FROM account WHERE id = ?");
    switch (select.Bind(1, id).Step()) {
      case SQLITE_ROW: return AccountRecord{id, select.Number(0), select.Number(1)};
      case SQLITE_DONE: return StoreError{StoreProblem::kNotFound, "no account " + id};
      default: return Failure();
    }
  }

  bool Run(const char* sql) { return Statement(database_.get(), sql).Step() == SQLITE_DONE; }

  StoreResult<Transferred> Move(const TransferOrder& order) {
    // IMMEDIATE takes the writer's lock at once: nobody changes what is read here.
    if (!Run("BEGIN IMMEDIATE")) return Failure();
    StoreResult<Transferred> result = MoveInTransaction(order);
    const bool moved = std::holds_alternative<Transferred>(result);
    if (moved && Run("COMMIT")) return result;
    StoreResult<Transferred> failed = moved ? StoreResult<Transferred>(Failure()) : std::move(result);
    running_ = nullptr;  // the way back is not interrupted
    Run("ROLLBACK");
    return failed;
  }

  StoreResult<Transferred> MoveInTransaction(const TransferOrder& order) {
    StoreResult<AccountRecord> from = Read(order.from);
    if (const auto* error = std::get_if<StoreError>(&from)) return *error;
    StoreResult<AccountRecord> to = Read(order.to);
    if (const auto* error = std::get_if<StoreError>(&to)) return *error;
    Transferred moved{std::get<AccountRecord>(from), std::get<AccountRecord>(to), false};

    Statement known(database_.get(), "SELECT source, target, amount FROM transfer WHERE key = ?");
    switch (known.Bind(1, order.idempotency_key).Step()) {
      case SQLITE_ROW:
        if (known.Text(0) != order.from || known.Text(1) != order.to || known.Number(2) != order.amount) {
          return StoreError{StoreProblem::kKeyReused, "the idempotency key belongs to another transfer"};
        }
        moved.repeated = true;
        return moved;
      case SQLITE_DONE: break;
      default: return Failure();
    }
    if (moved.from.balance < order.amount) {
      return StoreError{StoreProblem::kInsufficientFunds, order.from + " has " + std::to_string(moved.from.balance)};
    }
    if (moved.to.balance > std::numeric_limits<std::int64_t>::max() - order.amount) {
      return StoreError{StoreProblem::kTooMuch, order.to + " cannot hold so much"};
    }
    Statement record(database_.get(), "INSERT INTO transfer (key, source, target, amount) VALUES (?, ?, ?, ?)");
    if (record.Bind(1, order.idempotency_key).Bind(2, order.from).Bind(3, order.to).Bind(4, order.amount).Step() != SQLITE_DONE) {
      return Failure();
    }
    for (auto [account, amount] : {std::pair{&moved.from, -order.amount}, std::pair{&moved.to, order.amount}}) {
      account->balance += amount;
      account->version += 1;
      Statement change(database_.get(), "UPDATE account SET balance = ?, version = ? WHERE id = ?");
      if (change.Bind(1, account->balance).Bind(2, account->version).Bind(3, account->id).Step() != SQLITE_DONE) return Failure();
      Statement note(database_.get(), "INSERT INTO change (id) VALUES (?)");
      if (note.Bind(1, account->id).Step() != SQLITE_DONE) return Failure();
      const std::int64_t number = sqlite3_last_insert_rowid(database_.get());
      if (number % settings_.kept_changes != 0) continue;
      Statement trim(database_.get(), "DELETE FROM change WHERE number <= ?");
      if (trim.Bind(1, number - settings_.kept_changes).Step() != SQLITE_DONE) return Failure();
    }
    return moved;
  }

  std::int64_t LastChange() {
    Statement last(database_.get(), "SELECT coalesce(max(number), 0) FROM change");
    return last.Step() == SQLITE_ROW ? last.Number(0) : 0;
  }

  void TellChanges() {
    Statement changes(database_.get(), "SELECT number, id FROM change WHERE number > ? ORDER BY number");
    changes.Bind(1, last_change_);
    while (changes.Step() == SQLITE_ROW) {
      const std::int64_t number = changes.Number(0);
      if (number != last_change_ + 1) hub_->Tell("");  // those between were not kept
      last_change_ = number;
      hub_->Tell(changes.Text(1));
    }
  }

  const SqliteSettings settings_;
  const Database database_;
  const std::shared_ptr<ChangeHub> hub_ = std::make_shared<ChangeHub>();
  std::int64_t last_change_ = 0;     // the thread's own
  const Limits* running_ = nullptr;  // the thread's own
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Task> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace

std::variant<std::unique_ptr<Store>, std::string> OpenSqlite(const SqliteSettings& settings) {
  sqlite3* opened = nullptr;
  const int code = sqlite3_open_v2(settings.path.c_str(), &opened, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  Database database(opened);
  if (code != SQLITE_OK) return settings.path + ": " + sqlite3_errstr(code);
  sqlite3_busy_timeout(opened, 5000);  // for what follows; the store has a way to wait of its own
  // WAL lets readers go on beside a writer; FULL has every commit on the disk before it is answered.
  for (const char* sql : {"PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", kSchema}) {
    if (sqlite3_exec(opened, sql, nullptr, nullptr, nullptr) != SQLITE_OK) return settings.path + ": " + sqlite3_errmsg(opened);
  }
  return std::make_unique<SqliteStore>(settings, std::move(database));
}

}  // namespace example::ledger
