#include "penstock/client/detail/stream_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <exception>
#include <limits>
#include <string>
#include <utility>

#include "client/attempt.h"
#include "client/client_state.h"
#include "client/judge.h"
#include "client/rejection.h"
#include "client/stream_end.h"
#include "penstock/runtime/callback_thread.h"
#include "runtime/grpc_quirks.h"
#include "runtime/status_code.h"

namespace penstock::inline v0::detail {

namespace {

constexpr Duration kParentSlack = std::chrono::milliseconds(5);
// How long the status may stay out once a read has failed on an open stream. It comes with the failure, unless the read failed
// because its message could not be parsed: gRPC leaves such a stream open.
constexpr Duration kStatusPatience = std::chrono::seconds(5);

}  // namespace

template <class Reaction>
void StreamCore::Tell(const char* name, Reaction reaction) noexcept {
  std::string thrown;
  try {
    UserCodeScope in_user_code;
    return reaction();
  } catch (const std::exception& exception) {
    thrown = fmt::format("{} threw: {}", name, exception.what());
  } catch (...) {
    thrown = fmt::format("{} threw something that is no std::exception", name);
  }
  state_->ReportFault(method_->info->path, thrown);
  {
    std::lock_guard lock(mutex_);
    if (thrown_.empty()) thrown_ = std::move(thrown);
  }
  Cancel(CancelReason::kCaller);
}

// The opening.

void StreamCore::Begin(ClientState& state, const MethodInfo& method, CallOptions&& options, StreamEvents& events,
                       Prepared prepared) noexcept {
  state_ = &state;
  method_ = &state.methods().Find(method);
  events_ = &events;
  options_ = std::move(options);
  options_.parent.KeepRelayed();
  user_message_ = prepared.read;
  largest_write_ = prepared.request_bytes;
  if (prepared.read != nullptr && reads_ == Reads::kAsAsked) read_.Asked();
  if (prepared.write) {
    user_write_ = *prepared.write;
    largest_write_ = std::max(largest_write_, prepared.write->bytes);
    write_.Asked(prepared.write->options.is_last_message());
  }
  if (prepared.writes_done) write_.WritesDoneAsked();

  AddReference();  // The driver's, until the end.
  listed_ = state.registry().Add(*this);
  // What keeps the state alive until OnDone has run: the registry, or a reference of this stream's own.
  if (!listed_) {
    state.AddReference();
    return EndCancelled(CancelReason::kClosed, false);
  }
  if (largest_write_ > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
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
  // S1: the client's timeout is no stream's.
  rules.deadline = DeadlineOf(options_, now, options_.timeout.value_or(Duration::max()));
  const RetryStep step = loop_.Begin(rules, now);
  if (step.action == RetryStep::Action::kEnd) {
    result_.status = CancelledStatus(CancelReason::kDeadline);
    end_.by_caller = true;
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

void StreamCore::Admit(bool here) noexcept {
  const CancelReason reason = word_.reason();
  if (reason != CancelReason::kNone) return EndCancelled(reason, here);

  Admission admission = state_->Acquire(options_.parent.relaying());
  if (admission.admitted()) return StartAdmitted(admission.TakeTicket(), here);

  const RetryStep step = loop_.OnRejected();
  result_.status = RejectionStatus(admission);
  result_.headers = result_.trailers = nullptr;
  result_.rejected_for = admission.rejected_for();
  end_.rejected = true;
  if (ClientObserver* observer = state_->observer()) {
    UserCodeScope in_user_code;
    observer->OnRejected({.method = method_->info->path,
                          .attempt = loop_.attempts() + 1,
                          .stream = true,
                          .parent = options_.parent.relaying()},
                         result_.status);
  }
  Decided(step.decision);
  End(step.reason, here);
}

void StreamCore::StartAdmitted(CircuitTicket ticket, bool here) noexcept {
  ticket_ = std::move(ticket);
  result_.headers = result_.trailers = nullptr;  // They lie in the context that goes now.
  child_context_.reset();
  if (loop_.attempts() == 0 && options_.parent.context() != nullptr && !options_.detached) {
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
                              .stream = true},
                             *context_);
  if (injected_ != nullptr && injected_->delay > Duration::zero()) return LaunchDelayed();
  Launch();
}

void StreamCore::DrawFault() {
  Fault fault = FaultFor(*state_, *method_, options_);
  if (injected_ == nullptr) {
    if (!fault.any()) return;
    injected_ = std::make_unique<Injected>(*this);
  }
  injected_->delay = fault.delay;
  injected_->abort = std::move(fault.abort);
}

void StreamCore::LaunchDelayed() noexcept {
  AddReference();  // The timer's.
  AddReference();  // Of this function, which the attempt may outrun.
  state_->time().Arm(*injected_, SaturatingAdd(state_->clock().Now(), injected_->delay));
  // A cancel that came before the timer was armed has not found it.
  if (word_.reason() != CancelReason::kNone) LaunchIfCancelled();
  Release();
}

void StreamCore::LaunchIfCancelled() noexcept {
  // Whoever takes the timer away launches; on a context that is cancelled, so that the attempt ends at once.
  if (!state_->time().Disarm(*injected_)) return;
  Launch();
  Release();
}

void StreamCore::Injected::Fire() noexcept {
  StreamCore& stream = stream_;
  stream.Launch();
  stream.Release();
}

void StreamCore::Launch() noexcept {
  const bool aborted = injected_ != nullptr && injected_->abort;
  const ClientState::Lane lane = aborted ? ClientState::LameLane(*method_) : state_->NextLane(*method_);
  Prepare(lane.async, lane.channel, context_);
  GrpcAddHold();  // Until a read fails.
  GrpcAddHold();  // Until this function has done its work.
  void* into = nullptr;
  bool write = false;
  bool half_close = false;
  Write message;
  {
    std::lock_guard lock(mutex_);
    live_ = true;
    opening_ = Opening::kNotYet;
    written_ = false;
    responses_ = 0;
    const bool wanted = reads_ == Reads::kOneResponse || read_.AttemptStarted();
    into = posted_message_ = wanted ? user_message_ : nullptr;
    write = write_.IssueWrite();
    half_close = !write && write_.IssueHalfClose();
    message = user_write_;
  }
  GrpcRead(into);
  if (write) GrpcWrite(message);
  if (half_close) GrpcWritesDone();
  GrpcStartCall();
  GrpcRemoveHold();
  // Nothing of the stream may be touched from here on: it may have ended.
}

// gRPC's reactions.

void StreamCore::HeadersArrived(bool ok) noexcept {
  if (!ok) return;
  {
    std::lock_guard lock(mutex_);
    if (opening_ != Opening::kNotYet) return;
    opening_ = Opening::kOpening;
  }
  TellOpened();
  std::optional<bool> read;
  bool ended = false;
  {
    std::lock_guard lock(mutex_);
    opening_ = Opening::kOpened;
    read = std::exchange(read_meanwhile_, std::nullopt);
    ended = !live_;
  }
  if (read) return ReadEndedInOrder(*read);
  if (ended) AwaitStatus();
}

void StreamCore::ReadEnded(bool ok) noexcept {
  bool opens = false;
  {
    std::lock_guard lock(mutex_);
    if (opening_ == Opening::kOpening) {
      read_meanwhile_ = ok;
      return;
    }
    opens = ok && opening_ == Opening::kNotYet;
    if (opens) opening_ = Opening::kOpening;
  }
  if (opens) {
    TellOpened();
    std::lock_guard lock(mutex_);
    opening_ = Opening::kOpened;
  }
  ReadEndedInOrder(ok);
}

void StreamCore::TellOpened() noexcept {
  end_.opened = true;
  end_.opened_at = state_->clock().Now();
  // S6: a probe has proved itself; it does not wait for the stream's end.
  if (ticket_.is_probe()) Settle(Outcome::kSuccess);
  state_->broken_connections().Ended(broken_attempt_, *context_);
  state_->budget().OnSuccess();
  state_->NoteConnection(*context_);
  Decided(RetryDecision::kSucceeded);
  Tell("OnOpened", [this] { events_->OnOpened(); });
}

void StreamCore::ReadEndedInOrder(bool ok) noexcept {
  if (!ok) return NoMoreReads();
  if (reads_ == Reads::kOneResponse) {
    bool surplus = false;
    {
      std::lock_guard lock(mutex_);
      surplus = ++responses_ > 1;
    }
    // A server may answer once; what it sends more must not keep the stream open.
    if (surplus) Cancel(CancelReason::kCaller);
    return GrpcRead(nullptr);
  }
  ReadSide::OnArrival what;
  bool in_place = false;
  {
    std::lock_guard lock(mutex_);
    what = read_.Arrived();
    in_place = posted_message_ != nullptr;
  }
  if (what == ReadSide::OnArrival::kKeep) return DropKeptIfCancelled();
  if (!in_place) TakeKept(user_message_);
  TellRead();
}

void StreamCore::NoMoreReads() noexcept {
  bool opened = false;
  bool tell = false;
  {
    std::lock_guard lock(mutex_);
    live_ = false;
    // Before the opening it is not known yet whether the user has to hear of it (S2).
    opened = opening_ == Opening::kOpened;
    if (opened) tell = read_.Ended();
  }
  if (opened) AwaitStatus();
  if (tell) Tell("OnReadDone", [this] { events_->OnReadDone(false); });
  GrpcRemoveHold();
}

void StreamCore::AwaitStatus() noexcept {
  AddReference();  // The timer's.
  status_armed_ = true;
  state_->time().Arm(status_timer_, SaturatingAdd(state_->clock().Now(), kStatusPatience));
}

void StreamCore::TellRead() noexcept {
  Tell("OnReadDone", [this] { events_->OnReadDone(true); });
  void* into = nullptr;
  {
    std::lock_guard lock(mutex_);
    into = posted_message_ = read_.Told() ? user_message_ : nullptr;
  }
  // In a reaction, or in a hop while nothing is read and so the hold stands.
  GrpcRead(into);
}

void StreamCore::TellKept() noexcept {
  {
    std::lock_guard lock(mutex_);
    read_.Hopped();
  }
  TakeKept(user_message_);
  TellRead();
}

void StreamCore::DropKeptIfCancelled() noexcept {
  if (word_.reason() == CancelReason::kNone) return;
  {
    std::lock_guard lock(mutex_);
    if (!read_.Drop()) return;
    posted_message_ = nullptr;
  }
  GrpcRead(nullptr);
}

void StreamCore::WriteEnded(bool ok) noexcept {
  bool tell = false;
  bool half_close = false;
  {
    std::lock_guard lock(mutex_);
    written_ = written_ || ok;
    tell = write_.Written(ok, opening_ != Opening::kNotYet);
    half_close = live_ && write_.IssueHalfClose();
  }
  if (half_close) GrpcWritesDone();
  if (tell) Tell("OnWriteDone", [&] { events_->OnWriteDone(ok); });
}

void StreamCore::HalfCloseEnded(bool ok) noexcept {
  bool tell = false;
  {
    std::lock_guard lock(mutex_);
    written_ = written_ || ok;
    tell = write_.HalfClosed(ok, opening_ != Opening::kNotYet);
  }
  if (tell) Tell("OnWritesDoneDone", [&] { events_->OnWritesDoneDone(ok); });
}

void StreamCore::AttemptDone(const grpc::Status& status) noexcept {
  const bool aborted = injected_ != nullptr && injected_->abort && status.error_code() != grpc::StatusCode::CANCELLED;
  result_.status = aborted ? *injected_->abort : status;
  if (word_.EndAttempt()) AttemptEndHere();
}

// The user's starts.

StreamStart StreamCore::StartRead(void* message) noexcept {
  ReadSide::OnAsk what;
  {
    std::lock_guard lock(mutex_);
    what = read_.Asked();
    if (what == ReadSide::OnAsk::kBusy) return StreamStart::kBusy;
    if (what == ReadSide::OnAsk::kEnded) return StreamStart::kEnded;
    user_message_ = message;
  }
  if (what == ReadSide::OnAsk::kHop) {
    AddReference();
    PostToCallbackThread([this] {
      TellKept();
      Release();
    });
  }
  return StreamStart::kStarted;
}

StreamStart StreamCore::StartWrite(Write write) noexcept {
  {
    std::lock_guard lock(mutex_);
    const StreamStart started = write_.Asked(write.options.is_last_message());
    if (started != StreamStart::kStarted) return started;
    user_write_ = write;
    largest_write_ = std::max(largest_write_, write.bytes);
    if (!live_ || !write_.IssueWrite()) return StreamStart::kStarted;
    GrpcAddHold();
  }
  GrpcWrite(write);
  GrpcRemoveHold();
  return StreamStart::kStarted;
}

StreamStart StreamCore::StartWritesDone() noexcept {
  {
    std::lock_guard lock(mutex_);
    const StreamStart started = write_.WritesDoneAsked();
    if (started != StreamStart::kStarted) return started;
    if (!live_ || !write_.IssueHalfClose()) return StreamStart::kStarted;
    GrpcAddHold();
  }
  GrpcWritesDone();
  GrpcRemoveHold();
  return StreamStart::kStarted;
}

// The end of an attempt.

void StreamCore::AttemptEndHere() noexcept {
  result_.status = NormalStatus(std::move(result_.status));
  result_.headers = &context_->GetServerInitialMetadata();
  result_.trailers = &context_->GetServerTrailingMetadata();
  const TimePoint now = state_->clock().Now();
  CancelReason cancelled = word_.reason();
  if (result_.status.ok() && !end_.opened) TellOpened();  // An empty stream.

  StreamFacts facts;
  facts.opened = end_.opened;
  std::size_t largest = 0;
  {
    std::lock_guard lock(mutex_);
    facts.sent = facts.opened || written_;
    largest = largest_write_;
    if (const char* fault = ServerFault()) {
      result_.status = {grpc::StatusCode::INTERNAL, fault};
      cancelled = CancelReason::kNone;  // The cancel was the client's own.
    }
  }
  const bool ok = result_.status.ok();
  // Held while the connection's identity is in use.
  std::shared_ptr<const grpc::AuthContext> auth_context;
  const void* connection = nullptr;
  if (!ok) {
    auth_context = context_->auth_context();
    connection = ConnectionOf(*auth_context);
    facts.sent = facts.sent || connection != nullptr;
  }
  end_.code = facts.attempt.code = result_.status.error_code();
  facts.attempt.cancelled = cancelled;
  // A parent that ends by the deadline that both have may be a little ahead: gRPC's timers count milliseconds.
  const Duration slack = cancelled == CancelReason::kParent ? kParentSlack : Duration::zero();
  facts.attempt.deadline_passed = cancelled == CancelReason::kDeadline || SaturatingAdd(now, slack) >= loop_.deadline();
  facts.attempt.began_short_of_time = began_short_of_time_;
  facts.attempt.over_size_limit = !ok && CertainlyOverLimit(state_->settings(), result_.status, largest);

  AttemptReport report;
  report.reached = facts.opened ? Reached::kResponded : Reached::kNotSent;
  if (!facts.opened && facts.sent) {
    report.reached = std::max(Reached::kMaybeProcessed, ReachOf(*context_, result_.status, connection));
  }
  const std::optional<StreamVerdict> verdict = JudgeStreamEnd(facts);
  std::string fault;
  if (verdict) {
    report.classification = verdict->classification;
    report.deadline_passed = verdict->deadline_passed;
    end_.by_caller = verdict->by_caller;
    if (verdict->by_caller) PutOwnStatus(verdict->deadline_passed ? CancelReason::kDeadline : cancelled);
  } else {
    Answer answer = AskClassify(state_->settings().classify, method_->info->path, result_.status, *result_.trailers);
    report.classification = answer.classification;
    fault = std::move(answer.fault);
    if (fault.empty()) end_.classification = answer.classification;
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

  const CauseScope cause({.attempt = observation_.get(), .parent = options_.parent.relaying()});
  // C10. An opened stream has told, as it opened, that its connection lives.
  if (facts.opened) {
    Settle(outcome);
  } else if (injected_ != nullptr && injected_->abort) {
    // It says nothing of a connection, and counts.
    state_->broken_connections().Withdrawn(broken_attempt_, *context_);
    Settle(outcome);
  } else if (!verdict && end_.code == grpc::StatusCode::UNAVAILABLE && outcome == Outcome::kFailure) {
    report.takes_token = state_->broken_connections().EndedUnavailable(broken_attempt_, *context_, connection, result_.status,
                                                                       std::move(ticket_));
  } else {
    if (verdict || end_.code == grpc::StatusCode::UNAVAILABLE) {
      state_->broken_connections().Withdrawn(broken_attempt_, *context_);
    } else {
      state_->broken_connections().Ended(broken_attempt_, *context_);
    }
    Settle(outcome);
  }

  const EndReason by_caller = verdict && verdict->deadline_passed ? EndReason::kExpired : EndReason::kCancelled;
  if (facts.opened) {
    observation_.reset();
    return End(ok ? EndReason::kAnswered : end_.by_caller ? by_caller : EndReason::kStopped, true);
  }
  // S2: once it may have reached a server, the opening is not tried again.
  if (facts.sent && report.classification.decision == Decision::kRetry) {
    if (report.takes_token) state_->budget().OnRetryable();
    report.classification.decision = Decision::kStop;
  }
  RetryStep step = loop_.OnAttemptEnded(report, state_->budget(), now, RandomBits());
  if (end_.by_caller && step.action == RetryStep::Action::kEnd) step.reason = by_caller;
  Decided(step.decision);
  observation_.reset();
  if (step.action == RetryStep::Action::kEnd) return End(step.reason, true);
  {
    std::lock_guard lock(mutex_);
    read_.AttemptFailed();
    write_.AttemptFailed();
  }
  if (step.action == RetryStep::Action::kWait) return WaitHere(step.wait, now);
  Admit(true);
}

const char* StreamCore::ServerFault() const noexcept {
  if (unreadable_ && result_.status.error_code() == grpc::StatusCode::CANCELLED) {
    return "a message of the server could not be parsed";
  }
  if (reads_ != Reads::kOneResponse) return nullptr;
  if (responses_ > 1) return "the server sent more than one response to a client stream";
  if (result_.status.ok() && responses_ == 0) return "the server ended a client stream with OK and no response";
  return nullptr;
}

void StreamCore::PutOwnStatus(CancelReason reason) noexcept {
  // What gRPC tells of a stream that we cancelled is our own doing: the status says why.
  if (reason == CancelReason::kCaller && !thrown_.empty()) {
    result_.status = {grpc::StatusCode::CANCELLED, thrown_};
  } else if (reason == CancelReason::kCaller || reason == CancelReason::kClosed || end_.code == grpc::StatusCode::CANCELLED) {
    result_.status = CancelledStatus(reason);
  }
}

void StreamCore::WaitHere(Duration wait, TimePoint now) noexcept {
  AddReference();  // The timer's.
  state_->time().Arm(wait_timer_, SaturatingAdd(now, wait));
  if (word_.BeginWait()) return;
  // The timer has fired already, or the stream was cancelled; Admit() finds out which.
  if (state_->time().Disarm(wait_timer_)) DropReference();
  loop_.OnWaitOver();
  Admit(true);
}

void StreamCore::WaitTimer::Fire() noexcept {
  StreamCore& stream = stream_;
  if (stream.word_.EndWait()) {
    PostToCallbackThread([&stream] {
      stream.loop_.OnWaitOver();
      stream.Admit(true);
    });
  }
  stream.Release();
}

void StreamCore::DeadlineTimer::Fire() noexcept {
  StreamCore& stream = stream_;
  stream.Cancel(CancelReason::kDeadline);
  stream.Release();
}

void StreamCore::StatusTimer::Fire() noexcept {
  StreamCore& stream = stream_;
  {
    std::lock_guard lock(stream.mutex_);
    stream.unreadable_ = true;
  }
  stream.Cancel(CancelReason::kCaller);
  stream.Release();
}

void StreamCore::ParentListener::OnScopeEnded(CallScope::Ending /*ending*/) noexcept {
  StreamCore& stream = stream_;
  stream.Cancel(CancelReason::kParent);
  stream.Release();
}

void StreamCore::Cancel(CancelReason reason) noexcept {
  switch (word_.Cancel(reason)) {
    case CallWord<>::Canceller::kNothing:
      return;
    case CallWord<>::Canceller::kTryCancel:
      context_->TryCancel();
      if (injected_ != nullptr) LaunchIfCancelled();
      DropKeptIfCancelled();
      if (word_.LetGo()) PostToCallbackThread([this] { AttemptEndHere(); });
      return;
    case CallWord<>::Canceller::kDrive:
      if (state_->time().Disarm(wait_timer_)) DropReference();  // Never the last: the caller holds one.
      EndCancelled(reason, false);
      return;
  }
}

void StreamCore::EndCancelled(CancelReason reason, bool here) noexcept {
  // Between attempts the deadline ends the stream with what the last attempt said; everything else is a cancel.
  if (reason != CancelReason::kDeadline || loop_.attempts() == 0) {
    result_.status = CancelledStatus(reason);
    result_.headers = result_.trailers = nullptr;
  }
  end_.by_caller = true;
  End(reason == CancelReason::kDeadline ? EndReason::kExpired : EndReason::kCancelled, here);
}

void StreamCore::End(EndReason reason, bool here) noexcept {
  result_.reason = reason;
  if (here) return FinishHere();
  PostToCallbackThread([this] { FinishHere(); });
}

void StreamCore::FinishHere() noexcept {
  result_.attempts = loop_.attempts();
  result_.reached = end_.opened ? Reached::kResponded : loop_.reached();
  word_.Finish();
  TimeSource& time = state_->time();
  if (deadline_armed_ && time.Disarm(deadline_timer_)) DropReference();
  if (status_armed_ && time.Disarm(status_timer_)) DropReference();
  if (parent_attached_ && options_.parent.scope()->Detach(parent_listener_)) DropReference();
  std::uint32_t shard = 0;
  if (listed_) shard = state_->registry().Remove(*this);

  bool read = false;
  WriteSide::Untold untold;
  {
    std::lock_guard lock(mutex_);
    read = read_.Ended();
    untold = write_.Ended();
  }
  if (read) Tell("OnReadDone", [this] { events_->OnReadDone(false); });
  if (untold.write) Tell("OnWriteDone", [this] { events_->OnWriteDone(false); });
  if (untold.half_close) Tell("OnWritesDoneDone", [this] { events_->OnWritesDoneDone(false); });

  ClientState& state = *state_;
  const bool listed = listed_;
  Tell("OnDone", [this] { events_->OnDone(result_); });
  // The user's reactor may hold the stream for long: it must not hold the channel, nor what the options brought.
  context_ = nullptr;
  own_context_.reset();
  child_context_.reset();
  options_ = CallOptions{};
  Release();
  listed ? state.registry().Completed(shard) : state.Release();
}

void StreamCore::Settle(Outcome outcome) noexcept {
  // A probe that has proved itself at its opening has been settled.
  if (ticket_.held()) state_->Settle(ticket_, outcome, observation_.get());
}

void StreamCore::Decided(RetryDecision decision) noexcept {
  if (ClientObserver* observer = state_->observer()) {
    UserCodeScope in_user_code;
    observer->OnDecision(method_->info->path, decision);
  }
}

}  // namespace penstock::inline v0::detail
