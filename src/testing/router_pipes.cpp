#include "testing/router_impl.h"

#include <string_view>

#include "penstock/testing/frame_log.h"

namespace penstock::inline v0::testing {

using detail::Stream;

void Router::Impl::SetHeld(Connection& connection, bool held) {
  if (connection.held == held) return;
  connection.held = held;
  Update([&](RouterStats& stats) { held ? ++stats.held : --stats.held; });
  for (Pipe& pipe : connection.pipes) {
    if (connection.cut) return;
    Advance(pipe);
  }
}

// Starts or stops reading as the connection's state asks for, and sends what is due.
void Router::Impl::Advance(Pipe& pipe) {
  Connection& connection = *pipe.connection;
  Flush(pipe);
  if (connection.cut) return;
  // Below the bound reading goes on only when half of it is free, so that it does not flutter.
  const std::size_t bound = pipe.reading ? settings_.max_buffered_bytes : settings_.max_buffered_bytes / 2 + 1;
  const bool read = connection.connected && !connection.held && !pipe.at_end && pipe.buffered < bound;
  if (read == pipe.reading) return;
  pipe.reading = read;
  if (!read) {
    uv_read_stop(Stream(*pipe.from));
    return;
  }
  StartReading(pipe);
}

void Router::Impl::StartReading(Pipe& pipe) {
  uv_read_start(
      Stream(*pipe.from),
      [](uv_handle_t* handle, std::size_t, uv_buf_t* buffer) {
        // One for all: what is read is sent or copied before the next read.
        Impl& router = *static_cast<Connection*>(handle->data)->router;
        *buffer = uv_buf_init(router.read_buffer_, sizeof router.read_buffer_);
      },
      [](uv_stream_t* stream, ssize_t count, const uv_buf_t* buffer) {
        auto& read_from = *static_cast<Connection*>(stream->data);
        const Direction direction = stream == Stream(read_from.client) ? kToServer : kToClient;
        read_from.router->OnRead(read_from.pipes[direction], count, buffer->base);
      });
}

void Router::Impl::OnRead(Pipe& pipe, ssize_t count, const char* bytes) {
  if (count == 0) return;
  Connection& connection = *pipe.connection;
  if (connection.cut) {  // what comes now is dropped
    pipe.at_end = pipe.at_end || count < 0;
    if (connection.pipes[kToServer].at_end && connection.pipes[kToClient].at_end) CloseHandles(connection);
    return;
  }
  const auto due = uv_hrtime() + static_cast<std::uint64_t>(delay_[pipe.direction].count());
  if (count == UV_EOF) {
    pipe.at_end = true;
    pipe.end_due = due;
    return Advance(pipe);
  }
  // A reset is passed on as one.
  if (count < 0) return Abort(connection, Cut::kReset);

  if (settings_.frame_log != nullptr) {
    settings_.frame_log->OnBytes(connection.id, pipe.direction == kToClient,
                                 std::string_view(bytes, static_cast<std::size_t>(count)));
  }
  Update([&](RouterStats& stats) {
    (pipe.direction == kToServer ? stats.bytes_to_server : stats.bytes_to_client) += static_cast<std::uint64_t>(count);
  });
  std::size_t taken = 0;
  if (pipe.buffered == 0 && delay_[pipe.direction] == Duration::zero()) {
    uv_buf_t buffer = uv_buf_init(const_cast<char*>(bytes), static_cast<unsigned>(count));
    const int written = uv_try_write(Stream(*pipe.to), &buffer, 1);
    if (written < 0 && written != UV_EAGAIN) return Abort(connection, Cut::kReset);
    taken = static_cast<std::size_t>(std::max(written, 0));
  }
  const std::size_t rest = static_cast<std::size_t>(count) - taken;
  if (rest == 0) return;
  pipe.waiting.push_back({.due = due, .bytes = std::string(bytes + taken, rest)});
  pipe.buffered += rest;
  Advance(pipe);
}

void Router::Impl::Flush(Pipe& pipe) {
  Connection& connection = *pipe.connection;
  if (!connection.connected || connection.held) {
    uv_timer_stop(&pipe.timer);
    return;
  }
  const std::uint64_t now = uv_hrtime();
  while (!pipe.waiting.empty() && pipe.waiting.front().due <= now) {
    std::string bytes = std::move(pipe.waiting.front().bytes);
    pipe.waiting.pop_front();
    if (!Send(pipe, std::move(bytes))) return;
  }
  if (pipe.waiting.empty() && pipe.at_end && pipe.end_due <= now && !pipe.ended) {
    pipe.ended = true;
    if (connection.pipes[1 - pipe.direction].ended) return CloseIfDone(connection);
    if (!EndWriting(pipe)) Abort(connection, Cut::kReset);
    return;
  }
  std::uint64_t next = 0;
  if (!pipe.waiting.empty()) {
    next = pipe.waiting.front().due;
  } else if (pipe.at_end && !pipe.ended) {
    next = pipe.end_due;
  } else {
    return;
  }
  // The loop's idea of now may be old by as long as this turn has taken; rounded up, so that nothing leaves too early.
  uv_update_time(loop_->uv());
  uv_timer_start(
      &pipe.timer,
      [](uv_timer_t* timer) {
        auto& due = *static_cast<Pipe*>(timer->data);
        due.connection->router->Advance(due);
      },
      (next - now + 999'999) / 1'000'000, 0);
}

bool Router::Impl::EndWriting(Pipe& pipe) {
  auto* shutdown = new uv_shutdown_t;
  if (uv_shutdown(shutdown, Stream(*pipe.to), [](uv_shutdown_t* done, int) { delete done; }) == 0) return true;
  delete shutdown;
  return false;
}

void Router::Impl::CloseIfDone(Connection& connection) {
  for (const Pipe& pipe : connection.pipes) {
    if (!pipe.ended || pipe.buffered != 0) return;
  }
  Abort(connection, Cut::kClose);
}

bool Router::Impl::Send(Pipe& pipe, std::string bytes) {
  auto* write = new Write{.request = {}, .pipe = &pipe, .bytes = std::move(bytes)};
  write->request.data = write;
  uv_buf_t buffer = uv_buf_init(write->bytes.data(), static_cast<unsigned>(write->bytes.size()));
  // Called before the handles' own close callbacks where the connection is cut, so the pipe still exists.
  const int started = uv_write(&write->request, Stream(*pipe.to), &buffer, 1, [](uv_write_t* request, int status) {
    auto* done = static_cast<Write*>(request->data);
    Pipe& written = *done->pipe;
    written.buffered -= done->bytes.size();
    delete done;
    Connection& connection = *written.connection;
    if (connection.cut) return;
    if (status != 0) return connection.router->Abort(connection, Cut::kReset);
    connection.router->Advance(written);
    connection.router->CloseIfDone(connection);
  });
  if (started == 0) return true;
  delete write;
  Abort(*pipe.connection, Cut::kReset);
  return false;
}

}  // namespace penstock::inline v0::testing
