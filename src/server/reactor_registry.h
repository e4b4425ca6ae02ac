#pragma once

// Every open reactor of a server, so that a shutdown can tell them.

#include <cstddef>
#include <mutex>

#include "penstock/server/detail/reactor_base.h"

namespace penstock::inline v0::detail {

class ReactorRegistry {
 public:
  // False, and nothing is added, once ShutDownAll() was called.
  bool Add(ReactorBase& reactor) noexcept;
  // As its OnDone begins.
  void Remove(ReactorBase& reactor) noexcept;

  // Tells each reactor once (OnShutdown; then a stream is finished with UNAVAILABLE), on this thread; later ones are refused
  // by Add(), and told as they open. On a gRPC thread: it runs user code.
  void ShutDownAll() noexcept;

 private:
  std::mutex mutex_;
  bool shut_down_ = false;
  std::size_t size_ = 0;
  ReactorBase* first_ = nullptr;
};

}  // namespace penstock::inline v0::detail
