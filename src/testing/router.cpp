#include "penstock/testing/router.h"

#include <arpa/inet.h>
#include <uv.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

#include "penstock/testing/frame_log.h"
#include "testing/listener.h"
#include "testing/loop.h"

namespace penstock::inline v0::testing {

namespace {

uv_stream_t* Stream(uv_tcp_t& socket) { return reinterpret_cast<uv_stream_t*>(&socket); }

template <class Handle>
uv_handle_t* AnyHandle(Handle& handle) {
  return reinterpret_cast<uv_handle_t*>(&handle);
}

}  // namespace

// Everything below runs on the loop's thread, unless it says otherwise.
class Router::Impl {
 public:
  explicit Impl(RouterSettings settings) : settings_(std::move(settings)), loop_(detail::Loop::Shared()), listener_(*loop_) {
    delay_[kToServer] = delay_[kToClient] = std::max(settings_.delay, Duration::zero());
    targets_ = settings_.targets;
    NoteTargets();
  }

  // On the creator's thread; the reason when it fails.
  std::string Listen() {
    return listener_.Listen("router", settings_.host, settings_.port,
                            [this](uv_stream_t* listener) { OnConnection(listener); });
  }
  // On the destroyer's thread: returns when every handle is closed.
  void Close();

  void Run(const std::function<void()>& task) { loop_->Run(task); }

  std::uint16_t port() const noexcept { return listener_.port(); }
  std::string address() const { return settings_.host + ":" + std::to_string(port()); }

  void SetTargets(std::vector<std::uint16_t> ports);
  void RemoveTarget(std::uint16_t port);
  void SetDelay(Duration to_server, Duration to_client);
  void HoldNew(bool hold) { hold_new_ = hold; }
  void StallAll();
  void FreezeTarget(std::uint16_t port, bool frozen);
  void Release();
  template <class Which>
  std::size_t CutWhere(const Which& which, Cut how);

  // On any thread.
  RouterStats stats() const {
    std::lock_guard lock(mutex_);
    return stats_;
  }
  bool WaitUntil(const std::function<bool(const RouterStats&)>& predicate, Duration limit) const;

  std::vector<RouterConnection> connections() const;

 private:
  enum Direction { kToServer = 0, kToClient = 1 };
  struct Connection;

  // One direction of a connection: reads from one socket, keeps bytes until they are due, writes to the other.
  struct Pipe {
    struct Chunk {
      std::uint64_t due;  // uv_hrtime
      std::string bytes;
    };

    Connection* connection = nullptr;
    Direction direction = kToServer;
    uv_tcp_t* from = nullptr;
    uv_tcp_t* to = nullptr;
    uv_timer_t timer{};
    std::deque<Chunk> waiting;
    std::size_t buffered = 0;  // waiting, and handed to the kernel but not taken yet
    bool reading = false;
    bool at_end = false;  // the sender's end of file was read
    std::uint64_t end_due = 0;
    bool ended = false;  // and passed on
  };

  struct Connection {
    Impl* router = nullptr;
    std::uint64_t id = 0;
    std::uint16_t target = 0;
    std::uint16_t client_port = 0;
    bool connected = false;
    bool held = false;
    bool cut = false;
    int open_handles = 0;
    uv_tcp_t client{};
    uv_tcp_t server{};
    uv_connect_t connect{};
    Pipe pipes[2];
  };

  struct Write {
    uv_write_t request;
    Pipe* pipe;
    std::string bytes;
  };

  template <class Change>
  void Update(const Change& change) {
    {
      std::lock_guard lock(mutex_);
      change(stats_);
      ++changes_;
    }
    changed_.notify_all();
  }

  void NoteTargets() {
    Update([this](RouterStats& stats) {
      for (const std::uint16_t port : targets_) stats.targets.try_emplace(port);
    });
  }

  void OnConnection(uv_stream_t* listener);
  void OnConnected(Connection& connection, int status);
  void Abort(Connection& connection, Cut how);
  static void OnHandleClosed(Connection& connection);
  void OnClosedSomething();
  void SetHeld(Connection& connection, bool held);
  // Closes it when both ends of file were passed on and every byte was taken.
  void CloseIfDone(Connection& connection);

  void Advance(Pipe& pipe);
  void OnRead(Pipe& pipe, ssize_t count, const char* bytes);
  void Flush(Pipe& pipe);
  // False when the connection was aborted.
  bool Send(Pipe& pipe, std::string bytes);

  RouterSettings settings_;
  std::shared_ptr<detail::Loop> loop_;
  detail::Listener listener_;
  bool hold_new_ = false;
  std::set<std::uint16_t> frozen_;
  Duration delay_[2] = {};
  std::vector<std::uint16_t> targets_;
  std::size_t next_target_ = 0;
  std::uint64_t next_id_ = 0;
  std::map<std::uint64_t, Connection*> connections_;  // every one with an open handle; they delete themselves
  char read_buffer_[64 * 1024];

  bool closing_ = false;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  RouterStats stats_;          // guarded by mutex_
  std::uint64_t changes_ = 0;  // guarded by mutex_
  bool closed_ = false;        // guarded by mutex_
};

void Router::Impl::Close() {
  loop_->Run([this] {
    closing_ = true;
    CutWhere([](const Connection&) { return true; }, Cut::kClose);
    listener_.Close([this] { OnClosedSomething(); });
  });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return closed_; });
}

void Router::Impl::SetTargets(std::vector<std::uint16_t> ports) {
  targets_ = std::move(ports);
  next_target_ = 0;
  NoteTargets();
}

void Router::Impl::RemoveTarget(std::uint16_t port) {
  std::erase(targets_, port);
  next_target_ = 0;
}

void Router::Impl::SetDelay(Duration to_server, Duration to_client) {
  delay_[kToServer] = std::max(to_server, Duration::zero());
  delay_[kToClient] = std::max(to_client, Duration::zero());
}

void Router::Impl::StallAll() {
  for (const auto& [id, connection] : connections_) {
    if (!connection->cut) SetHeld(*connection, true);
  }
}

void Router::Impl::FreezeTarget(std::uint16_t port, bool frozen) {
  if (frozen) {
    frozen_.insert(port);
  } else {
    frozen_.erase(port);
  }
  for (const auto& [id, connection] : connections_) {
    if (!connection->cut && connection->target == port) SetHeld(*connection, frozen);
  }
}

void Router::Impl::Release() {
  // What ends now is erased only when its handles are closed, on a later turn of the loop.
  for (const auto& [id, connection] : connections_) {
    if (!connection->cut && !frozen_.contains(connection->target)) SetHeld(*connection, false);
  }
}

template <class Which>
std::size_t Router::Impl::CutWhere(const Which& which, Cut how) {
  std::size_t count = 0;
  for (const auto& [id, connection] : connections_) {
    if (connection->cut || !which(*connection)) continue;
    Abort(*connection, how);
    ++count;
  }
  return count;
}

bool Router::Impl::WaitUntil(const std::function<bool(const RouterStats&)>& predicate, Duration limit) const {
  const auto end = std::chrono::steady_clock::now() + limit;
  std::unique_lock lock(mutex_);
  for (;;) {
    const RouterStats seen = stats_;
    const std::uint64_t seen_at = changes_;
    lock.unlock();
    if (predicate(seen)) return true;
    lock.lock();
    if (!changed_.wait_until(lock, end, [&] { return changes_ != seen_at; })) return false;
  }
}

std::vector<RouterConnection> Router::Impl::connections() const {
  std::vector<RouterConnection> live;
  for (const auto& [id, connection] : connections_) {
    if (connection->cut) continue;
    live.push_back({.id = id,
                    .target = connection->target,
                    .client_port = connection->client_port,
                    .held = connection->held});
  }
  return live;
}

void Router::Impl::OnConnection(uv_stream_t* listener) {
  auto* connection = new Connection;
  connection->router = this;
  connection->id = ++next_id_;
  connections_[connection->id] = connection;
  connection->client.data = connection->server.data = connection;
  uv_tcp_init(loop_->uv(), &connection->client);
  uv_tcp_init(loop_->uv(), &connection->server);
  connection->open_handles = 2;
  for (const Direction direction : {kToServer, kToClient}) {
    Pipe& pipe = connection->pipes[direction];
    pipe.connection = connection;
    pipe.direction = direction;
    pipe.from = direction == kToServer ? &connection->client : &connection->server;
    pipe.to = direction == kToServer ? &connection->server : &connection->client;
    uv_timer_init(loop_->uv(), &pipe.timer);
    pipe.timer.data = &pipe;
    ++connection->open_handles;
  }

  const int accepted = uv_accept(listener, Stream(connection->client));
  sockaddr_in peer{};
  int length = sizeof peer;
  if (uv_tcp_getpeername(&connection->client, reinterpret_cast<sockaddr*>(&peer), &length) == 0) {
    connection->client_port = ntohs(peer.sin_port);
  }
  if (!targets_.empty()) connection->target = targets_[next_target_++ % targets_.size()];
  connection->held = hold_new_ || frozen_.contains(connection->target);
  Update([&](RouterStats& stats) {
    ++stats.accepted;
    ++stats.live;
    stats.held += connection->held;
    if (connection->target == 0) {
      ++stats.refused;
      return;
    }
    RouterTargetStats& target = stats.targets[connection->target];
    ++target.total;
    ++target.live;
  });
  if (settings_.frame_log != nullptr) settings_.frame_log->OnOpened(connection->id, connection->target);
  if (accepted != 0 || connection->target == 0 || closing_) return Abort(*connection, Cut::kReset);

  uv_tcp_nodelay(&connection->client, 1);
  uv_tcp_nodelay(&connection->server, 1);
  connection->connect.data = connection;
  const sockaddr_in address = detail::Ipv4("127.0.0.1", connection->target);
  const int started = uv_tcp_connect(&connection->connect, &connection->server, reinterpret_cast<const sockaddr*>(&address),
                                     [](uv_connect_t* connect, int status) {
                                       auto& made = *static_cast<Connection*>(connect->data);
                                       made.router->OnConnected(made, status);
                                     });
  if (started != 0) OnConnected(*connection, started);
}

void Router::Impl::OnConnected(Connection& connection, int status) {
  if (connection.cut) return;
  if (status != 0) {
    Update([](RouterStats& stats) { ++stats.refused; });
    return Abort(connection, Cut::kReset);
  }
  connection.connected = true;
  for (Pipe& pipe : connection.pipes) Advance(pipe);
}

void Router::Impl::Abort(Connection& connection, Cut how) {
  if (connection.cut) return;
  connection.cut = true;
  if (how == Cut::kReset) {
    detail::ResetOnClose(connection.client);
    detail::ResetOnClose(connection.server);
  }
  Update([&](RouterStats& stats) {
    --stats.live;
    stats.held -= connection.held;
    if (connection.target != 0) --stats.targets[connection.target].live;
  });
  if (settings_.frame_log != nullptr) settings_.frame_log->OnClosed(connection.id);
  for (uv_tcp_t* socket : {&connection.client, &connection.server}) {
    uv_close(AnyHandle(*socket), [](uv_handle_t* handle) { OnHandleClosed(*static_cast<Connection*>(handle->data)); });
  }
  for (Pipe& pipe : connection.pipes) {
    uv_close(AnyHandle(pipe.timer),
             [](uv_handle_t* handle) { OnHandleClosed(*static_cast<Pipe*>(handle->data)->connection); });
  }
}

void Router::Impl::OnHandleClosed(Connection& connection) {
  if (--connection.open_handles != 0) return;
  Impl& router = *connection.router;
  router.connections_.erase(connection.id);
  delete &connection;
  router.OnClosedSomething();
}

void Router::Impl::OnClosedSomething() {
  std::lock_guard lock(mutex_);
  if (!closing_ || listener_.open() || !connections_.empty()) return;
  closed_ = true;
  // Under the lock: Close() destroys all this as soon as it is let go.
  changed_.notify_all();
}

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
    auto* shutdown = new uv_shutdown_t;
    const int started = uv_shutdown(shutdown, Stream(*pipe.to), [](uv_shutdown_t* done, int) { delete done; });
    if (started != 0) {
      delete shutdown;
      Abort(connection, Cut::kReset);
    }
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

Result<std::unique_ptr<Router>> Router::Create(RouterSettings settings) {
  auto impl = std::make_unique<Impl>(std::move(settings));
  std::string problem = impl->Listen();
  std::unique_ptr<Router> router(new Router(std::move(impl)));
  if (!problem.empty()) return Error(std::move(problem));
  return router;
}

Router::Router(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Router::~Router() { impl_->Close(); }

std::uint16_t Router::port() const noexcept { return impl_->port(); }

std::string Router::address() const { return impl_->address(); }

void Router::SetTargets(std::vector<std::uint16_t> ports) {
  impl_->Run([&] { impl_->SetTargets(std::move(ports)); });
}

void Router::SetDelay(Duration to_server, Duration to_client) {
  impl_->Run([&] { impl_->SetDelay(to_server, to_client); });
}

void Router::HoldNew(bool hold) {
  impl_->Run([&] { impl_->HoldNew(hold); });
}

void Router::StallAll() {
  impl_->Run([&] { impl_->StallAll(); });
}

void Router::FreezeTarget(std::uint16_t port, bool frozen) {
  impl_->Run([&] { impl_->FreezeTarget(port, frozen); });
}

void Router::Release() {
  impl_->Run([&] { impl_->Release(); });
}

bool Router::CutConnection(std::uint64_t id, Cut how) {
  std::size_t count = 0;
  impl_->Run([&] { count = impl_->CutWhere([&](const auto& connection) { return connection.id == id; }, how); });
  return count != 0;
}

std::size_t Router::CutTarget(std::uint16_t port, Cut how) {
  std::size_t count = 0;
  impl_->Run([&] { count = impl_->CutWhere([&](const auto& connection) { return connection.target == port; }, how); });
  return count;
}

std::size_t Router::CutAll(Cut how) {
  std::size_t count = 0;
  impl_->Run([&] { count = impl_->CutWhere([](const auto&) { return true; }, how); });
  return count;
}

std::size_t Router::DropTarget(std::uint16_t port, Cut how) {
  std::size_t count = 0;
  impl_->Run([&] {
    impl_->RemoveTarget(port);
    count = impl_->CutWhere([&](const auto& connection) { return connection.target == port; }, how);
  });
  return count;
}

RouterStats Router::stats() const { return impl_->stats(); }

std::vector<RouterConnection> Router::connections() const {
  std::vector<RouterConnection> live;
  impl_->Run([&] { live = impl_->connections(); });
  return live;
}

bool Router::WaitUntil(const std::function<bool(const RouterStats&)>& predicate, Duration limit) const {
  return impl_->WaitUntil(predicate, limit);
}

}  // namespace penstock::inline v0::testing
