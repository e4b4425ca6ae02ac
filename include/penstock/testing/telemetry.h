#pragma once

// Telemetry recorded in memory and read back.
//
// A test hands these providers to what it tests, and looks at what came out: no collector, no exporter, no waiting.
//
//     testing::Telemetry recorded;
//     auto telemetry = otel::Telemetry::Create({recorded.tracer_provider(), recorded.meter_provider(),
//     recorded.logger_provider()});
//     ...
//     CHECK(recorded.Spans().at(0).attributes.at("rpc.method") == "ledger.v1.Ledger/Transfer");
//
// Threads: every member may be called from any thread.
// Ownership: the providers may be held longer than the recorder; what they then record is lost.
// Time: real.
// Errors: none.

#include <opentelemetry/logs/logger_provider.h>
#include <opentelemetry/metrics/meter_provider.h>
#include <opentelemetry/nostd/shared_ptr.h>
#include <opentelemetry/trace/tracer_provider.h>
#include <opentelemetry/version.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/core/clock.h"

OPENTELEMETRY_BEGIN_NAMESPACE
namespace sdk::metrics {
class MeterProvider;
}
OPENTELEMETRY_END_NAMESPACE

namespace penstock::inline v0::testing {

// Values as text: numbers in decimal, true and false.
using RecordedAttributes = std::map<std::string, std::string>;

struct RecordedSpan {
  std::string name;
  std::string kind;  // "client", "server", "internal", "producer" or "consumer"
  // Lower-case hex; of a root the parent is empty.
  std::string trace_id;
  std::string span_id;
  std::string parent_span_id;
  bool error = false;
  std::string error_message;
  RecordedAttributes attributes;
  Duration duration{};
};

// One series of one instrument, since the recorder was made (cumulative).
struct RecordedPoint {
  std::string name;
  std::string unit;
  RecordedAttributes attributes;
  double value = 0;  // of a counter or a gauge; of a histogram the sum
  // Of a histogram.
  std::uint64_t count = 0;
  std::vector<double> boundaries;
  std::vector<std::uint64_t> buckets;
};

struct RecordedLog {
  std::string severity;  // "INFO", "WARN", "ERROR", ...
  std::string body;
  RecordedAttributes attributes;
  // Lower-case hex; empty for none.
  std::string trace_id;
  std::string span_id;
};

class Telemetry {
 public:
  Telemetry();
  ~Telemetry();
  Telemetry(const Telemetry&) = delete;
  Telemetry& operator=(const Telemetry&) = delete;

  // Null after Shutdown().
  opentelemetry::nostd::shared_ptr<opentelemetry::trace::TracerProvider> tracer_provider() const;
  opentelemetry::nostd::shared_ptr<opentelemetry::metrics::MeterProvider> meter_provider() const;
  opentelemetry::nostd::shared_ptr<opentelemetry::logs::LoggerProvider> logger_provider() const;

  // For views (otel::AddDurationBuckets), before the provider is used; not after Shutdown().
  opentelemetry::sdk::metrics::MeterProvider& sdk_meter_provider() const;

  // Those that have ended, in that order.
  std::vector<RecordedSpan> Spans() const;

  // Collects now.
  std::vector<RecordedPoint> Points() const;
  // Of the instrument, the series with all of these attributes among its own: their values added up.
  double Sum(std::string_view instrument, const RecordedAttributes& attributes = {}) const;

  std::vector<RecordedLog> Logs() const;

  // The providers go, as at a program's end; what was recorded stays.
  void Shutdown();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock::inline v0::testing
