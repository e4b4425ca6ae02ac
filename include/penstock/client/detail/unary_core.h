#pragma once

// A unary call, but for its types: the one object that holds it from Call() to its completion.
//
// It translates. What follows when is decided by RetryLoop; who may act is decided by CallWord; both are tested without
// gRPC. The typed code on top of it starts attempts, holds the messages and runs the user's completion.
//
// The driver (see CallWord) owns everything here that is not atomic.

#include <grpcpp/client_context.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "penstock/client/call.h"
#include "penstock/client/detail/broken_attempt.h"
#include "penstock/client/detail/call_word.h"
#include "penstock/client/detail/live_call.h"
#include "penstock/client/detail/method_entry.h"
#include "penstock/client/detail/retry_loop.h"
#include "penstock/core/circuit_breaker.h"
#include "penstock/core/timer_queue.h"
#include "penstock/runtime/call_scope.h"

namespace penstock::inline v0::detail {

class ClientState;

class UnaryCore : public LiveCall {
 public:
  void Cancel(CancelReason reason) noexcept final;

 protected:
  UnaryCore() noexcept : deadline_timer_(*this), wait_timer_(*this), parent_listener_(*this) {}
  ~UnaryCore() = default;

  // Makes the call. `references`: one for the call itself, one for a handle that is given out. Runs no completion; it may
  // run on another thread before this returns. `request_bytes` is the request's size as it is sent.
  void Begin(ClientState& state, const MethodInfo& method, CallOptions&& options, std::size_t request_bytes,
             std::uint32_t references) noexcept;

  // The end of the attempt that StartAttempt() started.
  void AttemptDone(grpc::Status&& status) noexcept;

  // For a completion that runs when nobody refers to the call any more; on a callback thread, and the call's memory is
  // the user's from there on.
  void DeliverUnreferenced() noexcept;

  // Whether the call has been begun and has not ended.
  bool active() const noexcept { return !word_.done(); }

 private:
  class DeadlineTimer final : public Timer {
   public:
    explicit DeadlineTimer(UnaryCore& call) : call_(call) {}
    void Fire() noexcept override;

   private:
    UnaryCore& call_;
  };
  class WaitTimer final : public Timer {
   public:
    explicit WaitTimer(UnaryCore& call) : call_(call) {}
    void Fire() noexcept override;

   private:
    UnaryCore& call_;
  };
  // What an injected fault does to the attempt that runs (F2). Made with the first one of a call and kept: its timer may
  // still be returning when the next attempt begins.
  class Injected final : public Timer {
   public:
    explicit Injected(UnaryCore& call) : call_(call) {}
    void Fire() noexcept override;

    Duration delay{};
    std::optional<grpc::Status> abort;

   private:
    UnaryCore& call_;
  };
  class ParentListener final : public CallScope::Listener {
   public:
    explicit ParentListener(UnaryCore& call) : call_(call) {}
    void OnScopeEnded(CallScope::Ending ending) noexcept override;

   private:
    UnaryCore& call_;
  };

  // Typed code. StartAttempt() makes one RPC with the stub's `async`; a further one clears the response first.
  virtual void StartAttempt(void* async, grpc::ClientContext* context, bool further) = 0;
  // Runs the user's completion; it may throw.
  virtual void Complete(const CallResult& result) = 0;
  // True: Complete() may only run once nobody refers to the call (see DeliverUnreferenced).
  virtual bool completes_unreferenced() const noexcept = 0;

  // The steps of the driver. Those with `Here` run on a callback thread, where a completion may run.
  void Admit(bool here) noexcept;
  void StartAdmitted(CircuitTicket ticket, bool here) noexcept;
  void DrawFault();
  void LaunchDelayed() noexcept;
  void LaunchIfCancelled() noexcept;
  void Launch() noexcept;
  void OnAttemptEndHere() noexcept;
  void JudgeHere() noexcept;
  void WaitHere(Duration wait, TimePoint now) noexcept;
  void EndCancelled(CancelReason reason, bool here) noexcept;
  void End(EndReason reason, bool here) noexcept;
  void FinishHere() noexcept;
  void RunCompletion(const CallResult& result) noexcept;
  void Decided(RetryDecision decision) noexcept;

  ClientState* state_ = nullptr;
  const MethodEntry* method_ = nullptr;
  CallWord<> word_;
  bool listed_ = false;
  bool deadline_armed_ = false;
  bool parent_attached_ = false;
  bool began_short_of_time_ = false;
  std::uint32_t shard_ = 0;
  CircuitTicket ticket_;
  RetryLoop loop_;
  BrokenAttempt broken_attempt_;
  // The attempt's context: in place, but for a child of a plain server call's, which gRPC allocates.
  std::optional<grpc::ClientContext> own_context_;
  std::unique_ptr<grpc::ClientContext> child_context_;
  grpc::ClientContext* context_ = nullptr;
  std::unique_ptr<AttemptObservation> observation_;
  std::unique_ptr<Injected> injected_;  // Null: no attempt of it was struck.
  std::size_t request_bytes_ = 0;
  CallResult result_;
  CallOptions options_;
  DeadlineTimer deadline_timer_;
  WaitTimer wait_timer_;
  ParentListener parent_listener_;
};

}  // namespace penstock::inline v0::detail
