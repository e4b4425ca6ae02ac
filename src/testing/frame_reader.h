#pragma once

// Cuts one direction of an HTTP/2 connection into frames, with the header blocks decoded.
//
// Threads: one at a time.
// Errors: Next() says kBroken for ever after the first thing that is not HTTP/2.

#include <cstddef>
#include <string>
#include <string_view>

#include "penstock/testing/raw_frame.h"
#include "testing/hpack.h"

namespace penstock::inline v0::testing::detail {

// A frame that was read: the payload is valid until the next call of the reader, and empty for HEADERS.
struct ReadFrame {
  FrameType type = FrameType::kData;
  std::uint8_t flags = 0;
  std::uint32_t stream = 0;
  std::size_t length = 0;
  std::string_view payload;
  HeaderList headers;
};

class FrameReader {
 public:
  enum class Got { kFrame, kNothing, kBroken };

  // Clients send the preface first, servers do not.
  explicit FrameReader(bool preface_first) : preface_expected_(preface_first) {}

  void Feed(std::string_view bytes);

  // The next whole frame; a HEADERS comes when its last CONTINUATION has.
  Got Next(ReadFrame& frame);

 private:
  bool OnHeaders(ReadFrame& frame, std::string_view payload);

  std::string bytes_;
  std::size_t taken_ = 0;  // of bytes_
  bool preface_expected_;
  bool broken_ = false;
  bool in_headers_ = false;
  ReadFrame headers_;
  std::string block_;
  HpackDecoder hpack_;
};

}  // namespace penstock::inline v0::testing::detail
