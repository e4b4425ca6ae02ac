#pragma once

// One connection to PostgreSQL, driven by a libuv loop.
//
// It connects by itself, again and again with a pause in between, runs one query at a time, and hears notifications. A query
// runs with a statement_timeout; one whose answer does not come at all breaks the connection a second after it.
//
// Threads: the loop's only.
// Ownership: closes itself: Close(), and destroy it once `closed` has run.

#include <libpq-fe.h>
#include <uv.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "store.h"

namespace example::ledger {

struct ClearResult {
  void operator()(PGresult* result) const { PQclear(result); }
};
using PostgresResult = std::unique_ptr<PGresult, ClearResult>;

struct PostgresQuery {
  const char* sql = nullptr;
  std::vector<std::string> parameters;
  std::chrono::milliseconds timeout{0};  // 0: none
  // Once: a result with rows, or the error.
  std::function<void(StoreResult<PostgresResult>)> done;
};

class PostgresConnection {
 public:
  struct Events {
    // It is there (again), and can take a query.
    std::function<void()> connected;
    // It can take a query: after `connected`, and after each query.
    std::function<void()> idle;
    std::function<void(const std::string& payload)> notified;
    std::function<void()> closed;
  };

  PostgresConnection(uv_loop_t* loop, std::string settings, std::chrono::milliseconds reconnect, Events events);
  ~PostgresConnection();
  PostgresConnection(const PostgresConnection&) = delete;
  PostgresConnection& operator=(const PostgresConnection&) = delete;

  bool idle() const { return state_ == State::kIdle; }

  // Only while idle().
  void Run(PostgresQuery query);

  // Begins anew, after the pause. From a query's `done` too.
  void Reconnect();

  // Ends a query that runs with kUnavailable.
  void Close();

 private:
  enum class State { kConnecting, kIdle, kBusy, kWaiting, kClosed };

  void Connect();
  void Drop(const std::string& why);
  void PollSocket(int events);
  void StopPolling();
  void OnSocket(int events);
  void OnTimer();
  void GoOnConnecting();
  void Flush();
  void Read();
  void ReadNotifications();
  void FinishQuery();
  void TellIdle();
  void StartTimer(std::chrono::milliseconds wait);
  StoreError ErrorOf(const PGresult* result) const;

  uv_loop_t* const loop_;
  const std::string settings_;
  const std::chrono::milliseconds reconnect_;
  const Events events_;
  State state_ = State::kWaiting;
  PGconn* connection_ = nullptr;
  uv_poll_t* poll_ = nullptr;
  int polled_socket_ = -1;
  uv_timer_t timer_{};
  PostgresQuery query_;
  PostgresResult rows_;
  bool failed_ = false;
  StoreError error_;
};

}  // namespace example::ledger
