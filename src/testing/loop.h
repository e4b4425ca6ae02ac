#pragma once

// The test kit's own event loop: one libuv loop on one thread, shared by whatever of the kit is alive, and gone when the
// last of it is. It is not penstock's loop, so that a test never competes with what it tests.
//
// Threads: Run, Post and Shared on any thread but the loop's own; handles only on the loop's.
// Ownership: shared; whoever opened a handle closes it before letting go, and the last to let go joins the thread, so
// nothing that runs on the loop may own it.
// Errors: none; a process that can make no loop is ended with a message.

#include <uv.h>

#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace penstock::inline v0::testing::detail {

class Loop {
 public:
  static std::shared_ptr<Loop> Shared();

  Loop();
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  uv_loop_t* uv() noexcept { return &loop_; }

  // Runs `task` on the loop's thread, after those posted before it.
  void Post(std::function<void()> task);

  // The same, and waits until it has run.
  void Run(const std::function<void()>& task);

 private:
  void Work();

  uv_loop_t loop_{};
  uv_async_t wake_{};
  std::mutex mutex_;
  std::vector<std::function<void()>> tasks_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace penstock::inline v0::testing::detail
