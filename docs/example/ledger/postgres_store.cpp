#include "postgres_store.h"

#include <algorithm>
#include <deque>
#include <future>
#include <iterator>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "change_hub.h"
#include "postgres_connection.h"

namespace example::ledger {

namespace {

using std::chrono::steady_clock;

// Under a lock of the whole database, since several ledgers may start at once.
constexpr char kSchema[] = R"sql(
BEGIN;
SELECT pg_advisory_xact_lock(7201);
CREATE TABLE IF NOT EXISTS account (id text PRIMARY KEY, balance bigint NOT NULL CHECK (balance >= 0), version bigint NOT NULL);
CREATE TABLE IF NOT EXISTS transfer (key text PRIMARY KEY, source text NOT NULL, target text NOT NULL, amount bigint NOT NULL);
CREATE OR REPLACE FUNCTION ledger_transfer(wanted_key text, source_id text, target_id text, moved bigint)
RETURNS TABLE (outcome text, source_balance bigint, source_version bigint, target_balance bigint, target_version bigint) AS $$
DECLARE
  source_row account; target_row account; known transfer;
BEGIN
  -- In the order of their names, so that two transfers the other way round do not wait for each other.
  PERFORM 1 FROM account WHERE id IN (source_id, target_id) ORDER BY id FOR UPDATE;
  SELECT * INTO source_row FROM account WHERE id = source_id;
  IF NOT FOUND THEN RETURN QUERY SELECT 'no account ' || source_id, 0::bigint, 0::bigint, 0::bigint, 0::bigint; RETURN; END IF;
  SELECT * INTO target_row FROM account WHERE id = target_id;
  IF NOT FOUND THEN RETURN QUERY SELECT 'no account ' || target_id, 0::bigint, 0::bigint, 0::bigint, 0::bigint; RETURN; END IF;
  SELECT * INTO known FROM transfer WHERE key = wanted_key;
  IF FOUND THEN
    outcome := CASE WHEN known.source = source_id AND known.target = target_id AND known.amount = moved THEN 'repeated' ELSE 'reused' END;
  ELSIF source_row.balance < moved THEN
    outcome := 'insufficient';
  ELSIF target_row.balance > 9223372036854775807 - moved THEN
    outcome := 'too much';
  ELSE
    INSERT INTO transfer (key, source, target, amount) VALUES (wanted_key, source_id, target_id, moved) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
      outcome := 'reused';
    ELSE
      UPDATE account SET balance = balance - moved, version = version + 1 WHERE id = source_id RETURNING * INTO source_row;
      UPDATE account SET balance = balance + moved, version = version + 1 WHERE id = target_id RETURNING * INTO target_row;
      PERFORM pg_notify('ledger_change', source_id);
      PERFORM pg_notify('ledger_change', target_id);
      outcome := 'moved';
    END IF;
  END IF;
  RETURN QUERY SELECT outcome, source_row.balance, source_row.version, target_row.balance, target_row.version;
END $$ LANGUAGE plpgsql;
COMMIT;
)sql";

constexpr std::chrono::milliseconds kSweep{20};

std::int64_t Number(const PGresult* rows, int column) { return std::stoll(PQgetvalue(rows, 0, column)); }

class PostgresStore final : public Store {
 public:
  explicit PostgresStore(PostgresSettings settings) : settings_(std::move(settings)) {
    uv_loop_init(&loop_);
    uv_async_init(&loop_, &wake_, [](uv_async_t* wake) { static_cast<PostgresStore*>(wake->data)->OnWake(); });
    wake_.data = this;
    uv_timer_init(&loop_, &sweep_);
    sweep_.data = this;
    uv_timer_start(
        &sweep_, [](uv_timer_t* sweep) { static_cast<PostgresStore*>(sweep->data)->RefuseExpired(); }, kSweep.count(), kSweep.count());
    for (std::size_t i = 0; i < settings_.connections; ++i) {
      AddConnection({.connected = {}, .idle = [this] { RunNext(); }, .notified = [](const std::string&) {}, .closed = {}});
    }
    AddConnection({.connected = [this] { Listen(); }, .idle = {}, .notified = [this](const std::string& id) { hub_->Tell(id); }, .closed = {}});
    thread_ = std::thread([this] { uv_run(&loop_, UV_RUN_DEFAULT); });
  }

  ~PostgresStore() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    uv_async_send(&wake_);
    thread_.join();
    connections_.clear();
    uv_loop_close(&loop_);
  }

  void Get(std::string id, Limits limits, Done<AccountRecord> done) override {
    Enqueue({.sql = "SELECT balance, version FROM account WHERE id = $1", .parameters = {id}, .done = {}}, std::move(limits),
            [id, done = std::move(done)](StoreResult<PostgresResult> result) {
              if (auto* error = std::get_if<StoreError>(&result)) return done(std::move(*error));
              const PGresult* rows = std::get<PostgresResult>(result).get();
              if (PQntuples(rows) == 0) return done(StoreError{StoreProblem::kNotFound, "no account " + id});
              done(AccountRecord{id, Number(rows, 0), Number(rows, 1)});
            });
  }

  void Transfer(TransferOrder order, Limits limits, Done<Transferred> done) override {
    Enqueue({.sql = "SELECT * FROM ledger_transfer($1, $2, $3, $4)",
             .parameters = {order.idempotency_key, order.from, order.to, std::to_string(order.amount)},
             .done = {}},
            std::move(limits), [order, done = std::move(done)](StoreResult<PostgresResult> result) {
              if (auto* error = std::get_if<StoreError>(&result)) return done(std::move(*error));
              const PGresult* rows = std::get<PostgresResult>(result).get();
              const std::string outcome = PQgetvalue(rows, 0, 0);
              if (outcome == "reused") return done(StoreError{StoreProblem::kKeyReused, "the idempotency key belongs to another transfer"});
              if (outcome == "insufficient") {
                return done(StoreError{StoreProblem::kInsufficientFunds, order.from + " has " + PQgetvalue(rows, 0, 1)});
              }
              if (outcome == "too much") return done(StoreError{StoreProblem::kTooMuch, order.to + " cannot hold so much"});
              if (outcome != "moved" && outcome != "repeated") return done(StoreError{StoreProblem::kNotFound, outcome});
              done(Transferred{{order.from, Number(rows, 1), Number(rows, 2)}, {order.to, Number(rows, 3), Number(rows, 4)}, outcome == "repeated"});
            });
  }

  StoreResult<AccountRecord> CreateAccount(const std::string& id, std::int64_t balance) override {
    auto made = std::make_shared<std::promise<std::optional<StoreError>>>();
    Enqueue({.sql = "INSERT INTO account (id, balance, version) VALUES ($1, $2, 1) ON CONFLICT DO NOTHING", .parameters = {id, std::to_string(balance)}, .done = {}}, {},
            [made](StoreResult<PostgresResult> result) {
              const auto* error = std::get_if<StoreError>(&result);
              made->set_value(error == nullptr ? std::nullopt : std::optional(*error));
            });
    if (const auto error = made->get_future().get()) return *error;
    auto read = std::make_shared<std::promise<StoreResult<AccountRecord>>>();
    Get(id, {}, [read](StoreResult<AccountRecord> result) { read->set_value(std::move(result)); });
    return read->get_future().get();
  }

  std::unique_ptr<Watch> WatchChanges(std::function<void(const std::string&)> changed) override { return hub_->Add(std::move(changed)); }

 private:
  struct Task {
    PostgresQuery query;
    Limits limits;
  };

  void AddConnection(PostgresConnection::Events events) {
    ++open_;
    events.closed = [this] {
      if (--open_ != 0) return;
      uv_close(reinterpret_cast<uv_handle_t*>(&wake_), nullptr);
      uv_close(reinterpret_cast<uv_handle_t*>(&sweep_), nullptr);
    };
    connections_.push_back(std::make_unique<PostgresConnection>(&loop_, settings_.connection, settings_.reconnect, std::move(events)));
  }

  // After each (re)connect: what changed meanwhile is not known. Where it fails, so may the connection, which is made anew.
  void Listen() {
    connections_.back()->Run({.sql = "LISTEN ledger_change",
                              .parameters = {},
                              .timeout = std::chrono::seconds(5),
                              .done = [this](const StoreResult<PostgresResult>& result) {
                                if (std::holds_alternative<StoreError>(result)) return connections_.back()->Reconnect();
                                hub_->Tell("");
                              }});
  }

  void Enqueue(PostgresQuery query, Limits limits, std::function<void(StoreResult<PostgresResult>)> done) {
    query.done = std::move(done);
    const char* refused = nullptr;
    {
      std::lock_guard lock(mutex_);
      if (stopping_) {
        refused = "the store is closing";
      } else if (tasks_.size() >= settings_.queue) {
        refused = "too many operations wait";
      } else {
        tasks_.push_back({std::move(query), std::move(limits)});
      }
    }
    if (refused != nullptr) return query.done(StoreError{StoreProblem::kUnavailable, refused});
    uv_async_send(&wake_);
  }

  void OnWake() {
    bool stopping = false;
    {
      std::lock_guard lock(mutex_);
      stopping = stopping_;
    }
    if (!stopping) return RunNext();
    for (const auto& connection : connections_) connection->Close();
    while (std::optional<Task> task = TakeTask()) task->query.done(StoreError{StoreProblem::kUnavailable, "the store is closing"});
  }

  std::optional<Task> TakeTask() {
    std::lock_guard lock(mutex_);
    if (tasks_.empty()) return std::nullopt;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    return task;
  }

  // Why a waiting task is not to be run; nothing when it is.
  static std::optional<StoreError> Refusal(const Limits& limits) {
    if (limits.stop.stop_requested()) return StoreError{StoreProblem::kCancelled, "the caller went away"};
    if (limits.deadline <= steady_clock::now()) return StoreError{StoreProblem::kDeadline, "no time was left"};
    return std::nullopt;
  }

  // While no connection is to be had, those who wait are told when their time is over.
  void RefuseExpired() {
    std::vector<Task> expired;
    {
      std::lock_guard lock(mutex_);
      const auto first = std::stable_partition(tasks_.begin(), tasks_.end(), [](const Task& task) { return !Refusal(task.limits); });
      std::move(first, tasks_.end(), std::back_inserter(expired));
      tasks_.erase(first, tasks_.end());
    }
    for (Task& task : expired) task.query.done(*Refusal(task.limits));
  }

  // The last one only listens.
  PostgresConnection* IdleConnection() {
    const auto idle = std::find_if(connections_.begin(), std::prev(connections_.end()), [](const auto& connection) { return connection->idle(); });
    return idle == std::prev(connections_.end()) ? nullptr : idle->get();
  }

  void RunNext() {
    while (PostgresConnection* connection = IdleConnection()) {
      std::optional<Task> task = TakeTask();
      if (!task) return;
      if (std::optional<StoreError> refusal = Refusal(task->limits)) {
        task->query.done(*std::move(refusal));
        continue;
      }
      // A whole day stands for no deadline: statement_timeout is a 32-bit number of milliseconds.
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(task->limits.deadline - steady_clock::now());
      task->query.timeout = std::clamp<std::chrono::milliseconds>(left, std::chrono::milliseconds(1), std::chrono::hours(24));
      connection->Run(std::move(task->query));
    }
  }

  const PostgresSettings settings_;
  const std::shared_ptr<ChangeHub> hub_ = std::make_shared<ChangeHub>();
  uv_loop_t loop_{};
  uv_async_t wake_{};
  uv_timer_t sweep_{};
  std::vector<std::unique_ptr<PostgresConnection>> connections_;  // the loop's own
  std::size_t open_ = 0;
  std::mutex mutex_;
  std::deque<Task> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace

std::variant<std::unique_ptr<Store>, std::string> OpenPostgres(const PostgresSettings& settings) {
  const std::unique_ptr<PGconn, decltype(&PQfinish)> connection(PQconnectdb(settings.connection.c_str()), &PQfinish);
  if (PQstatus(connection.get()) != CONNECTION_OK) return std::string(PQerrorMessage(connection.get()));
  PQsetNoticeProcessor(connection.get(), [](void*, const char*) {}, nullptr);  // "already exists" is not news
  const PostgresResult made(PQexec(connection.get(), kSchema));
  if (PQresultStatus(made.get()) != PGRES_COMMAND_OK) return std::string(PQerrorMessage(connection.get()));
  return std::make_unique<PostgresStore>(settings);
}

}  // namespace example::ledger
