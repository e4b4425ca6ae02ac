#include "penstock/client/detail/subscription_core.h"

#include <algorithm>
#include <utility>

#include "client/attempt.h"
#include "client/client_state.h"
#include "client/rejection.h"
#include "client/reopen.h"
#include "client/user_code.h"
#include "penstock/runtime/callback_thread.h"

namespace penstock::inline v0::detail {

SubscriptionCore::SubscriptionCore() noexcept : parent_(*this), deadline_timer_(*this), wait_timer_(*this) {
  ResetReferences(1);
  word_.Reset();
}

SubscriptionCore::~SubscriptionCore() = default;

template <class Hook>
void SubscriptionCore::Tell(const char* name, Hook hook) noexcept {
  std::string thrown = RunUserCode(name, hook);
  if (thrown.empty()) [[likely]] return;
  state_->ReportFault(method_->path, thrown);
  {
    std::lock_guard lock(mutex_);
    if (thrown_.empty()) thrown_ = std::move(thrown);
  }
  Cancel(CancelReason::kCaller);
}

void SubscriptionCore::Begin(ClientState& state, const MethodInfo& method, CallOptions&& options,
                             Duration give_up_after) noexcept {
  state_ = &state;
  method_ = &method;
  options_ = std::move(options);
  options_.parent.KeepRelayed();
  AddReference();  // The driver's, until the end.
  if (!state.registry().Add(*this)) return EndCancelled(CancelReason::kClosed, false);
  if (std::optional<grpc::Status> refused = RefuseOptions(options_)) {
    result_.status = *std::move(refused);
    return End(EndReason::kStopped, false);
  }

  if (give_up_after <= Duration::zero()) {
    result_.status = {grpc::StatusCode::INVALID_ARGUMENT, "give_up_after: must be more than 0"};
    return End(EndReason::kStopped, false);
  }
  const TimePoint now = state.clock().Now();
  const TimePoint deadline = DeadlineOf(options_, now, options_.timeout.value_or(Duration::max()));
  if (now >= deadline) return EndCancelled(CancelReason::kDeadline, false);
  options_.deadline = deadline;  // Also none at all: the timeout that a detached one may have instead goes.
  options_.timeout.reset();
  options_.max_attempts = 1;  // Opening again is done here.
  reopening_ = std::make_unique<Reopening>();
  reopening_->Begin({.backoff = state.backoff(), .give_up_after = give_up_after, .deadline = deadline}, now);

  if (!parent_.Attach(options_)) return EndCancelled(CancelReason::kParent, false);
  if (deadline != TimePoint::max()) {
    // Each stream has the deadline too; between streams, and behind a message that waits, there is none that runs.
    AddReference();  // The timer's.
    state.time().Arm(deadline_timer_, deadline);
  }
  OpenNext();
}

void SubscriptionCore::OpenNext() noexcept {
  StreamCore* const stream = MakeStream();
  CallOptions options = options_;
  // A plain server call's context lives no longer than the first opening.
  options_.parent.ForgetContext();
  delivered_ = false;
  StreamCore::Prepared prepared;
  Prepare(prepared);
  prepared.read = Message();
  prepared.subscribed = true;
  stream->Take(*this, prepared);
  {
    std::lock_guard lock(mutex_);
    stream_ = stream;
  }
  if (!word_.BeginAttempt()) {
    {
      std::lock_guard lock(mutex_);
      stream_ = nullptr;
    }
    stream->Release();
    GiveSlot();
    return EndCancelled(word_.reason(), false);
  }
  stream->Begin(*state_, *method_, std::move(options));
  // Nothing of the subscription may be touched from here on: the stream may have ended.
}

StreamCore* SubscriptionCore::Stream() noexcept {
  std::lock_guard lock(mutex_);
  if (stream_ != nullptr) stream_->AddReference();
  return stream_;
}

// The stream's events.

void SubscriptionCore::OnOpened() {
  GiveSlot();
  Tell("on_open", [this] { TellOpen(); });
}

void SubscriptionCore::OnReadDone(bool ok) {
  if (!ok) return;
  delivered_ = true;
  {
    std::lock_guard lock(mutex_);
    if (!held_.Arrived()) return;
  }
  Tell("on_message", [this] { TellMessage(); });
  // In a reaction of the stream's, which therefore is still there.
  (void)stream_->StartRead(Message());
}

void SubscriptionCore::OnWriteDone(bool ok) {
  Tell("on_write_done", [&] { TellWritten(ok); });
}

void SubscriptionCore::OnDone(const CallResult& result) {
  result_ = result;
  end_ = stream_->end();
  if (word_.EndAttempt()) StreamEndHere();
}

// What follows.

void SubscriptionCore::StreamEndHere() noexcept {
  StreamCore* ended = nullptr;
  bool parked = false;
  {
    std::lock_guard lock(mutex_);
    ended = std::exchange(stream_, nullptr);
    parked = held_.StreamEnded(word_.reason() != CancelReason::kNone);
    if (parked) result_.headers = result_.trailers = nullptr;  // They go with the stream.
  }
  GiveSlot();
  ended->Release();
  if (!parked) DecideHere();
}

void SubscriptionCore::DecideHere() noexcept {
  if (word_.reason() != CancelReason::kNone) return EndCancelled(word_.reason(), true);
  // What a stream that met the deadline ended with is by the way.
  if (result_.reason == EndReason::kExpired) return EndCancelled(CancelReason::kDeadline, true);
  const TimePoint now = state_->clock().Now();
  if (result_.reason == EndReason::kRejected) return FollowHere(reopening_->OnRejected(result_.rejected_for, now, RandomBits()));
  StreamReport report;
  report.delivered = delivered_;
  if (end_.opened) report.open_for = now - end_.opened_at;
  const bool by_server = result_.reason != EndReason::kCancelled && !result_.ok();
  // C6, C11: a Classify that fails ends it, whatever the code.
  report.reopenable = by_server && !end_.faulty && (end_.code == grpc::StatusCode::UNAVAILABLE ||
                                    (end_.code == grpc::StatusCode::CANCELLED && !end_.opened) || end_.retryable);
  if (end_.retryable) report.retry_after = end_.retry_after;
  const ReopenStep step = reopening_->OnStreamEnded(report, now, RandomBits());
  // U2, S8: a stream that had opened leaves its token to be taken here, since the first opening of a gap takes none.
  if (end_.opened && end_.retryable && reopening_->attempts() > 0) state_->budget().OnRetryable();
  FollowHere(step);
}

void SubscriptionCore::FollowHere(ReopenStep step) noexcept {
  if (step.action == ReopenStep::Action::kTell) {
    GapDecision decision = GapDecision::kEnd;
    Tell("on_gap", [&] { decision = TellGap({.lasted = step.lasted, .attempts = step.attempts, .why = result_.status}); });
    step = reopening_->OnGapTold(decision == GapDecision::kGoOn, state_->clock().Now(), state_->budget(),
                                 state_->opening_slots(), RandomBits());
  }
  slot_ = step.slot;
  if (word_.reason() != CancelReason::kNone) {
    GiveSlot();
    return EndCancelled(word_.reason(), true);
  }
  switch (step.action) {
    case ReopenStep::Action::kTell:
    case ReopenStep::Action::kEnd:
      return End(result_.reason, true);
    case ReopenStep::Action::kGiveUp:
      return End(EndReason::kExhausted, true);
    case ReopenStep::Action::kExpire:
      return EndCancelled(CancelReason::kDeadline, true);
    case ReopenStep::Action::kWait:
      return WaitHere(step.until);
    case ReopenStep::Action::kOpen:
      Tell("before_reopen", [this] { TellReopen(); });
      return OpenNext();
  }
}

void SubscriptionCore::WaitHere(TimePoint until) noexcept {
  result_.headers = result_.trailers = nullptr;  // They go with the stream.
  AddReference();                                // The timer's.
  state_->time().Arm(wait_timer_, until);
  if (word_.BeginWait()) return;
  // The timer has fired already, or the subscription was cancelled.
  if (state_->time().Disarm(wait_timer_)) DropReference();
  FollowHere(reopening_->Look(state_->clock().Now(), state_->budget(), state_->opening_slots(), RandomBits()));
}

void SubscriptionCore::WaitTimer::Fire() noexcept {
  SubscriptionCore& self = subscription_;
  if (self.word_.EndWait()) {
    PostToCallbackThread([&self] {
      ClientState& state = *self.state_;
      self.FollowHere(self.reopening_->Look(state.clock().Now(), state.budget(), state.opening_slots(), RandomBits()));
    });
  }
  self.Release();
}

void SubscriptionCore::DeadlineTimer::Fire() noexcept {
  SubscriptionCore& self = subscription_;
  self.Cancel(CancelReason::kDeadline);
  self.Release();
}

// The user's.

void SubscriptionCore::Cancel(CancelReason reason) noexcept {
  switch (word_.Cancel(reason)) {
    case CallWord<>::Canceller::kNothing: {
      bool parked = false;
      {
        std::lock_guard lock(mutex_);
        parked = held_.Cancelled();
      }
      if (parked) PostToCallbackThread([this] { DecideHere(); });
      return;
    }
    case CallWord<>::Canceller::kTryCancel:
      stream_->Cancel(reason);
      if (word_.LetGo()) {
        result_.headers = result_.trailers = nullptr;  // They have gone with the stream.
        PostToCallbackThread([this] { StreamEndHere(); });
      }
      return;
    case CallWord<>::Canceller::kDrive:
      if (state_->time().Disarm(wait_timer_)) DropReference();  // Never the last: the caller holds one.
      EndCancelled(reason, false);
      return;
  }
}

void SubscriptionCore::Pause() noexcept {
  std::lock_guard lock(mutex_);
  held_.Pause();
}

void SubscriptionCore::Resume() noexcept {
  {
    std::lock_guard lock(mutex_);
    if (!held_.Resume()) return;
  }
  AddReference();
  PostToCallbackThread([this] {
    DeliverHeld();
    Release();
  });
}

void SubscriptionCore::DeliverHeld() noexcept {
  HeldMessage::OnBegin what;
  {
    std::lock_guard lock(mutex_);
    what = held_.Begin(word_.reason() != CancelReason::kNone);
  }
  if (what == HeldMessage::OnBegin::kNothing) return;
  if (what == HeldMessage::OnBegin::kDrive) return DecideHere();
  Tell("on_message", [this] { TellMessage(); });
  StreamCore* stream = nullptr;
  bool drive = false;
  {
    std::lock_guard lock(mutex_);
    drive = held_.Delivered();
    if (!drive && stream_ != nullptr) {
      stream = stream_;
      stream->AddReference();
    }
  }
  if (drive) return DecideHere();
  if (stream == nullptr) return;
  (void)stream->StartRead(Message());
  stream->Release();
}

void SubscriptionCore::GiveSlot() noexcept {
  if (std::exchange(slot_, false)) state_->opening_slots().Give();
}

// The end.

void SubscriptionCore::EndCancelled(CancelReason reason, bool here) noexcept {
  result_.status = CancelledStatus(reason);
  {
    std::lock_guard lock(mutex_);
    if (reason == CancelReason::kCaller && !thrown_.empty()) result_.status = {grpc::StatusCode::CANCELLED, thrown_};
  }
  result_.headers = result_.trailers = nullptr;
  End(reason == CancelReason::kDeadline ? EndReason::kExpired : EndReason::kCancelled, here);
}

void SubscriptionCore::End(EndReason reason, bool here) noexcept {
  result_.reason = reason;
  if (here) return FinishHere();
  PostToCallbackThread([this] { FinishHere(); });
}

void SubscriptionCore::FinishHere() noexcept {
  word_.Finish();
  if (state_->time().Disarm(deadline_timer_)) DropReference();  // Never the last: the driver holds one.
  parent_.Detach();
  ClientState& state = *state_;
  const std::uint32_t shard = state.registry().Remove(*this);
  Tell("on_end", [this] { TellEnd(result_); });
  // The user's handle may hold the subscription for long: it must not hold what the hooks and the options brought.
  DropHooks();
  options_ = CallOptions{};
  Release();
  state.registry().Completed(shard);
}

}  // namespace penstock::inline v0::detail
