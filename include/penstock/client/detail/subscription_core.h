#pragma once

// A subscription, but for its types: it opens streams one after another and hands on what they deliver.
//
// When the next stream is opened is decided by Reopening (src/client/reopen.h); who may act by CallWord: a stream that runs is
// its attempt, the wait for the next its wait. The typed code holds request, message and hooks.
//
// The driver (see CallWord) owns everything that is neither atomic nor under mutex_. When a stream ends while a message
// waits for Resume(), or is being handed over, the driving is parked: whoever hands the message over, or cancels, goes on.

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "penstock/client/call.h"
#include "penstock/client/detail/call_word.h"
#include "penstock/client/detail/held_message.h"
#include "penstock/client/detail/live_call.h"
#include "penstock/client/detail/method_entry.h"
#include "penstock/client/detail/parent_link.h"
#include "penstock/client/detail/stream_core.h"
#include "penstock/client/gap.h"
#include "penstock/core/timer_queue.h"

namespace penstock::inline v0 {

namespace detail {

class Reopening;
struct ReopenStep;

class SubscriptionCore : public LiveCall, private StreamEvents {
 public:
  // References: the caller's, and the subscription's own until its end.
  void Begin(ClientState& state, const MethodInfo& method, CallOptions&& options, Duration give_up_after) noexcept;

  // Any thread that holds a reference.
  void Cancel(CancelReason reason) noexcept final;
  void Pause() noexcept;
  void Resume() noexcept;

 protected:
  SubscriptionCore() noexcept;
  ~SubscriptionCore();

  // For the typed code: the stream that runs, with a reference of the caller's; null when none does.
  StreamCore* Stream() noexcept;

 private:
  class DeadlineTimer final : public Timer {
   public:
    explicit DeadlineTimer(SubscriptionCore& subscription) : subscription_(subscription) {}
    void Fire() noexcept override;

   private:
    SubscriptionCore& subscription_;
  };
  class WaitTimer final : public Timer {
   public:
    explicit WaitTimer(SubscriptionCore& subscription) : subscription_(subscription) {}
    void Fire() noexcept override;

   private:
    SubscriptionCore& subscription_;
  };

  // Typed code. What the hooks throw comes out of them.
  virtual StreamCore* MakeStream() = 0;
  virtual void Prepare(StreamCore::Prepared& prepared) = 0;
  virtual void* Message() noexcept = 0;
  virtual void TellMessage() = 0;
  virtual void TellOpen() = 0;
  virtual void TellWritten(bool ok) = 0;
  virtual void TellReopen() = 0;
  virtual GapDecision TellGap(const Gap& gap) = 0;
  virtual void TellEnd(const CallResult& result) = 0;
  virtual void DropHooks() noexcept = 0;

  // The stream's events.
  void OnOpened() override;
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const CallResult& result) override;

  // The steps of the driver.
  void OpenNext() noexcept;
  void StreamEndHere() noexcept;
  void DecideHere() noexcept;
  void FollowHere(ReopenStep step) noexcept;
  void WaitHere(TimePoint until) noexcept;
  void EndCancelled(CancelReason reason, bool here) noexcept;
  void End(EndReason reason, bool here) noexcept;
  void FinishHere() noexcept;

  void DeliverHeld() noexcept;
  void GiveSlot() noexcept;

  // Runs one of the user's hooks; what it throws cancels the subscription.
  template <class Hook>
  void Tell(const char* name, Hook hook) noexcept;

  ClientState* state_ = nullptr;
  const MethodInfo* method_ = nullptr;
  CallWord<> word_;
  bool delivered_ = false;  // The stream that runs, or has just ended.
  bool slot_ = false;
  CallOptions options_;
  CallResult result_;
  StreamEnd end_;
  std::unique_ptr<Reopening> reopening_;
  ParentLink parent_;
  DeadlineTimer deadline_timer_;
  WaitTimer wait_timer_;

  std::mutex mutex_;
  // All under mutex_:
  StreamCore* stream_ = nullptr;
  HeldMessage held_;
  std::string thrown_;
};

}  // namespace detail
}  // namespace penstock::inline v0
