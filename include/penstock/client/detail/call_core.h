#pragma once

// What unary calls and streams are alike: the object that holds a call from its beginning to its end.
//
// It translates. What follows when is decided by RetryLoop; who may act is decided by CallWord; both are tested without gRPC.
// UnaryCore and StreamCore say how an attempt is started, and what its end and the call's end mean.
//
//     Begin --> Admit --> StartAttempt .. AttemptDone --> AttemptEndHere --> FollowHere --> FinishHere
//                 ^                                                             |
//                 +---------------------------- wait ---------------------------+
//
// The driver (see CallWord) owns everything here that is not atomic. Steps with `Here` run on a callback thread, where the user's
// code may run; `here` says whether a step does.

#include <grpcpp/channel.h>
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
#include "penstock/client/detail/parent_link.h"
#include "penstock/client/detail/retry_loop.h"
#include "penstock/core/circuit_breaker.h"
#include "penstock/core/timer_queue.h"

namespace penstock::inline v0::detail {

class ClientState;
struct EndedAttempt;
struct Verdict;

class CallCore : public LiveCall {
 public:
  void Cancel(CancelReason reason) noexcept final;

 protected:
  enum class Kind : bool { kUnary, kStream };

  explicit CallCore(Kind kind) noexcept : kind_(kind), parent_(*this), deadline_timer_(*this), wait_timer_(*this) {}
  ~CallCore() = default;

  // For a call that is new, or has ended and is made again. From here on it may be cancelled.
  void Renew(std::uint32_t references) noexcept;

  // Makes the call. Runs none of the user's code; that may run on another thread before this returns. `request_bytes` is the
  // request's size as it is sent.
  void Begin(ClientState& state, const MethodInfo& method, CallOptions&& options, std::size_t request_bytes) noexcept;

  // The end of the attempt that StartAttempt() started.
  void AttemptDone(grpc::Status&& status) noexcept;

  // AttemptEndHere() is made of these three, in this order. Reads the facts of the end: result_.status as C8 has it, with headers
  // and trailers.
  EndedAttempt ReadEnd(CancelReason cancelled, std::size_t request_bytes) noexcept;
  // Settles the end with the breaker and the observer, as `verdict` says or, where it is none, Classify.
  AttemptReport SettleEnd(const EndedAttempt& end, const std::optional<Verdict>& verdict, Reached reached) noexcept;
  // Asks the retry loop for what follows, and sees to it.
  void FollowHere(const EndedAttempt& end, const AttemptReport& report) noexcept;

  void Decided(RetryDecision decision) noexcept;

  void EndCancelled(CancelReason reason, bool here) noexcept;
  void End(EndReason reason, bool here) noexcept;

  // The status of a call that its own side ended.
  virtual grpc::Status OwnStatus(CancelReason reason) const noexcept;

  // The call's result stands: nothing and nobody will cancel it any more. Returns what Completed() wants.
  std::uint32_t Conclude() noexcept;
  // The user has heard of the end. A handle may hold the call for long: it must not hold the channel, nor what the options
  // brought. The driver's reference goes.
  void Completed(std::uint32_t shard) noexcept;

  const Kind kind_;
  ClientState* state_ = nullptr;
  const MethodEntry* method_ = nullptr;
  CallWord<> word_;
  CircuitTicket ticket_;
  RetryLoop loop_;
  BrokenAttempt broken_attempt_;
  // The attempt's context: in place, but for a child of a plain server call's, which gRPC allocates.
  grpc::ClientContext* context_ = nullptr;
  std::unique_ptr<AttemptObservation> observation_;
  CallResult result_;
  CallOptions options_;

 private:
  class DeadlineTimer final : public Timer {
   public:
    explicit DeadlineTimer(CallCore& call) : call_(call) {}
    void Fire() noexcept override;

   private:
    CallCore& call_;
  };
  class WaitTimer final : public Timer {
   public:
    explicit WaitTimer(CallCore& call) : call_(call) {}
    void Fire() noexcept override;

   private:
    CallCore& call_;
  };
  // What an injected fault does to the attempt that runs (F2). Made with the first one of a call and kept until the call's end.
  class Injected final : public Timer {
   public:
    explicit Injected(CallCore& call) : call_(call) {}
    void Fire() noexcept override;

    Duration delay{};
    std::optional<grpc::Status> abort;

   private:
    CallCore& call_;
  };

  // Makes one RPC with the stub's `async` on `channel`. Once it has, the call may have ended. `further`: it is not the first.
  virtual void StartAttempt(void* async, const std::shared_ptr<grpc::Channel>& channel, grpc::ClientContext* context,
                            bool further) = 0;
  virtual void AttemptEndHere() noexcept = 0;
  // The attempt that runs is being cancelled.
  virtual void OnCancelling() noexcept {}
  // Tells the user of result_.
  virtual void FinishHere() noexcept = 0;

  void Admit(bool here) noexcept;
  void StartAdmitted(CircuitTicket ticket, bool here) noexcept;
  void DrawFault();
  bool aborted() const noexcept { return injected_ != nullptr && injected_->abort.has_value(); }
  bool delayed() const noexcept { return injected_ != nullptr && injected_->delay > Duration::zero(); }
  void Launch() noexcept;
  void LaunchSoon() noexcept;
  void LaunchDelayed() noexcept;
  void LaunchIfCancelled() noexcept;
  void CancelAttempt() noexcept;
  void WaitHere(Duration wait, TimePoint now) noexcept;

  bool deadline_armed_ = false;
  bool began_short_of_time_ = false;
  std::optional<grpc::ClientContext> own_context_;
  std::unique_ptr<grpc::ClientContext> child_context_;
  std::unique_ptr<Injected> injected_;  // Null: no attempt of it was struck.
  ParentLink parent_;
  DeadlineTimer deadline_timer_;
  WaitTimer wait_timer_;
};

}  // namespace penstock::inline v0::detail
