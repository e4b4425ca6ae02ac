#pragma once

// Traces, metrics and log records of clients and servers, through OpenTelemetry.
//
// The program sets OpenTelemetry up as it likes and hands the providers in; penstock reads and writes none of
// OpenTelemetry's globals. docs/observability.md lists what is recorded, with alerts and a dashboard.
//
//     auto telemetry = penstock::otel::Telemetry::Create({.tracer = tracers, .meter = meters, .logger = loggers});
//     Client::Create({.address = "ledger:9090", .plaintext = true, .observer = telemetry->ForClient()});
//     Server::Create({.address = ":9090", .plaintext = true, .observers = {telemetry->ForServer()}}, {&service});
//
// Threads: every member may be called from any thread.
// Ownership: shared; clients and servers hold what they need. What a client has counted is exported for as long as this or
// another client of it lives: keep it until the last export. The meter provider is held, of the others a tracer and a logger:
// each may be shut down, and let go of, at any time; what comes later is recorded nowhere.
// Time: durations and spans are in real time, also where a client has a manual clock.
// Errors: none; a provider that is null records nothing.

#include <opentelemetry/logs/logger_provider.h>
#include <opentelemetry/metrics/meter_provider.h>
#include <opentelemetry/nostd/shared_ptr.h>
#include <opentelemetry/trace/span_context.h>
#include <opentelemetry/trace/tracer_provider.h>

#include <memory>

#include "penstock/core/clock.h"
#include "penstock/runtime/call_scope.h"
#include "penstock/telemetry.h"

namespace penstock::inline v0 {
class ServerObserver;
}

namespace penstock::inline v0::otel {

struct Providers {
  opentelemetry::nostd::shared_ptr<opentelemetry::trace::TracerProvider> tracer{};
  opentelemetry::nostd::shared_ptr<opentelemetry::metrics::MeterProvider> meter{};
  opentelemetry::nostd::shared_ptr<opentelemetry::logs::LoggerProvider> logger{};
};

class Telemetry {
 public:
  // One for a set of providers is enough, for any number of clients and servers. Several for one meter provider are
  // fine: they share their instruments.
  static std::shared_ptr<Telemetry> Create(const Providers& providers);

  virtual ~Telemetry() = default;

  // For ClientSettings::observer; a new one for each client. Of several that are given the same, the first alone is counted.
  virtual std::shared_ptr<ClientObserver> ForClient() = 0;

  // For ServerSettings::observers; one may serve several servers.
  virtual std::shared_ptr<ServerObserver> ForServer() = 0;
};

// The parent for calls that are made for a span of the program's own, such as a job's: CallOptions::parent. Ends them
// at `deadline` and when the scope is ended.
std::shared_ptr<CallScope> ScopeFor(const opentelemetry::trace::SpanContext& span,
                                    TimePoint deadline = TimePoint::max());

}  // namespace penstock::inline v0::otel
