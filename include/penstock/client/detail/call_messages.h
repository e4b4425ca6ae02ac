#pragma once

// The messages of calls by callback, used again.
//
// A string in a message costs two allocations, and a call by callback has its messages to itself. Those of calls that have
// completed are kept for the next ones: a few of each type by each thread, cleared, with their memory, up to kMostBytes in all.
//
// Threads: any; what one thread gives, another cannot take.
// Ownership: Take()'s is the caller's until Give(), which ends its use.
// Errors: none.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "penstock/client/detail/call_memory.h"

namespace penstock::inline v0::detail {

// As it is sent; 0 for messages of another kind than protobuf's.
template <class Message>
std::size_t BytesOf(const Message& message) {
  if constexpr (requires { message.ByteSizeLong(); }) {
    return message.ByteSizeLong();
  } else {
    return 0;
  }
}

template <class Request, class Response>
class CallMessages {
 public:
  Request request;
  Response response;

  static CallMessages* Take() {
    Cache& own = cache;
    if (CallMessages* kept = own.first) {
      own.first = kept->next_;
      --own.count;
      own.bytes -= kept->bytes_;
      return kept;
    }
    return new CallMessages;
  }

  static void Give(CallMessages* used) noexcept {
    if constexpr (requires { used->request.Clear(), used->response.Clear(); }) {
      Cache& own = cache;
      // What they held tells well enough how much memory they keep; to count it would take reflection. That of earlier uses counts
      // too: clearing a message gives no memory back.
      used->bytes_ = std::max(used->bytes_, BytesOf(used->request) + BytesOf(used->response));
      if (kKeepsCallMemory && !own.over && own.count < kMost && used->bytes_ <= kMostBytes - own.bytes) {
        static thread_local CacheEnd end;
        (void)end;
        used->request.Clear();
        used->response.Clear();
        used->next_ = own.first;
        own.first = used;
        ++own.count;
        own.bytes += used->bytes_;
        return;
      }
    }
    delete used;
  }

 private:
  static constexpr std::uint32_t kMost = 64;  // Of one type, of one thread.
  static constexpr std::size_t kMostBytes = 256 * 1024;

  // Trivial, so that it can be used as long as the thread runs.
  struct Cache {
    CallMessages* first = nullptr;
    std::uint32_t count = 0;
    std::size_t bytes = 0;  // At most kMostBytes.
    bool over = false;  // The thread is ending: nothing is kept any more.
  };
  struct CacheEnd {
    ~CacheEnd() {
      cache.over = true;
      while (CallMessages* kept = cache.first) {
        cache.first = kept->next_;
        delete kept;
      }
    }
  };
  static constinit inline thread_local Cache cache{};

  CallMessages* next_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace penstock::inline v0::detail
