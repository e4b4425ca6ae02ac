#include "penstock/testing/raw_frame.h"

#include <algorithm>

#include "testing/hpack.h"

namespace penstock::inline v0::testing {

namespace {

constexpr std::size_t kMostPayload = 16'384;  // SETTINGS_MAX_FRAME_SIZE's first value

void AppendNumber(std::string& out, std::uint64_t value, int bytes) {
  for (int shift = (bytes - 1) * 8; shift >= 0; shift -= 8) out.push_back(static_cast<char>(value >> shift & 0xff));
}

void AppendFrame(std::string& out, FrameType type, std::uint8_t flags, std::uint32_t stream, std::string_view payload) {
  AppendNumber(out, payload.size(), 3);
  out.push_back(static_cast<char>(type));
  out.push_back(static_cast<char>(flags));
  AppendNumber(out, stream, 4);
  out.append(payload);
}

}  // namespace

std::optional<std::string> FindHeader(const RawHeaders& headers, std::string_view name) {
  const auto found = std::find_if(headers.begin(), headers.end(), [&](const auto& field) { return field.first == name; });
  if (found == headers.end()) return std::nullopt;
  return found->second;
}

std::uint32_t RawFrame::number(std::size_t offset) const noexcept {
  if (payload.size() < offset + 4) return 0;
  std::uint32_t value = 0;
  for (std::size_t i = offset; i < offset + 4; ++i) value = value << 8 | static_cast<unsigned char>(payload[i]);
  return value;
}

RawFrame HeadersFrame(std::uint32_t stream, const RawHeaders& headers, bool end_stream) {
  return {.type = FrameType::kHeaders,
          .flags = static_cast<std::uint8_t>(kEndHeadersFlag | (end_stream ? kEndStreamFlag : 0)),
          .stream = stream,
          .payload = detail::HpackEncode(headers)};
}

RawFrame DataFrame(std::uint32_t stream, std::string bytes, bool end_stream) {
  return {.type = FrameType::kData,
          .flags = end_stream ? kEndStreamFlag : std::uint8_t{0},
          .stream = stream,
          .payload = std::move(bytes)};
}

RawFrame RstStreamFrame(std::uint32_t stream, std::uint32_t error) {
  RawFrame frame{.type = FrameType::kRstStream, .stream = stream};
  AppendNumber(frame.payload, error, 4);
  return frame;
}

RawFrame SettingsFrame(const std::vector<std::pair<std::uint16_t, std::uint32_t>>& settings) {
  RawFrame frame{.type = FrameType::kSettings};
  for (const auto& [id, value] : settings) {
    AppendNumber(frame.payload, id, 2);
    AppendNumber(frame.payload, value, 4);
  }
  return frame;
}

RawFrame SettingsAckFrame() { return {.type = FrameType::kSettings, .flags = kAckFlag}; }

RawFrame PingFrame(std::string_view eight_bytes, bool ack) {
  return {.type = FrameType::kPing, .flags = ack ? kAckFlag : std::uint8_t{0}, .payload = std::string(eight_bytes)};
}

RawFrame GoawayFrame(std::uint32_t last_stream, std::uint32_t error, std::string_view debug) {
  RawFrame frame{.type = FrameType::kGoaway};
  AppendNumber(frame.payload, last_stream, 4);
  AppendNumber(frame.payload, error, 4);
  frame.payload.append(debug);
  return frame;
}

RawFrame WindowUpdateFrame(std::uint32_t stream, std::uint32_t increment) {
  RawFrame frame{.type = FrameType::kWindowUpdate, .stream = stream};
  AppendNumber(frame.payload, increment, 4);
  return frame;
}

std::string GrpcMessage(std::string_view serialized) {
  std::string message(1, '\0');
  AppendNumber(message, serialized.size(), 4);
  message.append(serialized);
  return message;
}

std::string Encode(const RawFrame& frame) {
  std::string bytes;
  const bool split = frame.type == FrameType::kData || frame.type == FrameType::kHeaders;
  if (!split || frame.payload.size() <= kMostPayload) {
    AppendFrame(bytes, frame.type, frame.flags, frame.stream, frame.payload);
    return bytes;
  }
  // DATA: END_STREAM on the last. HEADERS: END_STREAM on the first, END_HEADERS on the last.
  const std::uint8_t on_last = frame.type == FrameType::kData ? kEndStreamFlag : kEndHeadersFlag;
  std::string_view rest = frame.payload;
  for (bool first = true; !rest.empty(); first = false) {
    const std::string_view piece = rest.substr(0, kMostPayload);
    rest.remove_prefix(piece.size());
    std::uint8_t flags = first || frame.type == FrameType::kData ? frame.flags : std::uint8_t{0};
    flags = static_cast<std::uint8_t>(rest.empty() ? flags | (frame.flags & on_last) : flags & ~on_last);
    AppendFrame(bytes, first || frame.type == FrameType::kData ? frame.type : FrameType::kContinuation, flags,
                frame.stream, piece);
  }
  return bytes;
}

}  // namespace penstock::inline v0::testing
