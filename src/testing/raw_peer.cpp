#include "penstock/testing/raw_peer.h"

#include <uv.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

#include "testing/frame_reader.h"
#include "testing/listener.h"
#include "testing/loop.h"

namespace penstock::inline v0::testing {

// Everything runs on the loop's thread, unless it says otherwise.
class RawPeer::Impl {
 public:
  explicit Impl(RawPeerSettings settings)
      : settings_(std::move(settings)), loop_(detail::Loop::Shared()), listener_(*loop_) {}

  // On the creator's thread.
  std::string Listen() {
    return listener_.Listen("raw peer", settings_.host, settings_.port, [this](uv_stream_t* listener) {
      OnConnection(listener);
    });
  }

  // On the destroyer's thread: returns when every handle is closed.
  void Close() {
    loop_->Run([this] {
      closing_ = true;
      CloseAll(false);
      listener_.Close([this] { OnClosedSomething(); });
    });
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return closed_; });
  }

  void Run(const std::function<void()>& task) { loop_->Run(task); }

  std::uint16_t port() const noexcept { return listener_.port(); }
  std::string address() const { return settings_.host + ":" + std::to_string(port()); }

  // On any thread.
  RawPeerStats stats() const {
    std::lock_guard lock(mutex_);
    return stats_;
  }
  std::vector<RawRequest> requests() const {
    std::lock_guard lock(mutex_);
    return requests_;
  }
  bool WaitUntil(const std::function<bool(const RawPeerStats&)>& predicate, Duration limit) const {
    const auto end = SaturatingAdd(std::chrono::steady_clock::now(), limit);
    std::unique_lock lock(mutex_);
    for (;;) {
      const RawPeerStats seen = stats_;
      const std::uint64_t seen_at = changes_;
      lock.unlock();
      if (predicate(seen)) return true;
      lock.lock();
      if (!changed_.wait_until(lock, end, [&] { return changes_ != seen_at; })) return false;
    }
  }

  void SetAnswer(std::function<RawScript(const RawRequest&)> answer) { settings_.answer = std::move(answer); }
  void Signal();
  void SendToAll(const RawFrame& frame);
  void CloseAll(bool reset);

 private:
  struct Connection;

  struct Stream {
    Connection* connection = nullptr;
    std::size_t request = 0;  // its place in requests_
    std::uint32_t id = 0;
    std::vector<RawScript::Step> steps;
    std::size_t next_step = 0;
    std::string data;  // of a message that is not whole yet
    uv_timer_t* timer = nullptr;
    bool signalled = false;
    bool ended = false;     // by the client
    bool answered = false;  // ended by the script
    bool reset = false;     // by the client
    std::size_t messages = 0;

    bool done() const noexcept {
      return (reset || (ended && answered)) && next_step == steps.size() && timer == nullptr;
    }
  };

  struct Connection {
    Impl* peer = nullptr;
    std::uint64_t id = 0;
    uv_tcp_t socket{};
    detail::FrameReader reader{true};
    std::map<std::uint32_t, Stream> streams;
    bool shutting_down = false;  // nothing more is sent
    bool closed = false;
  };

  template <class Change>
  void Update(const Change& change) {
    {
      std::lock_guard lock(mutex_);
      change();
      ++changes_;
    }
    changed_.notify_all();
  }

  void OnConnection(uv_stream_t* listener);
  void OnBytes(Connection& connection, ssize_t count, std::string_view bytes);
  void OnFrame(Connection& connection, detail::ReadFrame& frame);
  void OnRequest(Connection& connection, detail::ReadFrame& frame);
  void OnData(Connection& connection, Stream& stream, const detail::ReadFrame& frame);
  void OnEnd(Stream& stream);
  // Where the stream's request is kept, under mutex_; null past max_requests.
  RawRequest* Kept(const Stream& stream) {
    return stream.request < requests_.size() ? &requests_[stream.request] : nullptr;
  }
  void RunScript(Stream& stream);
  // Where it is done: after this nobody may use it.
  void Forget(Connection& connection, std::uint32_t stream);
  // False where the step has to wait.
  bool RunStep(Stream& stream, const RawScript::Step& step);
  bool RunPause(Stream& stream, Duration length);
  void Write(Connection& connection, std::string bytes);
  void CloseConnection(Connection& connection, bool reset);
  void CloseHandles(Connection& connection);
  void OnClosedSomething();

  RawPeerSettings settings_;
  std::shared_ptr<detail::Loop> loop_;
  detail::Listener listener_;
  std::map<std::uint64_t, Connection*> connections_;
  std::uint64_t next_connection_ = 0;
  bool closing_ = false;
  char read_buffer_[64 * 1024];

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  // All guarded by mutex_.
  RawPeerStats stats_;
  std::uint64_t changes_ = 0;
  std::vector<RawRequest> requests_;
  bool closed_ = false;
};

void RawPeer::Impl::Signal() {
  for (const auto& [id, connection] : connections_) {
    for (auto& [stream_id, stream] : connection->streams) {
      stream.signalled = true;
      RunScript(stream);
    }
    std::erase_if(connection->streams, [](const auto& entry) { return entry.second.done(); });
  }
}

void RawPeer::Impl::Forget(Connection& connection, std::uint32_t stream) {
  const auto found = connection.streams.find(stream);
  if (found != connection.streams.end() && found->second.done()) connection.streams.erase(found);
}

void RawPeer::Impl::SendToAll(const RawFrame& frame) {
  for (const auto& [id, connection] : connections_) Write(*connection, Encode(frame));
}

void RawPeer::Impl::CloseAll(bool reset) {
  for (const auto& [id, connection] : connections_) {
    if (closing_) {
      CloseHandles(*connection);
    } else {
      CloseConnection(*connection, reset);
    }
  }
}

void RawPeer::Impl::OnConnection(uv_stream_t* listener) {
  auto* connection = new Connection;
  connection->peer = this;
  connection->id = ++next_connection_;
  connections_[connection->id] = connection;
  connection->socket.data = connection;
  uv_tcp_init(loop_->uv(), &connection->socket);
  Update([this] {
    ++stats_.connections;
    ++stats_.live_connections;
  });
  auto* stream = reinterpret_cast<uv_stream_t*>(&connection->socket);
  if (uv_accept(listener, stream) != 0 || closing_) return CloseHandles(*connection);
  uv_tcp_nodelay(&connection->socket, 1);
  uv_read_start(
      stream,
      [](uv_handle_t* handle, std::size_t, uv_buf_t* buffer) {
        Impl& peer = *static_cast<Connection*>(handle->data)->peer;
        *buffer = uv_buf_init(peer.read_buffer_, sizeof peer.read_buffer_);
      },
      [](uv_stream_t* from, ssize_t count, const uv_buf_t* buffer) {
        auto& read_from = *static_cast<Connection*>(from->data);
        const std::string_view bytes(buffer->base, static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
        read_from.peer->OnBytes(read_from, count, bytes);
      });
  if (settings_.send_settings) Write(*connection, Encode(SettingsFrame(settings_.settings)));
}

void RawPeer::Impl::OnBytes(Connection& connection, ssize_t count, std::string_view bytes) {
  if (count < 0) return CloseHandles(connection);
  connection.reader.Feed(bytes);
  detail::ReadFrame frame;
  while (!connection.closed) {
    switch (connection.reader.Next(frame)) {
      case detail::FrameReader::Got::kFrame:
        OnFrame(connection, frame);
        Forget(connection, frame.stream);
        break;
      case detail::FrameReader::Got::kNothing:
        return;
      case detail::FrameReader::Got::kBroken:
        return CloseHandles(connection);
    }
  }
}

void RawPeer::Impl::OnFrame(Connection& connection, detail::ReadFrame& frame) {
  const auto found = connection.streams.find(frame.stream);
  Stream* stream = found == connection.streams.end() ? nullptr : &found->second;
  switch (frame.type) {
    case FrameType::kSettings:
      if ((frame.flags & kAckFlag) == 0 && settings_.acknowledge_settings) Write(connection, Encode(SettingsAckFrame()));
      return;
    case FrameType::kPing:
      if ((frame.flags & kAckFlag) == 0 && settings_.acknowledge_pings) {
        Write(connection, Encode(PingFrame(frame.payload, true)));
      }
      return;
    case FrameType::kHeaders:
      // A client sends no trailers in gRPC; they count as its end.
      return stream == nullptr ? OnRequest(connection, frame) : OnEnd(*stream);
    case FrameType::kData:
      if (stream != nullptr) OnData(connection, *stream, frame);
      return;
    case FrameType::kRstStream:
      Update([&] {
        ++stats_.resets;
        const auto kept = std::find_if(requests_.rbegin(), requests_.rend(), [&](const RawRequest& request) {
          return request.connection == connection.id && request.stream == frame.stream;
        });
        if (kept != requests_.rend()) kept->reset = RawFrame{.payload = std::string(frame.payload)}.number();
      });
      if (stream != nullptr) stream->reset = true;
      return;
    case FrameType::kGoaway:
      Update([this] { ++stats_.goaways; });
      return;
    case FrameType::kPriority:
    case FrameType::kPushPromise:
    case FrameType::kWindowUpdate:
    case FrameType::kContinuation:
      return;
  }
}

void RawPeer::Impl::OnRequest(Connection& connection, detail::ReadFrame& frame) {
  RawRequest request{.connection = connection.id,
                     .stream = frame.stream,
                     .headers = std::move(frame.headers),
                     .messages = {},
                     .reset = {}};
  Stream& stream = connection.streams[frame.stream];
  stream.connection = &connection;
  stream.id = frame.stream;
  Update([&] {
    request.number = ++stats_.requests;
    stream.request = static_cast<std::size_t>(stats_.requests - 1);
    if (requests_.size() < settings_.max_requests) requests_.push_back(request);
  });
  stream.steps = settings_.answer(request).steps_;
  if ((frame.flags & kEndStreamFlag) != 0) OnEnd(stream);
  RunScript(stream);
}

void RawPeer::Impl::OnData(Connection& connection, Stream& stream, const detail::ReadFrame& frame) {
  if (settings_.grant_windows && frame.length > 0) {
    const auto length = static_cast<std::uint32_t>(frame.length);
    Write(connection, Encode(WindowUpdateFrame(0, length)) + Encode(WindowUpdateFrame(stream.id, length)));
  }
  constexpr std::size_t kPrefix = 5;
  stream.data.append(frame.payload);
  while (stream.data.size() >= kPrefix) {
    const std::size_t length = RawFrame{.payload = stream.data.substr(0, kPrefix)}.number(1);
    if (stream.data.size() - kPrefix < length) break;
    Update([&] {
      if (RawRequest* kept = Kept(stream)) kept->messages.push_back(stream.data.substr(kPrefix, length));
    });
    stream.data.erase(0, kPrefix + length);
    ++stream.messages;
  }
  if ((frame.flags & kEndStreamFlag) != 0) OnEnd(stream);
  RunScript(stream);
}

void RawPeer::Impl::OnEnd(Stream& stream) {
  if (stream.ended) return;
  stream.ended = true;
  Update([&] {
    ++stats_.ended_requests;
    if (RawRequest* kept = Kept(stream)) kept->ended = true;
  });
  RunScript(stream);
}

void RawPeer::Impl::RunScript(Stream& stream) {
  while (stream.next_step < stream.steps.size() && !stream.connection->closed) {
    if (!RunStep(stream, stream.steps[stream.next_step])) return;
    ++stream.next_step;
  }
}

bool RawPeer::Impl::RunStep(Stream& stream, const RawScript::Step& step) {
  Connection& connection = *stream.connection;
  if (const auto* send = std::get_if<RawScript::Send>(&step)) {
    RawFrame frame = send->frame;
    if (frame.stream == RawScript::kThisStream) frame.stream = stream.id;
    if (frame.type == FrameType::kGoaway && frame.number() == RawScript::kThisStream) {
      frame.payload.replace(0, 4, GoawayFrame(stream.id).payload, 0, 4);
    }
    const bool ends = frame.type == FrameType::kRstStream || frame.has(kEndStreamFlag);
    if (ends && frame.stream == stream.id) stream.answered = true;
    Write(connection, Encode(frame));
    return true;
  }
  if (const auto* send = std::get_if<RawScript::SendBytes>(&step)) {
    Write(connection, send->bytes);
    return true;
  }
  if (std::get_if<RawScript::UntilEnd>(&step) != nullptr) return stream.ended;
  if (const auto* until = std::get_if<RawScript::UntilMessages>(&step)) return stream.messages >= until->count;
  if (std::get_if<RawScript::UntilSignal>(&step) != nullptr) return std::exchange(stream.signalled, false);
  if (const auto* pause = std::get_if<RawScript::Pause>(&step)) return RunPause(stream, pause->length);
  CloseConnection(connection, std::get<RawScript::CloseConnection>(step).reset);
  return true;
}

bool RawPeer::Impl::RunPause(Stream& stream, Duration length) {
  // Whatever else comes for the stream looks here again while the timer runs.
  if (stream.timer != nullptr) return false;
  stream.timer = new uv_timer_t;
  uv_timer_init(loop_->uv(), stream.timer);
  stream.timer->data = &stream;
  uv_update_time(loop_->uv());
  uv_timer_start(
      stream.timer,
      [](uv_timer_t* timer) {
        auto& waiting = *static_cast<Stream*>(timer->data);
        waiting.timer = nullptr;
        uv_close(reinterpret_cast<uv_handle_t*>(timer),
                 [](uv_handle_t* handle) { delete reinterpret_cast<uv_timer_t*>(handle); });
        ++waiting.next_step;
        Connection& connection = *waiting.connection;
        connection.peer->RunScript(waiting);
        connection.peer->Forget(connection, waiting.id);
      },
      static_cast<std::uint64_t>(std::chrono::ceil<std::chrono::milliseconds>(std::max(length, Duration::zero())).count()),
      0);
  return false;
}

void RawPeer::Impl::Write(Connection& connection, std::string bytes) {
  if (connection.closed || connection.shutting_down) return;
  struct Pending {
    uv_write_t request;
    std::string bytes;
  };
  auto* pending = new Pending{.request = {}, .bytes = std::move(bytes)};
  pending->request.data = pending;
  uv_buf_t buffer = uv_buf_init(pending->bytes.data(), static_cast<unsigned>(pending->bytes.size()));
  const int started = uv_write(&pending->request, reinterpret_cast<uv_stream_t*>(&connection.socket), &buffer, 1,
                               [](uv_write_t* request, int) { delete static_cast<Pending*>(request->data); });
  // What does not go out is noticed by the reading side.
  if (started != 0) delete pending;
}

void RawPeer::Impl::CloseConnection(Connection& connection, bool reset) {
  if (connection.closed || connection.shutting_down) return;
  if (reset) {
    detail::ResetOnClose(connection.socket);
    return CloseHandles(connection);
  }
  // After what was written; the rest when the other side closes too, since closing with bytes unread would be a reset.
  connection.shutting_down = true;
  auto* shutdown = new uv_shutdown_t;
  const int started = uv_shutdown(shutdown, reinterpret_cast<uv_stream_t*>(&connection.socket),
                                  [](uv_shutdown_t* done, int) { delete done; });
  if (started == 0) return;
  delete shutdown;
  CloseHandles(connection);
}

void RawPeer::Impl::CloseHandles(Connection& connection) {
  if (connection.closed) return;
  connection.closed = true;
  for (auto& [id, stream] : connection.streams) {
    if (stream.timer == nullptr) continue;
    uv_close(reinterpret_cast<uv_handle_t*>(std::exchange(stream.timer, nullptr)),
             [](uv_handle_t* handle) { delete reinterpret_cast<uv_timer_t*>(handle); });
  }
  Update([this] { --stats_.live_connections; });
  uv_close(reinterpret_cast<uv_handle_t*>(&connection.socket), [](uv_handle_t* handle) {
    auto* closed = static_cast<Connection*>(handle->data);
    Impl& peer = *closed->peer;
    peer.connections_.erase(closed->id);
    delete closed;
    peer.OnClosedSomething();
  });
}

void RawPeer::Impl::OnClosedSomething() {
  std::lock_guard lock(mutex_);
  if (!closing_ || listener_.open() || !connections_.empty()) return;
  closed_ = true;
  // Under the lock: Close() destroys all this as soon as it is let go.
  changed_.notify_all();
}

Result<std::unique_ptr<RawPeer>> RawPeer::Create(RawPeerSettings settings) {
  auto impl = std::make_unique<Impl>(std::move(settings));
  std::string problem = impl->Listen();
  std::unique_ptr<RawPeer> peer(new RawPeer(std::move(impl)));
  if (!problem.empty()) return Error(std::move(problem));
  return peer;
}

RawPeer::RawPeer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

RawPeer::~RawPeer() { impl_->Close(); }

std::uint16_t RawPeer::port() const noexcept { return impl_->port(); }

std::string RawPeer::address() const { return impl_->address(); }

RawPeerStats RawPeer::stats() const { return impl_->stats(); }

std::vector<RawRequest> RawPeer::requests() const { return impl_->requests(); }

bool RawPeer::WaitUntil(const std::function<bool(const RawPeerStats&)>& predicate, Duration limit) const {
  return impl_->WaitUntil(predicate, limit);
}

void RawPeer::SetAnswer(std::function<RawScript(const RawRequest&)> answer) {
  impl_->Run([&] { impl_->SetAnswer(std::move(answer)); });
}

void RawPeer::Signal() {
  impl_->Run([&] { impl_->Signal(); });
}

void RawPeer::SendToAll(const RawFrame& frame) {
  impl_->Run([&] { impl_->SendToAll(frame); });
}

void RawPeer::CloseAll(bool reset) {
  impl_->Run([&] { impl_->CloseAll(reset); });
}

}  // namespace penstock::inline v0::testing
