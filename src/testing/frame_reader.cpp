#include "testing/frame_reader.h"

#include <algorithm>
#include <utility>

namespace penstock::inline v0::testing::detail {

namespace {

constexpr std::size_t kFrameHeader = 9;
constexpr std::uint8_t kPaddedFlag = 0x8;
constexpr std::uint8_t kPriorityFlag = 0x20;
constexpr std::size_t kMostHeaderBlock = std::size_t{1} << 20;

std::uint32_t Big(std::string_view bytes) {
  std::uint32_t value = 0;
  for (const char c : bytes) value = value << 8 | static_cast<unsigned char>(c);
  return value;
}

// Without the padding and the priority fields; false where they do not fit.
bool Strip(std::uint8_t flags, std::string_view& payload) {
  std::size_t padding = 0;
  if ((flags & kPaddedFlag) != 0) {
    if (payload.empty()) return false;
    padding = static_cast<unsigned char>(payload.front());
    payload.remove_prefix(1);
  }
  if ((flags & kPriorityFlag) != 0) {
    if (payload.size() < 5) return false;
    payload.remove_prefix(5);
  }
  if (padding > payload.size()) return false;
  payload.remove_suffix(padding);
  return true;
}

}  // namespace

void FrameReader::Feed(std::string_view bytes) {
  if (broken_) return;
  bytes_.erase(0, taken_);
  taken_ = 0;
  bytes_.append(bytes);
}

FrameReader::Got FrameReader::Next(ReadFrame& frame) {
  while (!broken_) {
    std::string_view rest = std::string_view(bytes_).substr(taken_);
    if (preface_expected_) {
      const std::size_t length = std::min(rest.size(), kHttp2Preface.size());
      if (rest.substr(0, length) != kHttp2Preface.substr(0, length)) break;
      if (length < kHttp2Preface.size()) return Got::kNothing;
      preface_expected_ = false;
      taken_ += length;
      continue;
    }
    if (rest.size() < kFrameHeader) return Got::kNothing;
    const std::size_t length = Big(rest.substr(0, 3));
    if (rest.size() < kFrameHeader + length) return Got::kNothing;
    taken_ += kFrameHeader + length;
    frame.type = static_cast<FrameType>(rest[3]);
    frame.flags = static_cast<std::uint8_t>(rest[4]);
    frame.stream = Big(rest.substr(5, 4)) & 0x7fffffffU;
    frame.length = length;
    frame.payload = rest.substr(kFrameHeader, length);
    frame.headers.clear();
    // 6.10: nothing comes between a HEADERS and its CONTINUATIONs.
    if (in_headers_ != (frame.type == FrameType::kContinuation)) break;
    if (frame.type != FrameType::kHeaders && frame.type != FrameType::kContinuation) {
      if (frame.type == FrameType::kGoaway && length < 8) break;
      if (frame.type == FrameType::kRstStream && length != 4) break;
      return Got::kFrame;
    }
    if (!OnHeaders(frame, frame.payload)) break;
    if (!in_headers_) return Got::kFrame;
  }
  broken_ = true;
  bytes_.clear();
  taken_ = 0;
  return Got::kBroken;
}

// False on a block that breaks the rules; in_headers_ says whether it is still incomplete.
bool FrameReader::OnHeaders(ReadFrame& frame, std::string_view payload) {
  const bool last = (frame.flags & kEndHeadersFlag) != 0;
  if (frame.type == FrameType::kHeaders) {
    if (!Strip(frame.flags, payload)) return false;
    headers_ = frame;
    block_.clear();
  } else {
    headers_.length += frame.length;
  }
  block_.append(payload);
  in_headers_ = !last;
  if (!last) return block_.size() <= kMostHeaderBlock;
  frame = std::move(headers_);
  frame.flags |= kEndHeadersFlag;
  frame.payload = {};
  return hpack_.Decode(block_, frame.headers);
}

}  // namespace penstock::inline v0::testing::detail
