#pragma once

// Threads for handlers that block.
//
// gRPC has a few callback threads for the whole process (two here); two handlers that sleep stop every call. What blocks
// runs on a pool of its own, bounded in threads and in waiting work, so that overload shows as refusals and not as memory.
//
//     penstock::WorkPool pool({.threads = 8, .max_waiting = 64});
//     return HandleOn(pool, context, [=, this] { return database_.Read(*request, response); });
//
// Threads: Submit may be called from any thread.
// Ownership: the pool outlives the services that use it: make it first. Its destructor waits for the work it took, however
// long that takes: a process that leaves with work abandoned (Server::Run() is not 0) ends by std::_Exit.
// Time: none.
// Errors: Submit refuses when the queue is full; what the work throws is logged and dropped.

#include <cstddef>
#include <functional>
#include <memory>

namespace penstock::inline v0 {

struct WorkPoolSettings {
  // 1 to 1,024.
  std::size_t threads = 4;
  // What may wait while every thread is busy; 0 refuses at once.
  std::size_t max_waiting = 64;
};

class WorkPool {
 public:
  // Values out of their range are taken as the nearest in it.
  explicit WorkPool(WorkPoolSettings settings = {});
  ~WorkPool();
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  // False when as much waits as may. The work may block.
  [[nodiscard]] bool Submit(std::function<void()> work);

  // How much waits or runs.
  std::size_t pending() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock::inline v0
