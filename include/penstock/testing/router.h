#pragma once

// A TCP router on loopback that stands where a Kubernetes ClusterIP stands: clients know its one address, and it gives
// each new connection to the pod that is chosen at that moment. What happens to connections in the field is done to them
// here on purpose: they are delayed, held in their handshake, stalled, cut.
//
//     auto router = testing::Router::Create({.targets = {old_pod.port()}});
//     ... = penstock::Client::Create({.address = (*router)->address(), ...});
//     (*router)->SetTargets({new_pod.port()});                     // established connections stay where they are
//     (*router)->WaitUntil([&](const auto& stats) { return stats.targets.at(new_pod.port()).live == 1; });
//
// Threads: every member may be called from any thread; each has taken effect when it returns.
// Ownership: the router owns its listener and its connections; destroying it cuts them. A frame log is shared.
// Time: delays are real time, kept to about a millisecond; the order of bytes is always kept.
// Errors: Create says why it cannot listen. A target that refuses a connection costs the client that connection (it is
// reset, since a router must accept before it can connect); with no targets every new connection is reset. A connection
// takes two file descriptors: thousands of them need `ulimit -n` to allow it.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "penstock/core/clock.h"
#include "penstock/core/result.h"

namespace penstock::inline v0::testing {

class FrameLog;

struct RouterSettings {
  // Ports on 127.0.0.1 that new connections go to, in turn where there are several.
  std::vector<std::uint16_t> targets = {};

  // The IPv4 address and port to listen on; port 0 takes a free one. Every address of 127.0.0.0/8 is this machine.
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;

  // How much later bytes leave than they came, each way.
  Duration delay{0};

  // What a connection holds back each way at most, before it stops reading from its sender.
  std::size_t max_buffered_bytes = std::size_t{1} << 20;

  // Where the HTTP/2 frames of every connection are noted (plain text only); null for nowhere.
  std::shared_ptr<FrameLog> frame_log = nullptr;
};

struct RouterTargetStats {
  std::uint64_t total = 0;  // connections given to it, those that it refused included
  std::uint64_t live = 0;
};

struct RouterStats {
  std::uint64_t accepted = 0;
  std::uint64_t live = 0;
  std::uint64_t held = 0;     // live, and nothing is forwarded
  std::uint64_t refused = 0;  // by their target, or for want of one
  std::uint64_t bytes_to_server = 0;
  std::uint64_t bytes_to_client = 0;
  std::map<std::uint16_t, RouterTargetStats> targets;  // every target that was ever chosen
};

struct RouterConnection {
  // 1, 2, 3, … in the order of acceptance; with a frame log the log's, which counts over all routers that share it.
  std::uint64_t id = 0;
  std::uint16_t target = 0;
  std::uint16_t client_port = 0;
  bool held = false;
};

class Router {
 public:
  // How a connection is cut: an orderly end of file on both sides, or a reset (RST). Either way nothing is forwarded any more;
  // who has its end of file and does not close within 250 ms is reset.
  enum class Cut { kClose, kReset };

  static Result<std::unique_ptr<Router>> Create(RouterSettings settings = {});

  // Cuts every connection and stops listening.
  ~Router();

  std::uint16_t port() const noexcept;
  std::string address() const;  // host:port

  // For new connections; those that exist stay where they are.
  void SetTargets(std::vector<std::uint16_t> ports);

  // For bytes that arrive from now on. Lengths below zero are taken as zero.
  void SetDelay(Duration to_server, Duration to_client);
  void SetDelay(Duration each_way) { SetDelay(each_way, each_way); }

  // While `hold` is true, each new connection is accepted here and by its target, and no byte is forwarded either way: it
  // is held in its handshake. Connections held so stay held when this is turned off again, until Release.
  void HoldNew(bool hold);

  // Every live connection forwards nothing more, as if its packets were lost. Bytes wait in the router and the kernel.
  void StallAll();

  // The same for one target: its connections, and new ones to it, stand still until it is called with false. That is what
  // clients see of a pod that hangs.
  void FreezeTarget(std::uint16_t port, bool frozen);

  // Every held or stalled connection goes on, with nothing lost; those of frozen targets do not.
  void Release();

  // False when there is no such live connection.
  bool CutConnection(std::uint64_t id, Cut how = Cut::kClose);

  // The connections of one target, or all; how many it cut.
  std::size_t CutTarget(std::uint16_t port, Cut how = Cut::kClose);
  std::size_t CutAll(Cut how = Cut::kClose);

  // Takes the port off the targets and cuts its connections, in one step: a pod that died without a word.
  std::size_t DropTarget(std::uint16_t port, Cut how = Cut::kClose);

  RouterStats stats() const;

  // The live ones, oldest first.
  std::vector<RouterConnection> connections() const;

  // Blocks until the predicate holds; false when the limit ended first. The predicate is called without any lock, on this
  // thread, after each change.
  bool WaitUntil(const std::function<bool(const RouterStats&)>& predicate,
                 Duration limit = std::chrono::seconds(30)) const;

 private:
  class Impl;
  explicit Router(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock::inline v0::testing
