#pragma once

// Metrics of clients and servers for Prometheus, for programs without OpenTelemetry.
//
// The same instruments under the names that Prometheus gives them: penstock_circuit_state,
// penstock_circuit_transitions_total, penstock_circuit_calls_total, penstock_retry_decisions_total,
// penstock_client_connections, rpc_client_call_duration_seconds and rpc_server_call_duration_seconds.
// docs/observability.md lists their labels, with alert rules and a dashboard.
//
//     auto exporter = penstock::prometheus::Exporter::Create();
//     ::prometheus::Exposer exposer("0.0.0.0:9464");
//     exposer.RegisterCollectable(exporter);
//     Client::Create({.address = "ledger:9090", .plaintext = true, .observer = exporter->ForClient()});
//
// Threads: every member may be called from any thread.
// Ownership: clients and servers hold what they need; the exporter may go first, and they may.
// Time: durations are in real time, also where a client has a manual clock.
// Errors: none.

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <memory>
#include <vector>

#include "penstock/telemetry.h"

namespace penstock::inline v0 {
class ServerObserver;
}

namespace penstock::inline v0::prometheus {

class Exporter : public ::prometheus::Collectable {
 public:
  static std::shared_ptr<Exporter> Create();

  // For ClientSettings::observer; a new one for each client. Of several that are given the same, the first alone is counted.
  virtual std::shared_ptr<ClientObserver> ForClient() = 0;

  // For ServerSettings::observers; one may serve several servers.
  virtual std::shared_ptr<ServerObserver> ForServer() = 0;

  // What a scrape reads; asked for by the Exposer.
  std::vector<::prometheus::MetricFamily> Collect() const override = 0;
};

}  // namespace penstock::inline v0::prometheus
