#pragma once

// A unary call, but for its types. The typed code on top of it starts attempts, holds the messages and runs the user's
// completion.

#include <cstddef>
#include <cstdint>

#include "penstock/client/call.h"
#include "penstock/client/detail/call_core.h"

namespace penstock::inline v0::detail {

class UnaryCore : public CallCore {
 protected:
  UnaryCore() noexcept : CallCore(Kind::kUnary) {}
  ~UnaryCore() = default;

  // Makes the call. `references`: one for the call itself, one for a handle that is given out. Runs no completion; it may
  // run on another thread before this returns. `request_bytes` is the request's size as it is sent.
  void Begin(ClientState& state, const MethodInfo& method, CallOptions&& options, std::size_t request_bytes,
             std::uint32_t references) noexcept;

  // For a completion that runs when nobody refers to the call any more; on a callback thread, and the call's memory is
  // the user's from there on.
  void DeliverUnreferenced() noexcept;

 private:
  // Typed code. Runs the user's completion; it may throw.
  virtual void Complete(const CallResult& result) = 0;
  // True: Complete() may only run once nobody refers to the call (see DeliverUnreferenced).
  virtual bool completes_unreferenced() const noexcept = 0;

  void AttemptEndHere() noexcept final;
  void JudgeHere() noexcept;
  void FinishHere() noexcept final;
  void RunCompletion(const CallResult& result) noexcept;

  std::uint32_t shard_ = 0;  // Once it has ended.
  std::size_t request_bytes_ = 0;
};

}  // namespace penstock::inline v0::detail
