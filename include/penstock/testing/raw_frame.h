#pragma once

// HTTP/2 frames as they go over the wire, for peers that do what no gRPC library would do (RawPeer, RawClient) and for
// whoever watches (FrameLog).
//
//     client.Send(testing::HeadersFrame(1, {{":method", "POST"}, {":path", "/a.B/C"}, {"grpc-timeout", "99999999H"}}));
//     client.Send(testing::DataFrame(1, testing::GrpcMessage(request.SerializeAsString()), true));
//
// Threads: plain values.
// Ownership: a frame owns its bytes.
// Errors: none: nothing is checked, since breaking the rules is the purpose. A payload past 16,384 bytes is split (HEADERS
// with CONTINUATION, DATA into several); of other types it goes out as it is.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::inline v0::testing {

// RFC 9113, section 6.
enum class FrameType : std::uint8_t {
  kData = 0,
  kHeaders = 1,
  kPriority = 2,
  kRstStream = 3,
  kSettings = 4,
  kPushPromise = 5,
  kPing = 6,
  kGoaway = 7,
  kWindowUpdate = 8,
  kContinuation = 9,
};

inline constexpr std::uint8_t kEndStreamFlag = 0x1;   // DATA, HEADERS
inline constexpr std::uint8_t kAckFlag = 0x1;         // SETTINGS, PING
inline constexpr std::uint8_t kEndHeadersFlag = 0x4;  // HEADERS, CONTINUATION

// RFC 9113, section 7: the codes of RST_STREAM and GOAWAY that tests want.
inline constexpr std::uint32_t kHttp2NoError = 0x0;
inline constexpr std::uint32_t kHttp2ProtocolError = 0x1;
inline constexpr std::uint32_t kHttp2InternalError = 0x2;
inline constexpr std::uint32_t kHttp2RefusedStream = 0x7;
inline constexpr std::uint32_t kHttp2Cancel = 0x8;
inline constexpr std::uint32_t kHttp2EnhanceYourCalm = 0xb;

// What a client sends first (RFC 9113, 3.4).
inline constexpr std::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// Names in lower case, pseudo-headers first, unless a test means it otherwise.
using RawHeaders = std::vector<std::pair<std::string, std::string>>;

// The value of the first field of that name.
std::optional<std::string> FindHeader(const RawHeaders& headers, std::string_view name);

struct RawFrame {
  FrameType type = FrameType::kData;
  std::uint8_t flags = 0;
  std::uint32_t stream = 0;
  std::string payload = {};
  RawHeaders headers = {};  // of a HEADERS frame that was read, CONTINUATIONs included

  bool has(std::uint8_t flag) const noexcept { return (flags & flag) != 0; }
  // The big-endian number at `offset` of the payload, 0 past its end: the error of a RST_STREAM at 0, of a GOAWAY at 4.
  std::uint32_t number(std::size_t offset = 0) const noexcept;
};

RawFrame HeadersFrame(std::uint32_t stream, const RawHeaders& headers, bool end_stream = false);
RawFrame DataFrame(std::uint32_t stream, std::string bytes, bool end_stream = false);
RawFrame RstStreamFrame(std::uint32_t stream, std::uint32_t error);
RawFrame SettingsFrame(const std::vector<std::pair<std::uint16_t, std::uint32_t>>& settings = {});
RawFrame SettingsAckFrame();
RawFrame PingFrame(std::string_view eight_bytes, bool ack = false);
RawFrame GoawayFrame(std::uint32_t last_stream, std::uint32_t error = kHttp2NoError, std::string_view debug = {});
RawFrame WindowUpdateFrame(std::uint32_t stream, std::uint32_t increment);

// A serialized message with gRPC's five bytes before it, uncompressed.
std::string GrpcMessage(std::string_view serialized);

// The bytes of a frame.
std::string Encode(const RawFrame& frame);

}  // namespace penstock::inline v0::testing
