#pragma once

// A client that sends a server whatever HTTP/2 a test wants: half a preface, SETTINGS that are never acknowledged, an
// arbitrary grpc-timeout, metadata that is illegal; or that never reads.
//
//     auto client = testing::RawClient::Connect(server.port());
//     client->StartHttp2();
//     client->Request(1, "/penstock.test.v1.Echo/Unary", {{"grpc-timeout", "99999999H"}}, request.SerializeAsString());
//     const auto trailers = client->ReadEnd(1);
//     CHECK(FindHeader(trailers->headers, "grpc-status") == "0");
//
// Threads: one thread at a time; every member blocks.
// Ownership: owns its socket; destroying it closes it.
// Time: limits are real time.
// Errors: what cannot be sent is false, what does not come in time or ever is no value; closed() tells the two apart.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "penstock/core/clock.h"
#include "penstock/core/result.h"
#include "penstock/testing/raw_frame.h"

namespace penstock::inline v0::testing {

struct RawClientSettings {
  std::string host = "127.0.0.1";  // IPv4

  // TLS with ALPN h2. The server's certificate is not checked.
  bool tls = false;

  // The kernel's receive buffer, in bytes; 0 leaves it. A small one and no reading stop a server soon.
  int receive_buffer = 0;

  // Answers the server's SETTINGS and PINGs while reading, once StartHttp2 was called.
  bool acknowledge = true;
};

class RawClient {
 public:
  // Connects, and with TLS finishes its handshake. Nothing of HTTP/2 is sent. The limit bounds connecting and each sending.
  static Result<std::unique_ptr<RawClient>> Connect(std::uint16_t port, RawClientSettings settings = {},
                                                    Duration limit = std::chrono::seconds(30));
  ~RawClient();

  bool Send(std::string_view bytes);
  bool Send(const RawFrame& frame) { return Send(Encode(frame)); }

  // The preface and empty SETTINGS.
  bool StartHttp2();

  // HEADERS with what gRPC needs and then `more`; a DATA with one message, which ends the client's side unless told not to.
  bool Request(std::uint32_t stream, std::string_view path, const RawHeaders& more = {}, std::string_view message = {},
               bool end_stream = true);

  // The next frame.
  std::optional<RawFrame> Read(Duration limit = std::chrono::seconds(30));

  // Reads on until a frame of that type comes, and returns it; those before it are dropped.
  std::optional<RawFrame> ReadUntil(FrameType type, Duration limit = std::chrono::seconds(30));

  // Reads on until the stream ends: its trailers, or a RST_STREAM.
  std::optional<RawFrame> ReadEnd(std::uint32_t stream, Duration limit = std::chrono::seconds(30));

  // Reads on until the server closes the connection; false when it did not within the limit.
  bool WaitUntilClosed(Duration limit = std::chrono::seconds(30));

  // The server closed or reset the connection, as far as reading has seen.
  bool closed() const noexcept;

  void EndWriting();  // half-close
  void Close();
  void Reset();  // RST

 private:
  class Impl;
  explicit RawClient(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock::inline v0::testing
