#include "otel/instruments.h"

#include <opentelemetry/context/context.h>
#include <opentelemetry/nostd/variant.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "otel/attributes.h"
#include "runtime/status_name.h"

namespace penstock::inline v0::otel::detail {

namespace metrics = opentelemetry::metrics;
namespace nostd = opentelemetry::nostd;
using penstock::detail::ServerName;

namespace {

Attributes CallAttributes(std::string_view method, int code, bool error) noexcept {
  Attributes attributes;
  attributes.Add("rpc.system.name", "grpc");
  attributes.Add("rpc.method", View(method));
  attributes.AddStatus(code, error);
  return attributes;
}

template <class Observer, class Numbers, class Names>
void ObserveEach(Observer& observer, const ServerName& server, nostd::string_view key, const Names& names,
                 const Numbers& numbers) {
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    Attributes attributes;
    attributes.Add(key, View(names[i]));
    attributes.Add(server);
    observer.Observe(static_cast<std::int64_t>(numbers[i]), attributes);
  }
}

double Seconds(Duration duration) noexcept { return std::chrono::duration<double>(duration).count(); }

}  // namespace

std::shared_ptr<Instruments> Instruments::For(nostd::shared_ptr<metrics::MeterProvider> provider,
                                              nostd::shared_ptr<metrics::Meter> meter) {
  static std::mutex& mutex = *new std::mutex;
  static auto& by_meter = *new std::map<const metrics::Meter*, std::weak_ptr<Instruments>>;
  std::lock_guard lock(mutex);
  std::erase_if(by_meter, [](const auto& known) { return known.second.expired(); });
  std::weak_ptr<Instruments>& known = by_meter[meter.get()];
  std::shared_ptr<Instruments> instruments = known.lock();
  if (instruments == nullptr) {
    instruments = std::make_shared<Instruments>(std::move(provider), std::move(meter));
    known = instruments;
  }
  return instruments;
}

Instruments::Instruments(nostd::shared_ptr<metrics::MeterProvider> provider, nostd::shared_ptr<metrics::Meter> meter)
    : provider_(std::move(provider)), meter_(std::move(meter)) {
  client_duration_ =
      meter_->CreateDoubleHistogram("rpc.client.call.duration", "Duration of attempts at the client", "s");
  server_duration_ = meter_->CreateDoubleHistogram("rpc.server.call.duration", "Duration of calls at the server", "s");
  observables_ = {
      {meter_->CreateInt64ObservableUpDownCounter("penstock.circuit.state", "Circuit breakers by the state they are in",
                                                  "{breaker}"),
       &Callback<&Instruments::ObserveStates>},
      {meter_->CreateInt64ObservableCounter("penstock.circuit.transitions", "Changes of state by the state entered",
                                            "{transition}"),
       &Callback<&Instruments::ObserveTransitions>},
      {meter_->CreateInt64ObservableCounter("penstock.circuit.calls", "Attempts and streams by what they count as",
                                            "{call}"),
       &Callback<&Instruments::ObserveCalls>},
      {meter_->CreateInt64ObservableCounter("penstock.retry.decisions", "What followed for calls after their attempts",
                                            "{decision}"),
       &Callback<&Instruments::ObserveDecisions>},
      {meter_->CreateInt64ObservableUpDownCounter("penstock.client.connections",
                                                  "Connections that calls have used of late, by peer", "{connection}"),
       &Callback<&Instruments::ObserveConnections>},
  };
  for (Observable& observable : observables_) observable.instrument->AddCallback(observable.callback, this);
}

Instruments::~Instruments() {
  // The SDK runs callbacks under the lock that this takes: none runs any more once it has returned.
  for (Observable& observable : observables_) observable.instrument->RemoveCallback(observable.callback, this);
}

void Instruments::RecordClientCall(std::string_view method, int code, const ServerName& server,
                                   Duration duration) noexcept {
  Attributes attributes = CallAttributes(method, code, penstock::detail::IsErrorAtClient(code));
  attributes.Add(server);
  client_duration_->Record(Seconds(duration), attributes, opentelemetry::context::Context());
}

void Instruments::RecordServerCall(std::string_view method, int code, Duration duration) noexcept {
  const Attributes attributes = CallAttributes(method, code, penstock::detail::IsErrorAtServer(code));
  server_duration_->Record(Seconds(duration), attributes, opentelemetry::context::Context());
}

template <void (Instruments::*observe)(Instruments::Observer&)>
void Instruments::Callback(metrics::ObserverResult result, void* state) noexcept {
  auto* observer = nostd::get_if<nostd::shared_ptr<Observer>>(&result);
  if (observer != nullptr && *observer) (static_cast<Instruments*>(state)->*observe)(**observer);
}

void Instruments::ObserveStates(Observer& observer) {
  for (const auto& row : roster_.ReadStates()) {
    ObserveEach(observer, row.server, "penstock.circuit.state", penstock::detail::kStateNames, row.breakers);
  }
}

void Instruments::ObserveTransitions(Observer& observer) {
  for (const auto& row : roster_.ReadTotals()) {
    ObserveEach(observer, row.server, "penstock.circuit.state", penstock::detail::kStateNames, row.totals.transitions);
  }
}

void Instruments::ObserveCalls(Observer& observer) {
  for (const auto& row : roster_.ReadTotals()) {
    ObserveEach(observer, row.server, "penstock.circuit.outcome", penstock::detail::kOutcomeNames, row.totals.calls);
  }
}

void Instruments::ObserveDecisions(Observer& observer) {
  for (const auto& row : roster_.ReadTotals()) {
    ObserveEach(observer, row.server, "penstock.retry.decision", penstock::detail::kDecisionNames,
                row.totals.decisions);
  }
}

void Instruments::ObserveConnections(Observer& observer) {
  for (const auto& row : roster_.ReadConnections()) {
    Attributes attributes;
    const ServerName peer = penstock::detail::NameOf(row.peer);
    attributes.Add("network.peer.address", View(peer.address));
    if (peer.port != 0) attributes.Add("network.peer.port", static_cast<std::int64_t>(peer.port));
    attributes.Add(row.server);
    observer.Observe(row.connections, attributes);
  }
}

}  // namespace penstock::inline v0::otel::detail
