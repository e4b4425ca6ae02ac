#include "common/telemetry.h"

#include <opentelemetry/exporters/ostream/log_record_exporter_factory.h>
#include <opentelemetry/exporters/ostream/metric_exporter_factory.h>
#include <opentelemetry/exporters/ostream/span_exporter_factory.h>
#include <opentelemetry/exporters/otlp/otlp_grpc_exporter_factory.h>
#include <opentelemetry/exporters/otlp/otlp_grpc_log_record_exporter_factory.h>
#include <opentelemetry/exporters/otlp/otlp_grpc_metric_exporter_factory.h>
#include <opentelemetry/sdk/logs/batch_log_record_processor_factory.h>
#include <opentelemetry/sdk/logs/batch_log_record_processor_options.h>
#include <opentelemetry/sdk/logs/logger_provider.h>
#include <opentelemetry/sdk/metrics/export/periodic_exporting_metric_reader_factory.h>
#include <opentelemetry/sdk/metrics/export/periodic_exporting_metric_reader_options.h>
#include <opentelemetry/sdk/metrics/meter_provider.h>
#include <opentelemetry/sdk/metrics/push_metric_exporter.h>
#include <opentelemetry/sdk/resource/resource.h>
#include <opentelemetry/sdk/trace/batch_span_processor_factory.h>
#include <opentelemetry/sdk/trace/batch_span_processor_options.h>
#include <opentelemetry/sdk/trace/tracer_provider.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <utility>

#include "penstock/otel/buckets.h"
#include "penstock/otel/telemetry.h"

namespace example {

namespace {

namespace exporter = opentelemetry::exporter;
namespace logs = opentelemetry::sdk::logs;
namespace metrics = opentelemetry::sdk::metrics;
namespace trace = opentelemetry::sdk::trace;
using opentelemetry::nostd::shared_ptr;
using opentelemetry::sdk::resource::Resource;
using std::chrono::milliseconds;

constexpr milliseconds kInterval(1000);
constexpr milliseconds kLastWords(2000);

// A file in which the latest export stands, and none before it.
class LatestMetrics final : public metrics::PushMetricExporter {
 public:
  explicit LatestMetrics(std::filesystem::path file) : file_(std::move(file)) {}

  opentelemetry::sdk::common::ExportResult Export(const metrics::ResourceMetrics& data) noexcept override {
    const std::filesystem::path next = file_.string() + ".new";
    {
      std::ofstream out(next);
      exporter::metrics::OStreamMetricExporterFactory::Create(out)->Export(data);
    }
    std::error_code failed;
    std::filesystem::rename(next, file_, failed);
    return failed ? opentelemetry::sdk::common::ExportResult::kFailure : opentelemetry::sdk::common::ExportResult::kSuccess;
  }
  metrics::AggregationTemporality GetAggregationTemporality(metrics::InstrumentType) const noexcept override {
    return metrics::AggregationTemporality::kCumulative;
  }
  bool ForceFlush(std::chrono::microseconds) noexcept override { return true; }
  bool Shutdown(std::chrono::microseconds) noexcept override { return true; }

 private:
  const std::filesystem::path file_;
};

struct Exporters {
  std::unique_ptr<trace::SpanExporter> spans;
  std::unique_ptr<metrics::PushMetricExporter> metrics;
  std::unique_ptr<logs::LogRecordExporter> logs;
};

// With a deadline of its own, so that a program whose collector is away still ends in time.
template <class Options>
Options Brief() {
  Options options;
  options.timeout = kInterval;
  return options;
}

Exporters ToCollector() {
  return {exporter::otlp::OtlpGrpcExporterFactory::Create(Brief<exporter::otlp::OtlpGrpcExporterOptions>()),
          exporter::otlp::OtlpGrpcMetricExporterFactory::Create(Brief<exporter::otlp::OtlpGrpcMetricExporterOptions>()),
          exporter::otlp::OtlpGrpcLogRecordExporterFactory::Create(Brief<exporter::otlp::OtlpGrpcLogRecordExporterOptions>())};
}

}  // namespace

struct Telemetry::Pipeline {
  Pipeline(const std::string& service, const std::string& where)
      : traces_file(where == "otlp" ? std::ofstream() : std::ofstream(std::filesystem::path(where) / "traces.txt")),
        logs_file(where == "otlp" ? std::ofstream() : std::ofstream(std::filesystem::path(where) / "logs.txt")) {
    traces_file << std::unitbuf;  // so that what is exported is there to be read
    logs_file << std::unitbuf;
    Exporters to = where == "otlp" ? ToCollector()
                                   : Exporters{exporter::trace::OStreamSpanExporterFactory::Create(traces_file),
                                               std::make_unique<LatestMetrics>(std::filesystem::path(where) / "metrics.txt"),
                                               exporter::logs::OStreamLogRecordExporterFactory::Create(logs_file)};
    const Resource resource = Resource::Create({{"service.name", service}});

    trace::BatchSpanProcessorOptions span_options;
    span_options.schedule_delay_millis = kInterval;
    tracer = std::make_shared<trace::TracerProvider>(trace::BatchSpanProcessorFactory::Create(std::move(to.spans), span_options), resource);

    meter = std::make_shared<metrics::MeterProvider>(std::make_unique<metrics::ViewRegistry>(), resource);
    penstock::otel::AddDurationBuckets(*meter);
    metrics::PeriodicExportingMetricReaderOptions reader_options;
    reader_options.export_interval_millis = kInterval;
    reader_options.export_timeout_millis = kInterval / 2;
    meter->AddMetricReader(metrics::PeriodicExportingMetricReaderFactory::Create(std::move(to.metrics), reader_options));

    logs::BatchLogRecordProcessorOptions log_options;
    log_options.schedule_delay_millis = kInterval;
    logger = std::make_shared<logs::LoggerProvider>(logs::BatchLogRecordProcessorFactory::Create(std::move(to.logs), log_options), resource);

    telemetry = penstock::otel::Telemetry::Create({.tracer = shared_ptr<opentelemetry::trace::TracerProvider>(tracer),
                                                   .meter = shared_ptr<opentelemetry::metrics::MeterProvider>(meter),
                                                   .logger = shared_ptr<opentelemetry::logs::LoggerProvider>(logger)});
  }
  ~Pipeline() {
    const Left left;
    meter->ForceFlush(left());  // else what was counted since the last export is lost
    tracer->Shutdown(left());
    meter->Shutdown(left());
    logger->Shutdown(left());
  }

  void Flush() {
    const Left left;
    meter->ForceFlush(left());
    tracer->ForceFlush(left());
    logger->ForceFlush(left());
  }

  // What of the last words' time is left.
  struct Left {
    milliseconds operator()() const {
      const auto time = std::chrono::duration_cast<milliseconds>(until - std::chrono::steady_clock::now());
      return std::max(time, milliseconds(1));  // to OpenTelemetry 0 is without end
    }
    const std::chrono::steady_clock::time_point until = std::chrono::steady_clock::now() + kLastWords;
  };

  std::ofstream traces_file;
  std::ofstream logs_file;
  std::shared_ptr<trace::TracerProvider> tracer;
  std::shared_ptr<metrics::MeterProvider> meter;
  std::shared_ptr<logs::LoggerProvider> logger;
  std::shared_ptr<penstock::otel::Telemetry> telemetry;
};

std::string Telemetry::Check(const std::string& where) {
  std::error_code ignored;
  if (where.empty() || where == "otlp" || std::filesystem::is_directory(where, ignored)) return {};
  return "is \"" + where + "\": it must be otlp, or a folder that exists";
}

void Telemetry::Flush() const {
  if (pipeline_ != nullptr) pipeline_->Flush();
}

Telemetry::Telemetry(const std::string& service, const std::string& where)
    : pipeline_(where.empty() ? nullptr : std::make_unique<Pipeline>(service, where)) {}

Telemetry::~Telemetry() = default;

std::shared_ptr<penstock::ClientObserver> Telemetry::ForClient() const {
  return pipeline_ == nullptr ? nullptr : pipeline_->telemetry->ForClient();
}

std::vector<std::shared_ptr<penstock::ServerObserver>> Telemetry::ForServer() const {
  if (pipeline_ == nullptr) return {};
  return {pipeline_->telemetry->ForServer()};
}

}  // namespace example
