#include "postgres_connection.h"

#include <cstring>
#include <utility>

namespace example::ledger {

namespace {

constexpr char kQueryCanceled[] = "57014";
constexpr std::chrono::milliseconds kAnswerGrace{1000};

}  // namespace

PostgresConnection::PostgresConnection(uv_loop_t* loop, std::string settings, std::chrono::milliseconds reconnect, Events events)
    : loop_(loop), settings_(std::move(settings)), reconnect_(reconnect), events_(std::move(events)) {
  uv_timer_init(loop_, &timer_);
  timer_.data = this;
  Connect();
}

PostgresConnection::~PostgresConnection() = default;

void PostgresConnection::Connect() {
  connection_ = PQconnectStart(settings_.c_str());
  if (connection_ == nullptr || PQstatus(connection_) == CONNECTION_BAD) return Drop("cannot start a connection");
  PQsetnonblocking(connection_, 1);
  PQsetNoticeProcessor(connection_, [](void*, const char*) {}, nullptr);  // errors come with results, and as a dropped connection
  state_ = State::kConnecting;
  StartTimer(std::chrono::seconds(5));
  PollSocket(UV_WRITABLE);
}

void PostgresConnection::Drop(const std::string& why) {
  StopPolling();
  if (connection_ != nullptr) PQfinish(connection_);
  connection_ = nullptr;
  const State was = std::exchange(state_, State::kWaiting);
  StartTimer(reconnect_);
  if (was == State::kBusy) {
    rows_.reset();
    PostgresQuery query = std::exchange(query_, {});
    query.done(StoreError{StoreProblem::kUnavailable, "postgresql: " + why});
  }
}

void PostgresConnection::Reconnect() {
  if (state_ != State::kClosed && state_ != State::kWaiting) Drop("begun anew");
}

void PostgresConnection::Close() {
  if (state_ == State::kClosed) return;
  Drop("the store is closing");
  state_ = State::kClosed;
  uv_timer_stop(&timer_);
  uv_close(reinterpret_cast<uv_handle_t*>(&timer_), [](uv_handle_t* handle) {
    static_cast<PostgresConnection*>(handle->data)->events_.closed();
  });
}

// libpq may change its socket while it connects, so the handle is made anew when it does.
void PostgresConnection::PollSocket(int events) {
  const int socket = PQsocket(connection_);
  if (poll_ != nullptr && socket != polled_socket_) StopPolling();
  if (poll_ == nullptr) {
    poll_ = new uv_poll_t;
    poll_->data = this;
    polled_socket_ = socket;
    if (uv_poll_init(loop_, poll_, socket) != 0) {
      delete std::exchange(poll_, nullptr);
      return Drop("its socket cannot be polled");
    }
  }
  uv_poll_start(poll_, events, [](uv_poll_t* poll, int status, int ready) {
    auto* self = static_cast<PostgresConnection*>(poll->data);
    if (status != 0) return self->Drop(uv_strerror(status));
    self->OnSocket(ready);
  });
}

void PostgresConnection::StopPolling() {
  if (poll_ == nullptr) return;
  uv_poll_stop(poll_);
  uv_close(reinterpret_cast<uv_handle_t*>(std::exchange(poll_, nullptr)),
           [](uv_handle_t* handle) { delete reinterpret_cast<uv_poll_t*>(handle); });
}

void PostgresConnection::OnSocket(int events) {
  if (state_ == State::kConnecting) return GoOnConnecting();
  if ((events & UV_WRITABLE) != 0) Flush();
  if (connection_ != nullptr && (events & UV_READABLE) != 0) Read();
}

void PostgresConnection::GoOnConnecting() {
  switch (PQconnectPoll(connection_)) {
    case PGRES_POLLING_READING: return PollSocket(UV_READABLE);
    case PGRES_POLLING_WRITING: return PollSocket(UV_WRITABLE);
    case PGRES_POLLING_OK:
      if (PQenterPipelineMode(connection_) != 1) return Drop("no pipeline mode");
      state_ = State::kIdle;
      uv_timer_stop(&timer_);
      PollSocket(UV_READABLE);
      if (events_.connected) events_.connected();
      return TellIdle();
    case PGRES_POLLING_FAILED:
    case PGRES_POLLING_ACTIVE: return Drop(PQerrorMessage(connection_));
  }
}

void PostgresConnection::OnTimer() {
  switch (state_) {
    case State::kWaiting: return Connect();
    case State::kConnecting: return Drop("no answer while connecting");
    case State::kBusy: return Drop("no answer to a query");
    case State::kIdle:
    case State::kClosed: return;
  }
}

void PostgresConnection::StartTimer(std::chrono::milliseconds wait) {
  uv_update_time(loop_);
  uv_timer_start(
      &timer_, [](uv_timer_t* timer) { static_cast<PostgresConnection*>(timer->data)->OnTimer(); },
      static_cast<std::uint64_t>(wait.count()), 0);
}

// Two statements and one synchronisation: an implicit transaction, to which the timeout is local.
void PostgresConnection::Run(PostgresQuery query) {
  query_ = std::move(query);
  state_ = State::kBusy;
  failed_ = false;
  const std::string timeout = std::to_string(query_.timeout.count());
  const char* timeout_parameter[] = {timeout.c_str()};
  std::vector<const char*> parameters;
  for (const std::string& parameter : query_.parameters) parameters.push_back(parameter.c_str());
  const bool sent =
      PQsendQueryParams(connection_, "SELECT set_config('statement_timeout', $1, true)", 1, nullptr, timeout_parameter, nullptr, nullptr, 0) == 1 &&
      PQsendQueryParams(connection_, query_.sql, static_cast<int>(parameters.size()), nullptr, parameters.data(), nullptr, nullptr, 0) == 1 &&
      PQpipelineSync(connection_) == 1;
  if (!sent) return Drop(PQerrorMessage(connection_));
  if (query_.timeout.count() > 0) StartTimer(query_.timeout + kAnswerGrace);
  Flush();
}

void PostgresConnection::Flush() {
  switch (PQflush(connection_)) {
    case 0: return PollSocket(UV_READABLE);
    case 1: return PollSocket(UV_READABLE | UV_WRITABLE);
    default: return Drop(PQerrorMessage(connection_));
  }
}

void PostgresConnection::Read() {
  if (PQconsumeInput(connection_) != 1) return Drop(PQerrorMessage(connection_));
  ReadNotifications();
  while (state_ == State::kBusy && PQisBusy(connection_) == 0) {
    PostgresResult result(PQgetResult(connection_));
    if (result == nullptr) continue;  // the end of one statement's results
    switch (PQresultStatus(result.get())) {
      case PGRES_PIPELINE_SYNC: return FinishQuery();
      case PGRES_PIPELINE_ABORTED: break;  // the statement before it failed, and has said why
      case PGRES_COMMAND_OK:
      case PGRES_TUPLES_OK: rows_ = std::move(result); break;
      default:
        failed_ = true;
        error_ = ErrorOf(result.get());
    }
  }
}

void PostgresConnection::ReadNotifications() {
  while (PGnotify* notification = PQnotifies(connection_)) {
    const std::string payload = notification->extra == nullptr ? "" : notification->extra;
    PQfreemem(notification);
    events_.notified(payload);
  }
}

void PostgresConnection::FinishQuery() {
  state_ = State::kIdle;
  uv_timer_stop(&timer_);
  PostgresQuery query = std::exchange(query_, {});
  PostgresResult rows = std::move(rows_);
  query.done(failed_ ? StoreResult<PostgresResult>(error_) : StoreResult<PostgresResult>(std::move(rows)));
  TellIdle();
}

void PostgresConnection::TellIdle() {
  if (state_ == State::kIdle && events_.idle) events_.idle();
}

StoreError PostgresConnection::ErrorOf(const PGresult* result) const {
  const char* code = PQresultErrorField(result, PG_DIAG_SQLSTATE);
  const bool canceled = code != nullptr && std::strcmp(code, kQueryCanceled) == 0;
  return {canceled ? StoreProblem::kDeadline : StoreProblem::kUnavailable, std::string("postgresql: ") + PQresultErrorMessage(result)};
}

}  // namespace example::ledger
