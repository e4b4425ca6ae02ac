#include "client/guarded_channel.h"

#include <grpcpp/support/client_interceptor.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "client/attempt.h"
#include "client/channel.h"
#include "client/judge.h"
#include "client/rejection.h"
#include "client/stream_end.h"
#include "penstock/runtime/callback_thread.h"
#include "runtime/grpc_quirks.h"
#include "runtime/metadata.h"
#include "runtime/status_code.h"
#include "runtime/trace_context.h"

namespace penstock::inline v0::detail {

namespace {

using grpc::experimental::ClientInterceptorFactoryInterface;
using grpc::experimental::ClientRpcInfo;
using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;
using Headers = std::multimap<std::string, std::string>;

// One call. gRPC begins it with its initial metadata before all else; from then on its batches run side by side, each on a thread of
// its own: a read may end beside another write, and beside the end of the call, and a cancel comes at any time. So nothing is asked of
// the context that it makes when it is first asked: its AuthContext, and the headers outside their own batch.
class Guard final : public Interceptor {
 public:
  Guard(ClientState& state, ClientRpcInfo& info) : state_(state), info_(info) { state_.AddReference(); }
  ~Guard() override {
    // Of a call that was given up without its status.
    state_.broken_connections().Withdrawn(broken_attempt_);
    ticket_ = CircuitTicket();
    state_.Release();
  }

  void Intercept(InterceptorBatchMethods* methods) override {
    const auto has = [methods](InterceptionHookPoints point) { return methods->QueryInterceptionHookPoint(point); };
    if (has(InterceptionHookPoints::PRE_SEND_CANCEL)) {
      // relaxed: a mark that is read once the call has ended. Nothing else may be touched beside a batch that runs.
      cancelled_.store(true, std::memory_order_relaxed);
      return methods->Proceed();
    }
    const bool begins = has(InterceptionHookPoints::PRE_SEND_INITIAL_METADATA);
    if (begins) Begin(methods->GetSendInitialMetadata());
    if (refused_) {
      if (has(InterceptionHookPoints::PRE_RECV_STATUS)) *methods->GetRecvStatus() = *refused_;
      if (has(InterceptionHookPoints::PRE_RECV_MESSAGE)) methods->FailHijackedRecvMessage();
      if (has(InterceptionHookPoints::PRE_SEND_MESSAGE)) methods->FailHijackedSendMessage();
      begins ? methods->Hijack() : methods->Proceed();
      return;
    }
    if (has(InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) {
      const auto* headers = methods->GetRecvInitialMetadata();
      if (headers != nullptr && !headers->empty()) Opened(/*by_headers=*/true);
    }
    if (has(InterceptionHookPoints::POST_RECV_MESSAGE) && methods->GetRecvMessage() != nullptr) Opened(/*by_headers=*/false);
    if (has(InterceptionHookPoints::POST_RECV_STATUS)) {
      grpc::Status* status = methods->GetRecvStatus();
      const ServerMetadata* trailers = methods->GetRecvTrailingMetadata();
      if (status != nullptr) {
        *status = NormalStatus(std::move(*status));  // C8, for the caller too.
        Ended(*status, trailers != nullptr ? *trailers : ServerMetadata());
      }
    }
    methods->Proceed();
  }

 private:
  bool stream() const { return info_.type() != ClientRpcInfo::Type::UNARY; }

  void Begin(Headers* headers) noexcept {
    if (state_.registry().closed()) {
      refused_.emplace(grpc::StatusCode::CANCELLED, "the client was closed");
      return;
    }
    if (headers != nullptr) {
      for (const auto& [key, value] : *headers) {
        if (const std::optional<std::string> problem = IllegalMetadata(key, value)) {
          refused_.emplace(grpc::StatusCode::INVALID_ARGUMENT, "metadata: " + *problem);
          return;
        }
      }
    }
    ClientObserver* const observer = state_.observer();
    OutgoingMetadata outgoing;
    if (observer != nullptr && headers != nullptr) outgoing = TraceOf(*headers);
    Admission admission = state_.Acquire(nullptr);
    if (!admission.admitted()) {
      refused_ = RejectionStatus(admission);
      if (observer != nullptr) {
        UserCodeScope in_user_code;
        observer->OnRejected(Start(), outgoing, *refused_);
      }
      Decided(RetryDecision::kStopped);
      return;
    }
    began_short_of_time_ = ShortOfTime(*info_.client_context(), state_.settings().deadline_floor);
    ticket_ = admission.TakeTicket();
    state_.broken_connections().Began(broken_attempt_);
    if (observer != nullptr && headers != nullptr) Observe(*observer, *headers, outgoing);
  }

  AttemptStart Start() const noexcept {
    return {.method = info_.method(), .attempt = 1, .stream = stream(), .parent = nullptr};
  }

  // The caller's own trace headers are what the observer's continue, and are replaced by them.
  static OutgoingMetadata TraceOf(const Headers& headers) {
    OutgoingMetadata outgoing;
    for (const std::string_view key : {kTraceparentKey, kTracestateKey}) {
      const auto header = headers.find(std::string(key));
      if (header != headers.end()) outgoing.Set(key, header->second);
    }
    return outgoing;
  }

  void Observe(ClientObserver& observer, Headers& headers, OutgoingMetadata& outgoing) noexcept {
    {
      UserCodeScope in_user_code;
      observation_ = observer.OnAttempt(Start(), outgoing);
    }
    for (const auto& [key, value] : outgoing.pairs()) {
      if (MetadataProblem(key, value)) continue;
      headers.erase(key);
      headers.emplace(key, value);
    }
  }

  // S6: a stream that has opened has proved what a probe is for, and must not hold the slot for as long as it lives. Nor must
  // the marks of broken connections wait for its end (C10).
  void Opened(bool by_headers) noexcept {
    BrokenAttempt attempt;
    CircuitTicket probe;
    {
      const std::lock_guard lock(mutex_);
      has_headers_ = has_headers_ || by_headers;
      if (!stream() || ended_ || std::exchange(opened_, true)) return;
      attempt = std::exchange(broken_attempt_, {});
      if (ticket_.held() && ticket_.is_probe()) probe = std::move(ticket_);
    }
    state_.broken_connections().Ended(attempt, *info_.client_context());
    if (probe.held()) probe.Settle(Outcome::kSuccess);
    state_.budget().OnSuccess();
    Decided(RetryDecision::kSucceeded);
  }

  void Ended(const grpc::Status& status, const ServerMetadata& trailers) noexcept {
    if (status.ok()) Opened(/*by_headers=*/false);  // An empty stream.
    BrokenAttempt attempt;
    CircuitTicket ticket;
    bool opened = false;
    bool has_headers = false;
    {
      const std::lock_guard lock(mutex_);
      if (std::exchange(ended_, true)) return;
      opened = opened_;
      has_headers = has_headers_;
      attempt = std::exchange(broken_attempt_, {});
      ticket = std::move(ticket_);
    }
    const grpc::ClientContext& context = *info_.client_context();
    std::shared_ptr<const grpc::AuthContext> auth_context;
    const void* connection = nullptr;
    if (!status.ok()) {
      auth_context = AuthContextOf(context);
      connection = ConnectionOf(*auth_context);
    }
    AttemptFacts facts;
    facts.code = status.error_code();
    // relaxed: see where it is set.
    if (cancelled_.load(std::memory_order_relaxed)) facts.cancelled = CancelReason::kCaller;
    facts.deadline_passed = DeadlineHasPassed(context);
    facts.began_short_of_time = began_short_of_time_;
    facts.looks_killed_at_shutdown = LooksKilledAtShutdown(status, has_headers, !trailers.empty());
    // C7 needs the request's size, which is not known here: such an end counts as the server's.

    Classification classification;
    const std::optional<Verdict> verdict =
        stream() ? JudgeStreamEnd({.attempt = facts, .opened = opened, .sent = connection != nullptr}) : JudgeWithoutClassify(facts);
    if (verdict) {
      classification = verdict->classification;
    } else {
      Answer answer = AskClassify(state_.settings().classify, info_.method(), status, trailers);
      if (!answer.fault.empty()) state_.ReportFault(info_.method(), answer.fault);
      classification = answer.classification;
    }
    if (observation_ != nullptr) {
      UserCodeScope in_user_code;
      observation_->End({.status = status, .outcome = classification.outcome});
    }
    const CauseScope cause({.attempt = observation_.get()});
    const bool takes_token = SettleAttempt(state_, attempt, context, ticket,
                                           {.code = facts.code,
                                            .status = status,
                                            .has_metadata = has_headers || !trailers.empty(),
                                            .outcome = classification.outcome,
                                            .decided = verdict.has_value(),
                                            .killed_at_shutdown = verdict && verdict->killed_at_shutdown,
                                            .observation = observation_.get()});
    // U2: though no attempt follows.
    if (classification.decision == Decision::kRetry && takes_token) state_.budget().OnRetryable();
    if (opened) return;  // Decided of as it opened.
    if (classification.decision == Decision::kSuccess) state_.budget().OnSuccess();
    Decided(classification.decision == Decision::kSuccess ? RetryDecision::kSucceeded : RetryDecision::kStopped);
  }

  static bool DeadlineHasPassed(const grpc::ClientContext& context) noexcept {
    const gpr_timespec deadline = context.raw_deadline();
    return gpr_time_cmp(gpr_now(deadline.clock_type), deadline) >= 0;
  }

  // gRPC's deadline, whatever its clock; none is endless.
  static bool ShortOfTime(const grpc::ClientContext& context, Duration floor) noexcept {
    if (floor == Duration::zero()) return false;
    const gpr_timespec deadline = context.raw_deadline();
    const gpr_timespec left = gpr_time_sub(deadline, gpr_now(deadline.clock_type));
    return gpr_time_cmp(left, gpr_time_from_nanos(floor.count(), GPR_TIMESPAN)) < 0;
  }

  void Decided(RetryDecision decision) noexcept {
    ClientObserver* const observer = state_.observer();
    if (observer == nullptr) return;
    UserCodeScope in_user_code;
    observer->OnDecision(info_.method(), decision);
  }

  ClientState& state_;
  ClientRpcInfo& info_;
  // Written as the call begins, and only read after.
  std::optional<grpc::Status> refused_;
  std::unique_ptr<AttemptObservation> observation_;
  bool began_short_of_time_ = false;
  std::atomic<bool> cancelled_{false};

  std::mutex mutex_;
  // All under mutex_ once the call has begun: whoever settles them takes them out.
  CircuitTicket ticket_;
  BrokenAttempt broken_attempt_;
  bool opened_ = false;
  bool has_headers_ = false;
  bool ended_ = false;
};

class GuardFactory final : public ClientInterceptorFactoryInterface {
 public:
  explicit GuardFactory(ClientState& state) : state_(state) { state_.AddReference(); }
  ~GuardFactory() override { state_.Release(); }

  Interceptor* CreateClientInterceptor(ClientRpcInfo* info) override { return new Guard(state_, *info); }

 private:
  ClientState& state_;
};

}  // namespace

std::shared_ptr<grpc::Channel> MakeGuardedChannel(ClientState& state) {
  InterceptorFactories factories;
  factories.push_back(std::make_unique<GuardFactory>(state));
  const std::uint32_t index = state.settings().connection.channels;
  Result<std::shared_ptr<grpc::Channel>> channel =
      MakeChannel(state.settings(), ChannelUse::kGuarded, index, std::move(factories));
  if (channel.ok()) return *std::move(channel);
  state.ReportFault("GuardedChannel", channel.error().message());
  return LameChannel();
}

}  // namespace penstock::inline v0::detail
