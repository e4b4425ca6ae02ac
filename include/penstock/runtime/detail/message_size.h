#pragma once

// How long a message is, and how long one may be.

#include <cstddef>
#include <cstdint>
#include <limits>

namespace penstock::inline v0::detail {

// gRPC aborts the process on a longer one: a message's length has 31 bits.
inline constexpr std::size_t kLongestMessage = std::numeric_limits<std::int32_t>::max();

// As it is sent; 0 for messages of another kind than protobuf's.
template <class Message>
std::size_t BytesOf(const Message& message) {
  if constexpr (requires { message.ByteSizeLong(); }) {
    return message.ByteSizeLong();
  } else {
    return 0;
  }
}

}  // namespace penstock::inline v0::detail
