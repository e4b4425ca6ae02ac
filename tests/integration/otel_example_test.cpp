// docs/observability.md's listings for OpenTelemetry, and that they do what it says.
#include <doctest/doctest.h>
#include <opentelemetry/sdk/metrics/meter_provider.h>
#include <opentelemetry/sdk/metrics/metric_reader.h>
#include <opentelemetry/sdk/trace/exporter.h>
#include <opentelemetry/sdk/trace/simple_processor_factory.h>
#include <opentelemetry/sdk/trace/span_data.h>
#include <opentelemetry/sdk/trace/tracer_provider.h>
#include <opentelemetry/sdk/trace/tracer_provider_factory.h>
#include <penstock/otel/buckets.h>
#include <penstock/otel/telemetry.h>

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "penstock/client/client.h"
#include "penstock/testing/telemetry.h"
#include "support/server_fixture.h"
#include "testing/point_reader.h"

namespace {

namespace sdk = opentelemetry::sdk;

// The exporter of a real program stands for it.
class CountingExporter final : public sdk::trace::SpanExporter {
 public:
  explicit CountingExporter(std::atomic<int>& spans) : spans_(spans) {}
  std::unique_ptr<sdk::trace::Recordable> MakeRecordable() noexcept override { return std::make_unique<sdk::trace::SpanData>(); }
  sdk::common::ExportResult Export(
      const opentelemetry::nostd::span<std::unique_ptr<sdk::trace::Recordable>>& spans) noexcept override {
    spans_ += static_cast<int>(spans.size());
    return sdk::common::ExportResult::kSuccess;
  }
  bool ForceFlush(std::chrono::microseconds) noexcept override { return true; }
  bool Shutdown(std::chrono::microseconds) noexcept override { return true; }

 private:
  std::atomic<int>& spans_;
};

std::shared_ptr<penstock::otel::Telemetry> SetUp(std::shared_ptr<sdk::metrics::MetricReader> reader,
                                                 std::unique_ptr<sdk::trace::SpanProcessor> processor) {
  auto sdk_meters = std::make_shared<opentelemetry::sdk::metrics::MeterProvider>();
  penstock::otel::AddDurationBuckets(*sdk_meters);  // before anything is recorded
  sdk_meters->AddMetricReader(std::move(reader));

  // As the API's providers: what is of the SDK's type does not convert by itself.
  std::shared_ptr<opentelemetry::metrics::MeterProvider> meters = sdk_meters;
  std::shared_ptr<opentelemetry::trace::TracerProvider> tracers =
      opentelemetry::sdk::trace::TracerProviderFactory::Create(std::move(processor));
  return penstock::otel::Telemetry::Create({.tracer = tracers, .meter = meters});
}

}  // namespace

namespace penstock::test {
namespace {

TEST_CASE("docs/observability.md: a program's own providers record the calls of a client and a server") {
  std::atomic<int> spans{0};
  auto reader = std::make_shared<testing::detail::PointReader>();
  const auto telemetry = SetUp(reader, sdk::trace::SimpleSpanProcessorFactory::Create(std::make_unique<CountingExporter>(spans)));
  GuardedEcho service;
  auto server = Server::Create(
      {.address = "127.0.0.1:0", .plaintext = true, .drain = 0s, .observers = {telemetry->ForServer()}}, {&service});
  REQUIRE(server.ok());
  auto client = Client::Create({.address = AddressOf(**server), .plaintext = true, .observer = telemetry->ForClient()});
  REQUIRE(client.ok());
  CHECK(client->CallAndWait(PENSTOCK_METHOD(v1::Echo, Unary), {}).ok());
  CHECK(Eventually([&] { return spans == 2; }));
  std::set<std::string> names;
  std::size_t buckets = 0;
  reader->Collect([&](sdk::metrics::ResourceMetrics& metrics) {
    for (const auto& scope : metrics.scope_metric_data_) {
      for (const auto& metric : scope.metric_data_) {
        names.insert(metric.instrument_descriptor.name_);
        if (metric.instrument_descriptor.name_ != "rpc.client.call.duration") continue;
        for (const auto& point : metric.point_data_attr_) {
          buckets = opentelemetry::nostd::get<sdk::metrics::HistogramPointData>(point.point_data).boundaries_.size();
        }
      }
    }
    return true;
  });
  CHECK(names.contains("rpc.server.call.duration"));
  CHECK(names.contains("penstock.circuit.state"));
  CHECK(buckets == otel::DurationBuckets().size());
}

TEST_CASE("docs/observability.md: a test reads telemetry that was recorded in memory") {
  GuardedEcho service;
  auto server = MakeServer(LocalSettings(), {&service});
  const auto make_client = [&](std::shared_ptr<ClientObserver> observer) {
    return Client::Create({.address = AddressOf(*server), .plaintext = true, .observer = std::move(observer)});
  };
  penstock::testing::Telemetry recorded;
  auto telemetry = penstock::otel::Telemetry::Create(
      {recorded.tracer_provider(), recorded.meter_provider(), recorded.logger_provider()});
  auto client = make_client(telemetry->ForClient());
  REQUIRE(client.ok());
  CHECK(client->CallAndWait(PENSTOCK_METHOD(v1::Echo, Unary), {}).ok());
  CHECK(recorded.Spans().at(0).attributes.at("rpc.response.status_code") == "OK");
  CHECK(recorded.Sum("penstock.circuit.state", {{"penstock.circuit.state", "open"}}) == 0);
}

}  // namespace
}  // namespace penstock::test
