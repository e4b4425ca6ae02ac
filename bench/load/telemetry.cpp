#include "telemetry.h"

#include <opentelemetry/sdk/trace/processor.h>
#include <opentelemetry/sdk/trace/span_data.h>
#include <opentelemetry/sdk/trace/tracer_provider.h>

#include <memory>

#include "penstock/otel/buckets.h"
#include "penstock/otel/telemetry.h"

namespace load {
namespace {

// Drops every span once it is made, so that what is measured is the recording and no exporter.
class Dropping final : public opentelemetry::sdk::trace::SpanProcessor {
 public:
  using Recordable = opentelemetry::sdk::trace::Recordable;
  std::unique_ptr<Recordable> MakeRecordable() noexcept override {
    return std::make_unique<opentelemetry::sdk::trace::SpanData>();
  }
  void OnStart(Recordable&, const opentelemetry::trace::SpanContext&) noexcept override {}
  void OnEnd(std::unique_ptr<Recordable>&&) noexcept override {}
  bool ForceFlush(std::chrono::microseconds) noexcept override { return true; }
  bool Shutdown(std::chrono::microseconds) noexcept override { return true; }
};

// Never destroyed: calls may end after main(), and the views of a meter provider must outlive what records.
penstock::otel::Telemetry& Telemetry() {
  namespace sdk = opentelemetry::sdk;
  namespace nostd = opentelemetry::nostd;
  static auto& tracers = *new nostd::shared_ptr<opentelemetry::trace::TracerProvider>(
      new sdk::trace::TracerProvider(std::make_unique<Dropping>()));
  static auto& meters = *[] {
    auto* provider = new sdk::metrics::MeterProvider();
    penstock::otel::AddDurationBuckets(*provider);
    return new nostd::shared_ptr<opentelemetry::metrics::MeterProvider>(provider);
  }();
  static auto& telemetry = *new std::shared_ptr<penstock::otel::Telemetry>(
      penstock::otel::Telemetry::Create({.tracer = tracers, .meter = meters, .logger = {}}));
  return *telemetry;
}

}  // namespace

std::shared_ptr<penstock::ClientObserver> OtelClientObserver() { return Telemetry().ForClient(); }
std::shared_ptr<penstock::ServerObserver> OtelServerObserver() { return Telemetry().ForServer(); }

}  // namespace load
