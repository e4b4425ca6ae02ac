#include "client/client_state.h"

#include <fmt/format.h>

#include <exception>
#include <utility>

#include "client/channel.h"
#include "penstock/runtime/callback_thread.h"
#include "runtime/log.h"
#include "runtime/loop.h"
#include "runtime/thrown.h"

namespace penstock::inline v0::detail {

namespace {

std::string TextOf(std::exception_ptr thrown) {
  try {
    std::rethrow_exception(std::move(thrown));
  } catch (...) {
    return WhatWasThrown();
  }
}

// As the user's code that it is: no waiting for calls in it.
template <class Value, class... Arguments>
std::function<Value(Arguments...)> Marked(std::function<Value(Arguments...)> function) {
  if (!function) return nullptr;
  return [function = std::move(function)](Arguments... arguments) {
    UserCodeScope in_user_code;
    return function(std::forward<Arguments>(arguments)...);
  };
}

// Adds the client's observer to the user's own functions.
CircuitBreakerSettings Observed(const ClientSettings& settings, const Clock* clock) {
  CircuitBreakerSettings breaker = settings.breaker;
  breaker.trip = Marked(std::move(breaker.trip));
  breaker.probe = Marked(std::move(breaker.probe));
  breaker.observer = Marked(std::move(breaker.observer));
  breaker.error_observer = Marked(std::move(breaker.error_observer));
  if (breaker.clock == nullptr) breaker.clock = clock;
  const std::shared_ptr<ClientObserver>& observer = settings.observer;
  if (observer) {
    breaker.observer = [observer, own = std::move(breaker.observer)](const CircuitTransition& transition) {
      // What this thread tells for another has its cause there.
      observer->OnTransition(transition, transition.own ? CauseScope::Current() : TransitionCause{});
      if (own) own(transition);
    };
  }
  breaker.error_observer = [observer, own = std::move(breaker.error_observer)](std::exception_ptr thrown) {
    const std::string text = "a function of the circuit breaker's settings threw: " + TextOf(thrown);
    Log(LogSeverity::kError, "client: {}", text);
    if (observer) observer->OnError(text);
    if (own) own(std::move(thrown));
  };
  return breaker;
}

}  // namespace

class ClientState::View final : public ClientView {
 public:
  View(std::string address, std::unique_ptr<CircuitBreaker> breaker)
      : address_(std::move(address)), breaker_(std::move(breaker)) {}

  const std::string& address() const noexcept override { return address_; }
  CircuitState state() const noexcept override { return breaker_->state(); }
  CircuitTotals totals() const noexcept override { return breaker_->totals(); }
  std::vector<ClientConnection> connections() const override { return samples_.Read(); }
  CircuitBreaker& breaker() noexcept { return *breaker_; }
  ConnectionSamples& samples() noexcept { return samples_; }

 private:
  const std::string address_;
  const std::unique_ptr<CircuitBreaker> breaker_;
  ConnectionSamples samples_;
};

Result<ClientState*> ClientState::Create(ClientSettings settings) {
  std::vector<std::string> problems;
  CheckSettings(settings, problems);
  TakeChannelArguments(settings, problems);
  LoadCertificates(settings, problems);
  if (!problems.empty()) return Error(fmt::format("{}", fmt::join(problems, "\n")));
  if (std::optional<Error> error = EnsureRuntime()) return *std::move(error);

  struct Releaser {
    void operator()(ClientState* state) const noexcept { state->Release(); }
  };
  std::unique_ptr<ClientState, Releaser> state(new ClientState(std::move(settings)));
  const ClientSettings& own = state->settings_;
  Result<std::unique_ptr<CircuitBreaker>> breaker = CircuitBreaker::Create(Observed(own, state->clock_));
  Result<std::unique_ptr<RetryBudget>> budget = RetryBudget::Create(own.budget);
  if (!breaker.ok()) return breaker.error();
  if (!budget.ok()) return budget.error();
  for (std::uint32_t index = 0; index < own.connection.channels; ++index) {
    Result<std::shared_ptr<grpc::Channel>> channel = MakeChannel(own, ChannelUse::kCalls, index);
    if (!channel.ok()) return channel.error();
    state->channels_.push_back(*std::move(channel));
  }
  std::string address = own.address;
  if (address.empty()) address = own.unix_socket.empty() ? fmt::format("{}", fmt::join(own.addresses, ",")) : own.unix_socket;
  state->view_ = std::make_shared<View>(std::move(address), *std::move(breaker));
  state->breaker_ = &state->view_->breaker();
  state->samples_ = &state->view_->samples();
  state->budget_ = *std::move(budget);
  state->connected_ = std::make_shared<ConnectedMonitor>(state->view_->address(), state->channels_, state->time_);
  if (own.observer) own.observer->OnCreated(state->view_);
  return state.release();
}

ClientState::ClientState(ClientSettings settings)
    : settings_(std::move(settings)),
      time_(settings_.time ? settings_.time : ProcessTime()),
      clock_(&time_->clock()),
      real_time_(time_ == ProcessTime()),
      backoff_{.base = settings_.backoff_base, .max = settings_.backoff_max},
      methods_(settings_, channels_),
      broken_connections_(settings_.connection, [this] { budget_->OnRetryable(); }),
      registry_(*this) {}

ClientState::~ClientState() {
  // Without a view the creation failed, and the observer has heard nothing.
  if (observer() != nullptr && view_ != nullptr) observer()->OnEnded();
}

void ClientState::AddReference() noexcept {
  // relaxed: whoever adds one holds one already, or is in the registry, which does.
  references_.fetch_add(1, std::memory_order_relaxed);
}

void ClientState::Release() noexcept {
  // acq_rel: what every holder did happens before the end.
  if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

void ClientState::Close() noexcept {
  const bool first = registry_.Close();
  if (first) connected_->Close();
  if (first && observer() != nullptr) observer()->OnClosed();
}

void ClientState::ReportFault(std::string_view method, std::string_view what) noexcept {
  Log(LogSeverity::kError, "client: {}: {}", method, what);
  if (observer() != nullptr) observer()->OnError(what);
}

std::vector<ClientConnection> ClientState::connections() const { return view_->connections(); }

void ClientState::NoteConnection(const grpc::ClientContext& context) {
  samples_->Note(context, clock_->Now());
}

Admission ClientState::Acquire(const CallScope* parent) noexcept {
  if (observer() == nullptr) return breaker_->Acquire();
  const CauseScope cause({.parent = parent});
  return breaker_->Acquire();
}

void ClientState::Settle(CircuitTicket& ticket, Outcome outcome, AttemptObservation* cause) noexcept {
  const CauseScope scope({.attempt = cause, .parent = CauseScope::Current().parent});
  ticket.Settle(outcome);
}

}  // namespace penstock::inline v0::detail
