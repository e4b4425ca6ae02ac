#pragma once

// A server that answers each call with whatever HTTP/2 a test wants: statuses outside gRPC's range, trailers twice, a
// GOAWAY that does not cover the call, a socket closed in mid-message. Each request gets a script of steps.
//
//     auto peer = testing::RawPeer::Create({.answer = [](const testing::RawRequest& request) {
//       if (request.number == 1) return testing::RawScript().Reset(testing::kHttp2RefusedStream);
//       return testing::RawScript::Ok(reply.SerializeAsString());
//     }});
//     ... = penstock::Client::Create({.address = (*peer)->address(), ...});
//
// Threads: every member may be called from any thread. `answer` runs on the kit's loop, one request at a time, as soon as
// the request's headers are there; it must neither block nor throw.
// Ownership: the peer owns its listener and connections; destroying it closes them.
// Time: steps of one stream run in order, those of several streams side by side. Wait is real time.
// Errors: what a peer of it does wrong closes that connection. The peer's own sending heeds no flow-control window, so keep
// a stream below 65,535 bytes.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "penstock/core/clock.h"
#include "penstock/core/result.h"
#include "penstock/testing/raw_frame.h"

namespace penstock::inline v0::testing {

struct RawRequest {
  std::uint64_t number = 0;      // 1, 2, 3, … over the whole peer
  std::uint64_t connection = 0;  // 1, 2, 3, …
  std::uint32_t stream = 0;
  RawHeaders headers;
  std::vector<std::string> messages;  // that had come so far, without gRPC's five bytes
  bool ended = false;                 // the client has sent its last
  std::optional<std::uint32_t> reset;  // the code with which the client gave it up

  std::string path() const { return FindHeader(headers, ":path").value_or(""); }
};

// What to do with a request, step by step. Every member returns the script itself.
class RawScript {
 public:
  // The stream of the request, where a step takes a stream's number.
  static constexpr std::uint32_t kThisStream = 0xffffffff;

  // Waits for the client's end, then answers: one message and status 0, or no message and this status alone.
  static RawScript Ok(std::string_view message = {}, RawHeaders trailers = {});
  static RawScript Fail(int status, std::string_view message = {}, RawHeaders trailers = {});

  // `:status` 200 and `content-type` application/grpc, then these.
  RawScript& Headers(RawHeaders more = {});
  // A whole message, which gets gRPC's five bytes.
  RawScript& Message(std::string_view serialized);
  // The bytes of a DATA frame as they are: half a message, for one.
  RawScript& Data(std::string bytes, bool end_stream = false);
  // These alone, with the end of the stream: not even grpc-status is added.
  RawScript& Trailers(RawHeaders trailers);
  // Trailers with grpc-status and, unless it is empty, grpc-message, sent as it is.
  RawScript& Status(std::string_view status, std::string_view message = {}, RawHeaders more = {});
  RawScript& Status(int status, std::string_view message = {}, RawHeaders more = {});
  // The same as the only headers of the answer.
  RawScript& TrailersOnly(std::string_view status, std::string_view message = {}, RawHeaders more = {});
  RawScript& TrailersOnly(int status, std::string_view message = {}, RawHeaders more = {});

  RawScript& Reset(std::uint32_t error);
  // Covers the streams up to `last_stream`; kThisStream: up to this one; 0: none.
  RawScript& Goaway(std::uint32_t last_stream, std::uint32_t error = kHttp2NoError, std::string_view debug = {});
  // A frame whose stream is kThisStream gets this stream's number.
  RawScript& Frame(RawFrame frame);
  RawScript& Bytes(std::string bytes);

  // Goes on when the client has ended its side, has sent so many messages, when so much time has passed, or when
  // RawPeer::Signal() is called.
  RawScript& AwaitEnd();
  RawScript& AwaitMessages(std::size_t count);
  RawScript& Wait(Duration length);
  RawScript& AwaitSignal();

  // Closes the connection in order, after what was sent; or resets it, without.
  RawScript& Close();
  RawScript& ResetConnection();

 private:
  friend class RawPeer;

  struct Send {
    RawFrame frame;
  };
  struct SendBytes {
    std::string bytes;
  };
  struct UntilEnd {};
  struct UntilMessages {
    std::size_t count;
  };
  struct Pause {
    Duration length;
  };
  struct UntilSignal {};
  struct CloseConnection {
    bool reset;
  };
  using Step = std::variant<Send, SendBytes, UntilEnd, UntilMessages, Pause, UntilSignal, CloseConnection>;

  RawScript& Add(Step step);

  std::vector<Step> steps_;
};

struct RawPeerSettings {
  std::function<RawScript(const RawRequest&)> answer = [](const RawRequest&) { return RawScript::Ok(); };

  std::string host = "127.0.0.1";
  std::uint16_t port = 0;

  // What the peer does by itself.
  bool send_settings = true;
  std::vector<std::pair<std::uint16_t, std::uint32_t>> settings = {};
  bool acknowledge_settings = true;
  bool acknowledge_pings = true;
  bool grant_windows = true;  // for what it reads

  // How many requests are remembered; the others are only counted.
  std::size_t max_requests = 10'000;
};

struct RawPeerStats {
  std::uint64_t connections = 0;
  std::uint64_t live_connections = 0;
  std::uint64_t requests = 0;
  std::uint64_t ended_requests = 0;  // whose client sent its end
  std::uint64_t resets = 0;          // RST_STREAMs of the client's
  std::uint64_t goaways = 0;         // of the client's
};

class RawPeer {
 public:
  static Result<std::unique_ptr<RawPeer>> Create(RawPeerSettings settings = {});
  ~RawPeer();

  std::uint16_t port() const noexcept;
  std::string address() const;  // host:port

  RawPeerStats stats() const;

  // Every request so far, as it stands now; the first max_requests of them.
  std::vector<RawRequest> requests() const;

  // Blocks until the predicate holds; false when the limit ended first.
  bool WaitUntil(const std::function<bool(const RawPeerStats&)>& predicate,
                 Duration limit = std::chrono::seconds(30)) const;

  // For requests that come from now on.
  void SetAnswer(std::function<RawScript(const RawRequest&)> answer);

  // Lets every script that waits for a signal go on.
  void Signal();

  // On every live connection.
  void SendToAll(const RawFrame& frame);
  void CloseAll(bool reset = false);

 private:
  class Impl;
  explicit RawPeer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock::inline v0::testing
