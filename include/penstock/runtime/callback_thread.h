#pragma once

// Where user code runs, and how work gets there.
//
// User code runs on gRPC's callback threads only: what the loop thread decides hops there first. A blocking call of
// penstock's refuses to run on such a thread, since two blocked callbacks stop every call of the process.
//
//     PostToCallbackThread([self] { UserCodeScope in_user_code; self->callback(...); });
//
// Threads: every function may be called from any thread.
// Ownership: PostToCallbackThread owns the function until it has run.
// Time: a hop takes some tens of microseconds where a thread must wake for it, else less than one (docs/performance.md).
// Errors: none.

#include <functional>

namespace penstock::inline v0 {

// True inside any callback, handler or reactor method that penstock runs, and on penstock's loop thread. Calls that block
// until other calls have ended are refused there.
bool OnCallbackThread() noexcept;

namespace detail {

// Runs the function once, soon, on a thread of gRPC's, never inline. It must not throw.
void PostToCallbackThread(std::function<void()> function);

inline constinit thread_local int user_code_depth = 0;

// Stands around every call of user code.
class UserCodeScope {
 public:
  UserCodeScope() noexcept { ++user_code_depth; }
  ~UserCodeScope() { --user_code_depth; }
  UserCodeScope(const UserCodeScope&) = delete;
  UserCodeScope& operator=(const UserCodeScope&) = delete;
};

}  // namespace detail
}  // namespace penstock::inline v0
