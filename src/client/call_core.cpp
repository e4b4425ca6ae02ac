#include "penstock/client/detail/call_core.h"

#include <cassert>
#include <utility>

#include "client/attempt.h"
#include "client/client_state.h"
#include "client/judge.h"
#include "client/rejection.h"
#include "penstock/runtime/callback_thread.h"
#include "penstock/runtime/detail/message_size.h"
#include "runtime/grpc_quirks.h"
#include "runtime/status_code.h"

namespace penstock::inline v0::detail {

namespace {

// A parent that ends by the deadline that both have may be a little ahead: gRPC's timers count milliseconds.
constexpr Duration kParentSlack = std::chrono::milliseconds(5);

}  // namespace

void CallCore::Renew(std::uint32_t references) noexcept {
  ResetReferences(references);
  result_ = CallResult{};
  loop_ = RetryLoop{};
  injected_.reset();             // Of another client's, maybe.
  began_short_of_time_ = false;  // Likewise.
  deadline_armed_ = false;
  word_.Reset();
}

void CallCore::Begin(ClientState& state, const MethodInfo& method, CallOptions&& options, std::size_t request_bytes) noexcept {
  state_ = &state;
  method_ = &state.methods().Find(method);
  options_ = std::move(options);
  options_.parent.KeepRelayed();
  if (!state.registry().Add(*this)) return EndCancelled(CancelReason::kClosed, false);
  if (request_bytes > kLongestMessage) {
    result_.status = {grpc::StatusCode::RESOURCE_EXHAUSTED, "the request is larger than 2 GiB"};
    return End(EndReason::kStopped, false);
  }
  if (std::optional<grpc::Status> refused = RefuseOptions(options_)) {
    result_.status = *std::move(refused);
    return End(EndReason::kStopped, false);
  }

  const TimePoint now = state.clock().Now();
  // S1: the client's timeout is no stream's.
  const Duration timeout = kind_ == Kind::kStream ? Duration::max() : method_->timeout;
  RetryRules rules;
  rules.max_attempts = options_.max_attempts.value_or(method_->max_attempts);
  rules.backoff = state.backoff();
  rules.repeatability = options_.repeatability == Repeatability::kFromProto ? method_->repeatability : options_.repeatability;
  rules.retry_unmarked = state.settings().retry_unmarked;
  rules.deadline = DeadlineOf(options_, now, options_.timeout.value_or(timeout));
  const RetryStep step = loop_.Begin(rules, now);
  if (step.action == RetryStep::Action::kEnd) {
    result_.status = CancelledStatus(CancelReason::kDeadline);
    return End(step.reason, false);
  }

  if (!parent_.Attach(options_)) return EndCancelled(CancelReason::kParent, false);
  if (rules.deadline != TimePoint::max()) {
    AddReference();  // The timer's.
    deadline_armed_ = true;
    state.time().Arm(deadline_timer_, rules.deadline);
  }
  Admit(false);
}

void CallCore::Admit(bool here) noexcept {
  const CancelReason reason = word_.reason();
  if (reason != CancelReason::kNone) return EndCancelled(reason, here);

  Admission admission = state_->Acquire(options_.parent.relaying());
  if (admission.admitted()) return StartAdmitted(admission.TakeTicket(), here);

  const RetryStep step = loop_.OnRejected();
  result_.status = RejectionStatus(admission);
  result_.headers = result_.trailers = nullptr;
  result_.rejected_for = admission.rejected_for();
  if (ClientObserver* observer = state_->observer()) {
    const OutgoingMetadata relayed = RelayedBy(options_, state_->settings().faults.get());
    UserCodeScope in_user_code;
    observer->OnRejected({.method = method_->info->path,
                          .attempt = loop_.attempts() + 1,
                          .stream = kind_ == Kind::kStream,
                          .parent = options_.parent.relaying()},
                         relayed, result_.status);
  }
  Decided(step.decision);
  End(step.reason, here);
}

// The attempt.

void CallCore::StartAdmitted(CircuitTicket ticket, bool here) noexcept {
  ticket_ = std::move(ticket);
  result_.headers = result_.trailers = nullptr;  // They lie in the context that goes now.
  child_context_.reset();
  if (state_->settings().faults != nullptr) [[unlikely]] DrawFault();
  if (loop_.attempts() == 0 && options_.parent.context() != nullptr && !options_.detached && !delayed()) {
    // The first attempt begins while the parent's context lives, and hears of its cancellation from gRPC. Its deadline is
    // in ours already. One that is delayed may begin when the parent is gone.
    child_context_ = grpc::ClientContext::FromCallbackServerContext(
        *options_.parent.context(), grpc::PropagationOptions().disable_deadline_propagation());
    context_ = child_context_.get();
  } else {
    own_context_.emplace();
    context_ = &*own_context_;
  }
  if (!word_.BeginAttempt()) {
    ticket_ = CircuitTicket();
    return EndCancelled(word_.reason(), here);
  }
  loop_.OnAdmitted();
  if (const Duration floor = state_->settings().deadline_floor; floor > Duration::zero()) [[unlikely]] {
    began_short_of_time_ = loop_.deadline() - state_->clock().Now() < floor;
  }
  state_->broken_connections().Began(broken_attempt_);
  observation_ = FillContext({.state = *state_,
                              .method = *method_,
                              .options = options_,
                              .deadline = loop_.deadline(),
                              .attempt = loop_.attempts(),
                              .stream = kind_ == Kind::kStream},
                             *context_);
  if (delayed()) [[unlikely]] return LaunchDelayed();
  Launch();
}

void CallCore::Launch() noexcept {
  const ClientState::Lane lane = aborted() ? ClientState::LameLane(*method_) : state_->NextLane(*method_);
  StartAttempt(lane.async, lane.channel, context_, loop_.attempts() > 1);
  // Nothing of the call may be touched from here on: it may have ended.
}

void CallCore::DrawFault() {
  Fault fault = FaultFor(*state_, *method_, options_);
  if (injected_ == nullptr) {
    if (!fault.any()) return;
    injected_ = std::make_unique<Injected>(*this);
  }
  injected_->delay = fault.delay;
  injected_->abort = std::move(fault.abort);
}

void CallCore::LaunchDelayed() noexcept {
  AddReference();  // The timer's.
  AddReference();  // Of this function, which the attempt may outrun.
  state_->time().Arm(*injected_, SaturatingAdd(state_->clock().Now(), injected_->delay));
  // A cancel that came before the timer was armed has not found it.
  if (word_.reason() != CancelReason::kNone) LaunchIfCancelled();
  Release();
}

void CallCore::LaunchIfCancelled() noexcept {
  // Whoever takes the timer away launches; on a context that is cancelled, so that the attempt ends at once.
  if (state_->time().Disarm(*injected_)) LaunchSoon();
}

void CallCore::LaunchSoon() noexcept {
  // Interceptors and serialising are the user's: neither on the loop thread nor inside a cancel. The timer's reference goes along.
  PostToCallbackThread([this] {
    Launch();
    Release();
  });
}

void CallCore::Injected::Fire() noexcept { call_.LaunchSoon(); }

// Its end.

void CallCore::AttemptDone(grpc::Status&& status) noexcept {
  const bool struck = aborted() && status.error_code() != grpc::StatusCode::CANCELLED;
  result_.status = struck ? *injected_->abort : std::move(status);
  if (word_.EndAttempt()) AttemptEndHere();
}

EndedAttempt CallCore::ReadEnd(CancelReason cancelled, std::size_t request_bytes) noexcept {
  result_.status = NormalStatus(std::move(result_.status));
  result_.headers = &context_->GetServerInitialMetadata();
  result_.trailers = &context_->GetServerTrailingMetadata();

  EndedAttempt end;
  end.now = state_->clock().Now();
  AttemptFacts& facts = end.facts;
  facts.code = result_.status.error_code();
  facts.cancelled = cancelled;
  const Duration slack = cancelled == CancelReason::kParent ? kParentSlack : Duration::zero();
  facts.deadline_passed = cancelled == CancelReason::kDeadline || SaturatingAdd(end.now, slack) >= loop_.deadline();
  facts.began_short_of_time = began_short_of_time_;
  if (result_.status.ok()) return end;

  end.auth_context = context_->auth_context();
  end.connection = ConnectionOf(*end.auth_context);
  if (end.connection != nullptr) state_->NoteConnected();
  facts.over_size_limit = CertainlyOverLimit(state_->settings(), result_.status, request_bytes);
  // A child of a plain server call's context looks the same when its parent has ended.
  facts.looks_killed_at_shutdown =
      child_context_ == nullptr &&
      LooksKilledAtShutdown(result_.status, !result_.headers->empty(), !result_.trailers->empty());
  return end;
}

AttemptReport CallCore::SettleEnd(const EndedAttempt& end, const std::optional<Verdict>& verdict, Reached reached) noexcept {
  AttemptReport report;
  report.reached = reached;
  if (verdict) {
    report.classification = verdict->classification;
    report.deadline_passed = verdict->deadline_passed;
    report.killed_at_shutdown = verdict->killed_at_shutdown;
    report.cancelled = !verdict->deadline_passed && end.facts.cancelled != CancelReason::kNone;
    // What gRPC tells of a call that we ended is our own doing: the status says why.
    const CancelReason reason = verdict->deadline_passed ? CancelReason::kDeadline : end.facts.cancelled;
    const bool by_caller = reason == CancelReason::kCaller || reason == CancelReason::kClosed;
    if (!result_.status.ok() &&
        (by_caller || (reason != CancelReason::kNone && end.facts.code == grpc::StatusCode::CANCELLED))) {
      result_.status = OwnStatus(reason);
    }
  } else {
    Answer answer = AskClassify(state_->settings().classify, method_->info->path, result_.status, *result_.trailers);
    report.classification = answer.classification;
    report.faulty = !answer.fault.empty();
    if (report.faulty) {
      state_->ReportFault(method_->info->path, answer.fault);
      result_.status = grpc::Status(grpc::StatusCode::INTERNAL, answer.fault);
    }
  }
  const Outcome outcome = report.classification.outcome;
  if (observation_ != nullptr) {
    UserCodeScope in_user_code;
    observation_->End({.status = result_.status, .outcome = outcome});
  }
  const bool has_metadata = !result_.headers->empty() || !result_.trailers->empty();
  // As a plain server call's end cancels what was made for it: no answer of this connection's.
  const bool maybe_by_parent = child_context_ != nullptr && end.facts.code == grpc::StatusCode::CANCELLED && !has_metadata;
  const CauseScope cause({.attempt = observation_.get(), .parent = options_.parent.relaying()});
  report.takes_token = SettleAttempt(*state_, broken_attempt_, *context_, ticket_,
                                     {.code = end.facts.code,
                                      .status = result_.status,
                                      .has_metadata = has_metadata,
                                      .outcome = outcome,
                                      .decided = verdict || aborted() || maybe_by_parent,  // C10: an injected abort counts by itself.
                                      .killed_at_shutdown = report.killed_at_shutdown,
                                      .observation = observation_.get()});
  return report;
}

void CallCore::FollowHere(const EndedAttempt& end, const AttemptReport& report) noexcept {
  RetryStep step = loop_.OnAttemptEnded(report, state_->budget(), end.now, RandomBits());
  Decided(step.decision);
  observation_.reset();
  switch (step.action) {
    case RetryStep::Action::kEnd:
      return End(step.reason, true);
    case RetryStep::Action::kWait:
      return WaitHere(step.wait, end.now);
    case RetryStep::Action::kAdmit:
      return Admit(true);
    case RetryStep::Action::kStart:
      break;
  }
  assert(false && "an attempt's end starts nothing without the breaker");
}

void CallCore::WaitHere(Duration wait, TimePoint now) noexcept {
  AddReference();  // The timer's.
  state_->time().Arm(wait_timer_, SaturatingAdd(now, wait));
  if (word_.BeginWait()) return;
  // The timer has fired already, or the call was cancelled; Admit() finds out which.
  if (state_->time().Disarm(wait_timer_)) DropReference();
  loop_.OnWaitOver();
  Admit(true);
}

void CallCore::WaitTimer::Fire() noexcept {
  CallCore& call = call_;
  // The next attempt tells the breaker and the observer, whose functions are the user's: not on the loop thread.
  if (call.word_.EndWait()) {
    PostToCallbackThread([&call] {
      call.loop_.OnWaitOver();
      call.Admit(true);
    });
  }
  call.Release();
}

void CallCore::Decided(RetryDecision decision) noexcept {
  if (ClientObserver* observer = state_->observer()) {
    UserCodeScope in_user_code;
    observer->OnDecision(method_->info->path, decision);
  }
}

// The call's end.

void CallCore::DeadlineTimer::Fire() noexcept {
  CallCore& call = call_;
  call.Cancel(CancelReason::kDeadline);
  call.Release();
}

void CallCore::Cancel(CancelReason reason) noexcept {
  switch (word_.Cancel(reason)) {
    case CallWord<>::Canceller::kNothing:
      return;
    case CallWord<>::Canceller::kTryCancel: {
      // Timers fire on the loop thread, and a cancel runs the user's interceptors. The claim keeps the context until LetGo().
      const bool by_timer = reason == CancelReason::kDeadline || reason == CancelReason::kServerFault;
      if (!by_timer || !state_->settings().interceptors) return CancelAttempt();
      AddReference();  // The hop's.
      return PostToCallbackThread([this] {
        CancelAttempt();
        Release();
      });
    }
    case CallWord<>::Canceller::kDrive:
      if (state_->time().Disarm(wait_timer_)) DropReference();  // Never the last: the caller holds one.
      EndCancelled(reason, false);
      return;
  }
}

void CallCore::CancelAttempt() noexcept {
  context_->TryCancel();
  if (injected_ != nullptr) LaunchIfCancelled();
  OnCancelling();
  if (word_.LetGo()) PostToCallbackThread([this] { AttemptEndHere(); });
}

grpc::Status CallCore::OwnStatus(CancelReason reason) const noexcept { return CancelledStatus(reason); }

void CallCore::EndCancelled(CancelReason reason, bool here) noexcept {
  // Between attempts the deadline ends the call with what the last attempt said; everything else is a cancel.
  if (reason != CancelReason::kDeadline || loop_.attempts() == 0) {
    result_.status = CancelledStatus(reason);
    result_.headers = result_.trailers = nullptr;
  }
  End(loop_.OnCancelled(reason).reason, here);
}

void CallCore::End(EndReason reason, bool here) noexcept {
  result_.reason = reason;
  if (here) return FinishHere();
  PostToCallbackThread([this] { FinishHere(); });
}

std::uint32_t CallCore::Conclude() noexcept {
  result_.attempts = loop_.attempts();
  result_.reached = loop_.reached();
  word_.Finish();
  if (deadline_armed_ && state_->time().Disarm(deadline_timer_)) DropReference();
  parent_.Detach();
  return state_->registry().Remove(*this);
}

void CallCore::Completed(std::uint32_t shard) noexcept {
  ClientState& state = *state_;
  context_ = nullptr;
  own_context_.reset();
  child_context_.reset();
  options_ = CallOptions{};
  Release();
  state.registry().Completed(shard);
}

}  // namespace penstock::inline v0::detail
