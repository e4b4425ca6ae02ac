#include "penstock/client/detail/unary_core.h"

#include <algorithm>
#include <cassert>
#include <exception>
#include <limits>
#include <utility>

#include "client/attempt.h"
#include "client/client_state.h"
#include "client/judge.h"
#include "client/rejection.h"
#include "penstock/runtime/callback_thread.h"
#include "runtime/grpc_quirks.h"
#include "runtime/status_code.h"

namespace penstock::inline v0::detail {

namespace {

constexpr Duration kParentSlack = std::chrono::milliseconds(5);

}  // namespace

void UnaryCore::Begin(ClientState& state, const MethodInfo& method, CallOptions&& options, std::size_t request_bytes,
                      std::uint32_t references) noexcept {
  state_ = &state;
  method_ = &state.methods().Find(method);
  request_bytes_ = request_bytes;
  options_ = std::move(options);
  options_.parent.KeepRelayed();
  result_ = CallResult{};
  loop_ = RetryLoop{};
  listed_ = deadline_armed_ = parent_attached_ = false;
  ResetReferences(references);
  word_.Reset();

  listed_ = state.registry().Add(*this);
  // What keeps the state alive until the completion has run: the registry, or a reference of this call's own.
  if (!listed_) {
    state.AddReference();
    return EndCancelled(CancelReason::kClosed, false);
  }
  if (request_bytes_ > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    result_.status = {grpc::StatusCode::RESOURCE_EXHAUSTED, "the request is larger than 2 GiB"};
    return End(EndReason::kStopped, false);
  }
  if (std::optional<grpc::Status> refused = RefuseOptions(options_)) {
    result_.status = *std::move(refused);
    return End(EndReason::kStopped, false);
  }

  const TimePoint now = state.clock().Now();
  RetryRules rules;
  rules.max_attempts = options_.max_attempts.value_or(method_->max_attempts);
  rules.backoff = state.backoff();
  rules.repeatability = options_.repeatability == Repeatability::kFromProto ? method_->repeatability : options_.repeatability;
  rules.retry_unmarked = state.settings().retry_unmarked;
  rules.deadline = DeadlineOf(options_, now, options_.timeout.value_or(method_->timeout));
  const RetryStep step = loop_.Begin(rules, now);
  if (step.action == RetryStep::Action::kEnd) {
    result_.status = CancelledStatus(CancelReason::kDeadline);
    return End(step.reason, false);
  }
  began_short_of_time_ = rules.deadline - now < state.settings().deadline_floor;

  if (!options_.detached) {
    if (const std::shared_ptr<CallScope>& scope = options_.parent.scope()) {
      AddReference();  // The listener's.
      parent_attached_ = scope->Attach(parent_listener_);
      if (!parent_attached_) {
        DropReference();
        return EndCancelled(CancelReason::kParent, false);
      }
    }
  }
  if (rules.deadline != TimePoint::max()) {
    AddReference();  // The timer's.
    deadline_armed_ = true;
    state.time().Arm(deadline_timer_, rules.deadline);
  }
  Admit(false);
}

void UnaryCore::Admit(bool here) noexcept {
  const CancelReason reason = word_.reason();
  if (reason != CancelReason::kNone) return EndCancelled(reason, here);

  Admission admission = state_->Acquire(options_.parent.relaying());
  if (admission.admitted()) return StartAdmitted(admission.TakeTicket(), here);

  const RetryStep step = loop_.OnRejected();
  result_.status = RejectionStatus(admission);
  result_.headers = result_.trailers = nullptr;
  result_.rejected_for = admission.rejected_for();
  if (ClientObserver* observer = state_->observer()) {
    UserCodeScope in_user_code;
    observer->OnRejected({.method = method_->info->path,
                          .attempt = loop_.attempts() + 1,
                          .stream = false,
                          .parent = options_.parent.relaying()},
                         result_.status);
  }
  Decided(step.decision);
  End(step.reason, here);
}

void UnaryCore::StartAdmitted(CircuitTicket ticket, bool here) noexcept {
  ticket_ = std::move(ticket);
  const bool further = loop_.attempts() > 0;
  result_.headers = result_.trailers = nullptr;  // They lie in the context that goes now.
  child_context_.reset();
  if (!further && options_.parent.context() != nullptr && !options_.detached) {
    // The first attempt begins while the parent's context lives, and hears of its cancellation from gRPC. Its deadline is
    // in ours already.
    child_context_ = grpc::ClientContext::FromCallbackServerContext(
        *options_.parent.context(), grpc::PropagationOptions().disable_deadline_propagation());
    context_ = child_context_.get();
  } else {
    own_context_.emplace();
    context_ = &*own_context_;
  }
  if (state_->settings().faults != nullptr) [[unlikely]] DrawFault();
  if (!word_.BeginAttempt()) {
    ticket_ = CircuitTicket();
    return EndCancelled(word_.reason(), here);
  }
  loop_.OnAdmitted();
  state_->broken_connections().Began(broken_attempt_);
  observation_ = FillContext({.state = *state_,
                              .method = *method_,
                              .options = options_,
                              .deadline = loop_.deadline(),
                              .attempt = loop_.attempts(),
                              .stream = false},
                             *context_);
  if (injected_ != nullptr && injected_->delay > Duration::zero()) return LaunchDelayed();
  Launch();
}

void UnaryCore::Launch() noexcept {
  const bool aborted = injected_ != nullptr && injected_->abort;
  void* const async = aborted ? ClientState::LameLane(*method_).async : state_->NextAsync(*method_);
  StartAttempt(async, context_, loop_.attempts() > 1);
  // Nothing of the call may be touched from here on: it may have ended.
}

void UnaryCore::DrawFault() {
  Fault fault = FaultFor(*state_, *method_, options_);
  if (injected_ == nullptr) {
    if (!fault.any()) return;
    injected_ = std::make_unique<Injected>(*this);
  }
  injected_->delay = fault.delay;
  injected_->abort = std::move(fault.abort);
}

void UnaryCore::LaunchDelayed() noexcept {
  AddReference();  // The timer's.
  AddReference();  // Of this function, which the attempt may outrun.
  state_->time().Arm(*injected_, SaturatingAdd(state_->clock().Now(), injected_->delay));
  // A cancel that came before the timer was armed has not found it.
  if (word_.reason() != CancelReason::kNone) LaunchIfCancelled();
  Release();
}

void UnaryCore::LaunchIfCancelled() noexcept {
  // Whoever takes the timer away launches; on a context that is cancelled, so that the attempt ends at once.
  if (!state_->time().Disarm(*injected_)) return;
  Launch();
  Release();
}

void UnaryCore::Injected::Fire() noexcept {
  UnaryCore& call = call_;
  call.Launch();
  call.Release();
}

void UnaryCore::AttemptDone(grpc::Status&& status) noexcept {
  const bool aborted = injected_ != nullptr && injected_->abort && status.error_code() != grpc::StatusCode::CANCELLED;
  result_.status = aborted ? *injected_->abort : std::move(status);
  if (word_.EndAttempt()) OnAttemptEndHere();
}

void UnaryCore::OnAttemptEndHere() noexcept {
  const bool plain = observation_ == nullptr && !state_->settings().classify && state_->observer() == nullptr;
  if (!result_.status.ok() || !plain) [[unlikely]] return JudgeHere();
  state_->broken_connections().Ended(broken_attempt_, *context_);
  ticket_.Settle(Outcome::kSuccess);
  loop_.OnAnswered(state_->budget());
  result_.headers = &context_->GetServerInitialMetadata();
  result_.trailers = &context_->GetServerTrailingMetadata();
  result_.reason = EndReason::kAnswered;
  FinishHere();
}

void UnaryCore::JudgeHere() noexcept {
  result_.status = NormalStatus(std::move(result_.status));
  result_.headers = &context_->GetServerInitialMetadata();
  result_.trailers = &context_->GetServerTrailingMetadata();
  const TimePoint now = state_->clock().Now();
  const CancelReason cancelled = word_.reason();
  const bool ok = result_.status.ok();

  // Held while the connection's identity is in use.
  std::shared_ptr<const grpc::AuthContext> auth_context;
  const void* connection = nullptr;
  if (!ok) {
    auth_context = context_->auth_context();
    connection = ConnectionOf(*auth_context);
  }

  if (ok || (connection != nullptr && result_.status.error_code() != grpc::StatusCode::UNAVAILABLE)) {
    state_->NoteConnection(*context_);
  }

  AttemptFacts facts;
  facts.code = result_.status.error_code();
  facts.cancelled = cancelled;
  // A parent that ends by the deadline that both have may be a little ahead: gRPC's timers count milliseconds.
  const Duration slack = cancelled == CancelReason::kParent ? kParentSlack : Duration::zero();
  facts.deadline_passed = cancelled == CancelReason::kDeadline || SaturatingAdd(now, slack) >= loop_.deadline();
  facts.began_short_of_time = began_short_of_time_;
  if (!ok) {
    facts.over_size_limit = CertainlyOverLimit(state_->settings(), result_.status, request_bytes_);
    // A child of a plain server call's context looks the same when its parent has ended.
    facts.looks_killed_at_shutdown =
        child_context_ == nullptr &&
        LooksKilledAtShutdown(result_.status, !result_.headers->empty(), !result_.trailers->empty());
  }

  AttemptReport report;
  report.reached = ok ? Reached::kResponded : ReachOf(*context_, result_.status, connection);
  std::optional<Verdict> verdict = JudgeWithoutClassify(facts);
  std::string fault;
  if (verdict) {
    report.classification = verdict->classification;
    report.deadline_passed = verdict->deadline_passed;
    report.killed_at_shutdown = verdict->killed_at_shutdown;
    // What gRPC tells of a call that we cancelled is our own doing: the status says why.
    const bool by_caller = cancelled == CancelReason::kCaller || cancelled == CancelReason::kClosed;
    if (by_caller) {
      result_.status = CancelledStatus(cancelled);
    } else if (facts.code == grpc::StatusCode::CANCELLED && verdict->deadline_passed) {
      result_.status = CancelledStatus(CancelReason::kDeadline);
    } else if (facts.code == grpc::StatusCode::CANCELLED && cancelled == CancelReason::kParent) {
      result_.status = CancelledStatus(cancelled);
    }
  } else {
    Answer answer = AskClassify(state_->settings().classify, method_->info->path, result_.status, *result_.trailers);
    report.classification = answer.classification;
    fault = std::move(answer.fault);
  }
  const Outcome outcome = report.classification.outcome;

  if (!fault.empty()) {
    state_->ReportFault(method_->info->path, fault);
    result_.status = grpc::Status(grpc::StatusCode::INTERNAL, fault);
  }
  if (observation_ != nullptr) {
    UserCodeScope in_user_code;
    observation_->End({.status = result_.status, .outcome = outcome});
  }
  {
    const CauseScope cause({.attempt = observation_.get(), .parent = options_.parent.relaying()});
    const bool aborted = injected_ != nullptr && injected_->abort;
    if (aborted) {
      // C10: it says nothing of a connection, and counts.
      state_->broken_connections().Withdrawn(broken_attempt_, *context_);
      state_->Settle(ticket_, outcome, observation_.get());
    } else if (!verdict && facts.code == grpc::StatusCode::UNAVAILABLE && outcome == Outcome::kFailure) {
      report.takes_token = state_->broken_connections().EndedUnavailable(broken_attempt_, *context_, connection,
                                                                         result_.status, std::move(ticket_));
    } else {
      // What we ended ourselves says nothing of the connection.
      if (verdict || facts.code == grpc::StatusCode::UNAVAILABLE) {
        state_->broken_connections().Withdrawn(broken_attempt_, *context_);
      } else {
        state_->broken_connections().Ended(broken_attempt_, *context_);
      }
      state_->Settle(ticket_, outcome, observation_.get());
    }
  }

  RetryStep step = loop_.OnAttemptEnded(report, state_->budget(), now, RandomBits());
  if (verdict && cancelled != CancelReason::kNone && step.reason == EndReason::kStopped) step.reason = EndReason::kCancelled;
  Decided(step.decision);
  observation_.reset();
  switch (step.action) {
    case RetryStep::Action::kEnd:
      return End(step.reason, true);
    case RetryStep::Action::kWait:
      return WaitHere(step.wait, now);
    case RetryStep::Action::kAdmit:
      return Admit(true);
    case RetryStep::Action::kStart:
      break;
  }
  assert(false && "an attempt's end starts nothing without the breaker");
}

void UnaryCore::WaitHere(Duration wait, TimePoint now) noexcept {
  AddReference();  // The timer's.
  state_->time().Arm(wait_timer_, SaturatingAdd(now, wait));
  if (word_.BeginWait()) return;
  // The timer has fired already, or the call was cancelled; Admit() finds out which.
  if (state_->time().Disarm(wait_timer_)) DropReference();
  loop_.OnWaitOver();
  Admit(true);
}

void UnaryCore::WaitTimer::Fire() noexcept {
  UnaryCore& call = call_;
  // The next attempt tells the breaker and the observer, whose functions are the user's: not on the loop thread.
  if (call.word_.EndWait()) {
    PostToCallbackThread([&call] {
      call.loop_.OnWaitOver();
      call.Admit(true);
    });
  }
  call.Release();
}

void UnaryCore::DeadlineTimer::Fire() noexcept {
  UnaryCore& call = call_;
  call.Cancel(CancelReason::kDeadline);
  call.Release();
}

void UnaryCore::ParentListener::OnScopeEnded(CallScope::Ending /*ending*/) noexcept {
  UnaryCore& call = call_;
  call.Cancel(CancelReason::kParent);
  call.Release();
}

void UnaryCore::Cancel(CancelReason reason) noexcept {
  switch (word_.Cancel(reason)) {
    case CallWord<>::Canceller::kNothing:
      return;
    case CallWord<>::Canceller::kTryCancel:
      context_->TryCancel();
      if (injected_ != nullptr) LaunchIfCancelled();
      if (word_.LetGo()) PostToCallbackThread([this] { OnAttemptEndHere(); });
      return;
    case CallWord<>::Canceller::kDrive:
      if (state_->time().Disarm(wait_timer_)) DropReference();  // Never the last: the caller holds one.
      EndCancelled(reason, false);
      return;
  }
}

void UnaryCore::EndCancelled(CancelReason reason, bool here) noexcept {
  // Between attempts the deadline ends the call with what the last attempt said; everything else is a cancel.
  if (reason != CancelReason::kDeadline || loop_.attempts() == 0) {
    result_.status = CancelledStatus(reason);
    result_.headers = result_.trailers = nullptr;
  }
  End(loop_.OnCancelled(reason).reason, here);
}

void UnaryCore::End(EndReason reason, bool here) noexcept {
  result_.reason = reason;
  if (here) return FinishHere();
  PostToCallbackThread([this] { FinishHere(); });
}

void UnaryCore::FinishHere() noexcept {
  result_.attempts = loop_.attempts();
  result_.reached = loop_.reached();
  word_.Finish();
  if (deadline_armed_ && state_->time().Disarm(deadline_timer_)) DropReference();
  if (parent_attached_ && options_.parent.scope()->Detach(parent_listener_)) DropReference();
  if (listed_) shard_ = state_->registry().Remove(*this);
  if (completes_unreferenced()) {
    if (DropReference()) DeliverUnreferenced();
    return;
  }
  ClientState& state = *state_;
  const bool listed = listed_;
  const std::uint32_t shard = shard_;
  RunCompletion(result_);
  // A handle may hold the call for long: it must not hold the channel, nor what the options brought.
  own_context_.reset();
  child_context_.reset();
  options_ = CallOptions{};
  Release();
  listed ? state.registry().Completed(shard) : state.Release();
}

void UnaryCore::DeliverUnreferenced() noexcept {
  ClientState& state = *state_;
  const bool listed = listed_;
  const std::uint32_t shard = shard_;
  const CallResult result = std::move(result_);
  RunCompletion(result);
  listed ? state.registry().Completed(shard) : state.Release();
}

void UnaryCore::RunCompletion(const CallResult& result) noexcept {
  // Read first: the call may be gone when the completion throws.
  ClientState& state = *state_;
  const MethodEntry& method = *method_;
  try {
    UserCodeScope in_user_code;
    Complete(result);
  } catch (const std::exception& exception) {
    state.ReportFault(method.info->path, std::string("a completion threw: ") + exception.what());
  } catch (...) {
    state.ReportFault(method.info->path, "a completion threw something that is no std::exception");
  }
}

void UnaryCore::Decided(RetryDecision decision) noexcept {
  if (ClientObserver* observer = state_->observer()) {
    UserCodeScope in_user_code;
    observer->OnDecision(method_->info->path, decision);
  }
}

}  // namespace penstock::inline v0::detail
