#pragma once

// What a router is made of: router.cpp has its connections from their beginning to their end, router_pipes.cpp the bytes that
// pass.

#include <uv.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "penstock/testing/router.h"
#include "testing/listener.h"
#include "testing/loop.h"

namespace penstock::inline v0::testing {

namespace detail {

inline uv_stream_t* Stream(uv_tcp_t& socket) { return reinterpret_cast<uv_stream_t*>(&socket); }

}  // namespace detail

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
    bool closing = false;  // its handles
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
  void Part(Connection& connection);
  static void CloseHandles(Connection& connection);
  static void OnHandleClosed(Connection& connection);
  void OnClosedSomething();
  void SetHeld(Connection& connection, bool held);
  // Closes it when both ends of file were passed on and every byte was taken.
  void CloseIfDone(Connection& connection);

  void Advance(Pipe& pipe);
  void StartReading(Pipe& pipe);
  void OnRead(Pipe& pipe, ssize_t count, const char* bytes);
  void Flush(Pipe& pipe);
  // After what was sent; false when it cannot be.
  static bool EndWriting(Pipe& pipe);
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
  std::uint64_t next_id_ = 0;  // without a frame log
  std::map<std::uint64_t, Connection*> connections_;  // every one with an open handle; they delete themselves
  char read_buffer_[64 * 1024];

  bool closing_ = false;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  RouterStats stats_;          // guarded by mutex_
  std::uint64_t changes_ = 0;  // guarded by mutex_
  bool closed_ = false;        // guarded by mutex_
};

}  // namespace penstock::inline v0::testing
