#include "penstock/testing/router.h"

#include <arpa/inet.h>

#include "penstock/testing/frame_log.h"
#include "testing/router_impl.h"

namespace penstock::inline v0::testing {

using detail::Stream;

namespace {

// How long a connection that was cut in order may take to end at its other ends.
constexpr std::uint64_t kPartingMilliseconds = 250;

template <class Handle>
uv_handle_t* AnyHandle(Handle& handle) {
  return reinterpret_cast<uv_handle_t*>(&handle);
}

}  // namespace

void Router::Impl::Close() {
  loop_->Run([this] {
    closing_ = true;
    CutWhere([](const Connection&) { return true; }, Cut::kClose);
    for (const auto& [id, connection] : connections_) CloseHandles(*connection);
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
  const auto end = SaturatingAdd(std::chrono::steady_clock::now(), limit);
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
  connection->id = settings_.frame_log != nullptr ? settings_.frame_log->OnOpened(connection->target) : ++next_id_;
  connections_[connection->id] = connection;
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
  Update([&](RouterStats& stats) {
    --stats.live;
    stats.held -= connection.held;
    if (connection.target != 0) --stats.targets[connection.target].live;
  });
  if (settings_.frame_log != nullptr) settings_.frame_log->OnClosed(connection.id);
  if (how == Cut::kReset) {
    detail::ResetOnClose(connection.client);
    detail::ResetOnClose(connection.server);
    return CloseHandles(connection);
  }
  const bool ended = connection.pipes[kToServer].ended && connection.pipes[kToClient].ended;
  if (ended || closing_) return CloseHandles(connection);
  Part(connection);
}

// Ends both ways and reads what still comes: closing with bytes unread would be a reset. Where its target has not taken it
// yet, there is only the client's side.
void Router::Impl::Part(Connection& connection) {
  const auto open = [&](const uv_tcp_t* socket) { return connection.connected || socket == &connection.client; };
  for (Pipe& pipe : connection.pipes) {
    uv_timer_stop(&pipe.timer);
    pipe.waiting.clear();
    if (open(pipe.to) && !pipe.ended && !EndWriting(pipe)) return CloseHandles(connection);
    pipe.at_end = pipe.at_end || !open(pipe.from);
    if (!pipe.at_end && !std::exchange(pipe.reading, true)) StartReading(pipe);
  }
  uv_update_time(loop_->uv());
  uv_timer_start(
      &connection.pipes[kToServer].timer,
      [](uv_timer_t* timer) { CloseHandles(*static_cast<Pipe*>(timer->data)->connection); }, kPartingMilliseconds, 0);
}

void Router::Impl::CloseHandles(Connection& connection) {
  if (std::exchange(connection.closing, true)) return;
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
