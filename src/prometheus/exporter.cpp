#include "penstock/prometheus/exporter.h"

#include <chrono>
#include <string>
#include <string_view>
#include <utility>

#include "penstock/server/call.h"
#include "prometheus/durations.h"
#include "runtime/client_roster.h"
#include "runtime/name_table.h"

namespace penstock::inline v0::prometheus {
namespace {

using penstock::detail::ClientRoster;
using penstock::detail::FullName;
using penstock::detail::ServerName;
using ::prometheus::ClientMetric;
using ::prometheus::MetricFamily;
using ::prometheus::MetricType;

struct Shared {
  ClientRoster roster;
  detail::Durations client_durations;
  detail::Durations server_durations;
  penstock::detail::NameTable methods;
};

class Attempt final : public AttemptObservation {
 public:
  Attempt(Shared& shared, const ServerName& server, std::string_view method)
      : shared_(shared), server_(server), method_(shared.methods.Find(FullName(method))) {}

  void End(const AttemptEnd& end) noexcept override {
    if (std::exchange(ended_, true)) return;
    shared_.client_durations.Record(method_, end.status.error_code(), server_,
                                    std::chrono::steady_clock::now() - began_);
  }

 private:
  Shared& shared_;
  const ServerName& server_;
  const std::string_view method_;  // of the table
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  bool ended_ = false;
};

class OfClient final : public ClientObserver {
 public:
  explicit OfClient(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  ~OfClient() override { Forget(); }

  void OnCreated(std::shared_ptr<const ClientView> client) noexcept override {
    if (!clients_.Enter(*client)) return;
    entry_ = shared_->roster.Add(std::move(client));
    server_ = entry_->server();
  }
  void OnEnded() noexcept override {
    if (clients_.Leave()) Forget();
  }
  std::unique_ptr<AttemptObservation> OnAttempt(const AttemptStart& start,
                                                OutgoingMetadata& /*metadata*/) noexcept override {
    return std::make_unique<Attempt>(*shared_, server_, start.method);
  }
  void OnDecision(std::string_view /*method*/, RetryDecision decision) noexcept override {
    if (entry_) entry_->Count(decision);
  }

 private:
  void Forget() noexcept {
    if (entry_) shared_->roster.Remove(*entry_);
    entry_.reset();
  }

  const std::shared_ptr<Shared> shared_;
  penstock::detail::ObservedClients clients_;
  ServerName server_;  // as it is counted
  std::shared_ptr<ClientRoster::Entry> entry_;
};

class Call final : public ServerCallObservation {
 public:
  explicit Call(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  void OnEnded(const ServerCall& call, const ServerCallEnd& end) noexcept override {
    shared_->server_durations.Record(FullName(call.method()), end.code, {}, std::chrono::steady_clock::now() - began_);
  }

 private:
  const std::shared_ptr<Shared> shared_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

class OfServer final : public ServerObserver {
 public:
  explicit OfServer(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  std::unique_ptr<ServerCallObservation> OnStarted(ServerCall& /*call*/) override {
    return std::make_unique<Call>(shared_);
  }

  void OnUnknownMethod(std::string_view /*method*/, const grpc::CallbackServerContext& /*context*/) noexcept override {
    // One series for all of them; it ends as it begins.
    shared_->server_durations.Record(penstock::detail::NameTable::kOther, grpc::StatusCode::UNIMPLEMENTED, {}, Duration::zero());
  }

 private:
  const std::shared_ptr<Shared> shared_;
};

std::vector<ClientMetric::Label> LabelsOf(const ServerName& server) {
  std::vector<ClientMetric::Label> labels = {{"server_address", server.address}};
  if (server.port != 0) labels.push_back({"server_port", std::to_string(server.port)});
  return labels;
}

// One series for each name, with the number of the same place.
template <class Names, class Numbers>
void AddEach(MetricFamily& family, const ServerName& server, const char* label, const Names& names,
             const Numbers& numbers) {
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    ClientMetric metric;
    metric.label = LabelsOf(server);
    metric.label.push_back({label, std::string(names[i])});
    const auto value = static_cast<double>(numbers[i]);
    family.type == MetricType::Counter ? metric.counter.value = value : metric.gauge.value = value;
    family.metric.push_back(std::move(metric));
  }
}

class SharedExporter final : public Exporter {
 public:
  std::shared_ptr<ClientObserver> ForClient() override { return std::make_shared<OfClient>(shared_); }
  std::shared_ptr<ServerObserver> ForServer() override { return std::make_shared<OfServer>(shared_); }

  std::vector<MetricFamily> Collect() const override {
    using namespace penstock::detail;
    MetricFamily states{"penstock_circuit_state", "Circuit breakers by the state they are in", MetricType::Gauge, {}};
    for (const auto& row : shared_->roster.ReadStates()) {
      AddEach(states, row.server, "penstock_circuit_state", kStateNames, row.breakers);
    }
    MetricFamily transitions{
        "penstock_circuit_transitions_total", "Changes of state by the state entered", MetricType::Counter, {}};
    MetricFamily calls{
        "penstock_circuit_calls_total", "Attempts and streams by what they count as", MetricType::Counter, {}};
    MetricFamily decisions{
        "penstock_retry_decisions_total", "What followed for calls after their attempts", MetricType::Counter, {}};
    for (const auto& row : shared_->roster.ReadTotals()) {
      AddEach(transitions, row.server, "penstock_circuit_state", kStateNames, row.totals.transitions);
      AddEach(calls, row.server, "penstock_circuit_outcome", kOutcomeNames, row.totals.calls);
      AddEach(decisions, row.server, "penstock_retry_decision", kDecisionNames, row.totals.decisions);
    }
    MetricFamily connections{
        "penstock_client_connections", "Connections that calls have used of late, by peer", MetricType::Gauge, {}};
    for (const auto& row : shared_->roster.ReadConnections()) {
      ClientMetric metric;
      metric.label = LabelsOf(row.server);
      const ServerName peer = NameOf(row.peer);
      metric.label.push_back({"network_peer_address", peer.address});
      if (peer.port != 0) metric.label.push_back({"network_peer_port", std::to_string(peer.port)});
      metric.gauge.value = static_cast<double>(row.connections);
      connections.metric.push_back(std::move(metric));
    }
    MetricFamily client{
        "rpc_client_call_duration_seconds", "Duration of attempts at the client", MetricType::Histogram, {}};
    shared_->client_durations.CollectInto(client);
    MetricFamily server{
        "rpc_server_call_duration_seconds", "Duration of calls at the server", MetricType::Histogram, {}};
    shared_->server_durations.CollectInto(server);

    std::vector<MetricFamily> families;
    for (MetricFamily* family : {&states, &transitions, &calls, &decisions, &connections, &client, &server}) {
      if (!family->metric.empty()) families.push_back(std::move(*family));
    }
    return families;
  }

 private:
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace

std::shared_ptr<Exporter> Exporter::Create() { return std::make_shared<SharedExporter>(); }

}  // namespace penstock::inline v0::prometheus
