#pragma once

// The messages of calls by callback, used again.
//
// A string in a message costs two allocations, and a call by callback has its messages to itself. Those of calls that have
// completed are kept for the next ones: of each type a few by each thread, cleared, with their memory, up to kMostBytes in all.
//
// Threads: any (kept.h).
// Ownership: Take()'s is the caller's until Give(), which ends its use.
// Errors: none.

#include <algorithm>
#include <cstddef>

#include "penstock/client/detail/kept.h"
#include "penstock/runtime/detail/message_size.h"

namespace penstock::inline v0::detail {

template <class Request, class Response>
class CallMessages : private KeptNode {
 public:
  Request request;
  Response response;

  static CallMessages* Take() {
    if (KeptNode* kept = list.Take(shelf, EndWithThread)) return static_cast<CallMessages*>(kept);
    return new CallMessages;
  }

  static void Give(CallMessages* used) noexcept {
    if constexpr (kKeepsCallMemory && requires { used->request.Clear(), used->response.Clear(); }) {
      EndWithThread();
      // What they held tells well enough how much memory they keep; to count it would take reflection. That of earlier uses counts
      // too: clearing a message gives no memory back.
      used->bytes = std::max(used->bytes, BytesOf(used->request) + BytesOf(used->response));
      used->request.Clear();
      used->response.Clear();
      if (list.Give(used, shelf, kMostBytes)) return;
    }
    delete used;
  }

 private:
  static constexpr std::size_t kMostBytes = 256 * 1024;

  struct ListEnd {
    ~ListEnd() {
      list.End([](KeptNode* node) { delete static_cast<CallMessages*>(node); });
    }
  };
  static void EndWithThread() noexcept {
    static thread_local ListEnd end;
    (void)end;
  }
  static constinit inline KeptShelf shelf{};
  static constinit inline thread_local KeptList list{};
};

}  // namespace penstock::inline v0::detail
