#pragma once

// What HTTP/2 frames went over each connection of a Router, in which order. A rollout that loses no call is a matter of
// order on the wire (the GOAWAY before the trailers that end a stream), and this is where a test reads it.
//
//     auto log = std::make_shared<testing::FrameLog>();
//     auto router = testing::Router::Create({.targets = {pod.port()}, .frame_log = log});
//     ... a rollout ...
//     for (std::uint64_t id : log->connections()) CHECK(log->GoawayBeforeTrailers(id) != false);
//
// Threads: every member may be called from any thread.
// Ownership: shared by the test and its router, or the routers of a headless service; owns what it noted.
// Time: each frame carries the steady clock's time at which the router had read it whole.
// Errors: plain text only: on anything that is not HTTP/2 a connection is marked `broken` and noted no further. Past
// `max_frames` frames are counted and not kept, and truncated() says so.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/core/clock.h"
#include "penstock/testing/raw_frame.h"

namespace penstock::inline v0::testing {

struct LoggedFrame {
  TimePoint time;
  std::uint64_t connection = 0;
  bool from_server = false;
  FrameType type = FrameType::kData;
  std::uint8_t flags = 0;
  std::uint32_t stream = 0;
  std::uint32_t length = 0;
  std::uint32_t last_stream = 0;  // GOAWAY
  std::uint32_t error = 0;        // GOAWAY, RST_STREAM
  // HEADERS: the value of :path from a client, of grpc-status from a server; empty where there is none.
  std::string header;

  bool ends_stream() const noexcept {
    return (type == FrameType::kData || type == FrameType::kHeaders) && (flags & kEndStreamFlag) != 0;
  }
  // The server's HEADERS that end a stream, also where they are its only ones.
  bool trailers() const noexcept { return from_server && type == FrameType::kHeaders && ends_stream(); }
};

struct FrameLogSettings {
  // DATA, PING and WINDOW_UPDATE are counted; kept only when asked for, since they are most of the frames.
  bool keep_all = false;
  std::size_t max_frames = 1'000'000;
};

// Over all connections on which the server ended at least one stream with UNAVAILABLE.
struct GoawayOrder {
  std::size_t goaway_first = 0;
  std::size_t trailers_first = 0;
};

class FrameLog {
 public:
  explicit FrameLog(FrameLogSettings settings = {});
  ~FrameLog();

  // The frames kept, oldest first: of one connection, or of all.
  std::vector<LoggedFrame> frames(std::uint64_t connection) const;
  std::vector<LoggedFrame> frames() const;

  // Of every connection that was opened, in that order, and what the router gave it to.
  std::vector<std::uint64_t> connections() const;
  std::uint16_t target(std::uint64_t connection) const;
  bool open(std::uint64_t connection) const;
  bool broken(std::uint64_t connection) const;

  // Whether the first GOAWAY of the server went out before every trailers frame with grpc-status 14 (UNAVAILABLE: what a
  // stream ended by a shutdown gets). No value when the connection has no such trailers.
  std::optional<bool> GoawayBeforeTrailers(std::uint64_t connection) const;
  GoawayOrder goaway_order() const;

  // How many frames of a type were seen, kept or not: of one connection and direction, or of all.
  std::uint64_t Count(std::uint64_t connection, bool from_server, FrameType type) const;
  std::uint64_t Count(FrameType type) const;

  bool truncated() const;
  void Clear();

  // A line a frame, for a test's failure message.
  std::string Dump() const;
  std::string Dump(std::uint64_t connection) const;

  // Called by the router. Numbers the connection: 1, 2, 3, …, over all routers that share the log.
  std::uint64_t OnOpened(std::uint16_t target);
  void OnBytes(std::uint64_t connection, bool from_server, std::string_view bytes);
  void OnClosed(std::uint64_t connection);

 private:
  struct Connection;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock::inline v0::testing
