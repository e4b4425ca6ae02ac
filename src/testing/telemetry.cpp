#include "penstock/testing/telemetry.h"

#include <opentelemetry/nostd/variant.h>
#include <opentelemetry/sdk/common/attribute_utils.h>
#include <opentelemetry/sdk/logs/exporter.h>
#include <opentelemetry/sdk/logs/logger_provider.h>
#include <opentelemetry/sdk/logs/read_write_log_record.h>
#include <opentelemetry/sdk/logs/simple_log_record_processor.h>
#include <opentelemetry/sdk/metrics/meter_provider.h>
#include <opentelemetry/sdk/trace/exporter.h>
#include <opentelemetry/sdk/trace/simple_processor.h>
#include <opentelemetry/sdk/trace/span_data.h>
#include <opentelemetry/sdk/trace/tracer_provider.h>

#include <algorithm>
#include <mutex>
#include <type_traits>
#include <utility>

#include "testing/point_reader.h"

namespace penstock::inline v0::testing {

namespace nostd = opentelemetry::nostd;
namespace sdk = opentelemetry::sdk;

namespace {

template <class T>
struct Recorded {
  mutable std::mutex mutex;
  std::vector<T> all;

  void Add(T one) {
    std::lock_guard lock(mutex);
    all.push_back(std::move(one));
  }
  std::vector<T> Copy() const {
    std::lock_guard lock(mutex);
    return all;
  }
};

template <class Id>
std::string Hex(const Id& id) {
  if (!id.IsValid()) return {};
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : id.Id()) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 0xf];
  }
  return text;
}

// Of an owned or a borrowed attribute value.
struct AsText {
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(const std::string& value) const { return value; }
  std::string operator()(nostd::string_view value) const { return std::string(value.data(), value.size()); }
  std::string operator()(const char* value) const { return value; }
  template <class T>
  std::string operator()(const T& value) const {
    if constexpr (std::is_arithmetic_v<T>) {
      return std::to_string(value);
    } else {
      std::string text;
      for (const auto& one : value) text += (text.empty() ? "" : ",") + (*this)(one);
      return text;
    }
  }
};

template <class Map>
RecordedAttributes AttributesOf(const Map& map) {
  RecordedAttributes attributes;
  for (const auto& [key, value] : map) attributes[key] = nostd::visit(AsText(), value);
  return attributes;
}

std::string KindOf(opentelemetry::trace::SpanKind kind) {
  switch (kind) {
    case opentelemetry::trace::SpanKind::kClient:
      return "client";
    case opentelemetry::trace::SpanKind::kServer:
      return "server";
    case opentelemetry::trace::SpanKind::kProducer:
      return "producer";
    case opentelemetry::trace::SpanKind::kConsumer:
      return "consumer";
    case opentelemetry::trace::SpanKind::kInternal:
      break;
  }
  return "internal";
}

class SpanRecorder final : public sdk::trace::SpanExporter {
 public:
  explicit SpanRecorder(std::shared_ptr<Recorded<RecordedSpan>> recorded) : recorded_(std::move(recorded)) {}

  std::unique_ptr<sdk::trace::Recordable> MakeRecordable() noexcept override {
    return std::make_unique<sdk::trace::SpanData>();
  }

  sdk::common::ExportResult Export(
      const nostd::span<std::unique_ptr<sdk::trace::Recordable>>& spans) noexcept override {
    for (const auto& recordable : spans) {
      const auto& data = static_cast<const sdk::trace::SpanData&>(*recordable);
      RecordedSpan span;
      span.name = AsText()(data.GetName());
      span.kind = KindOf(data.GetSpanKind());
      span.trace_id = Hex(data.GetTraceId());
      span.span_id = Hex(data.GetSpanId());
      span.parent_span_id = Hex(data.GetParentSpanId());
      span.error = data.GetStatus() == opentelemetry::trace::StatusCode::kError;
      span.error_message = AsText()(data.GetDescription());
      span.attributes = AttributesOf(data.GetAttributes());
      span.duration = data.GetDuration();
      recorded_->Add(std::move(span));
    }
    return sdk::common::ExportResult::kSuccess;
  }
  bool ForceFlush(std::chrono::microseconds) noexcept override { return true; }
  bool Shutdown(std::chrono::microseconds) noexcept override { return true; }

 private:
  const std::shared_ptr<Recorded<RecordedSpan>> recorded_;
};

class LogRecorder final : public sdk::logs::LogRecordExporter {
 public:
  explicit LogRecorder(std::shared_ptr<Recorded<RecordedLog>> recorded) : recorded_(std::move(recorded)) {}

  std::unique_ptr<sdk::logs::Recordable> MakeRecordable() noexcept override {
    return std::make_unique<sdk::logs::ReadWriteLogRecord>();
  }

  sdk::common::ExportResult Export(
      const nostd::span<std::unique_ptr<sdk::logs::Recordable>>& records) noexcept override {
    for (const auto& recordable : records) {
      const auto& data = static_cast<const sdk::logs::ReadWriteLogRecord&>(*recordable);
      RecordedLog log;
      log.severity = AsText()(opentelemetry::logs::SeverityNumToText[static_cast<std::size_t>(data.GetSeverity())]);
      log.body = nostd::visit(AsText(), data.GetBody());
      log.attributes = AttributesOf(data.GetAttributes());
      log.trace_id = Hex(data.GetTraceId());
      log.span_id = Hex(data.GetSpanId());
      recorded_->Add(std::move(log));
    }
    return sdk::common::ExportResult::kSuccess;
  }
  bool ForceFlush(std::chrono::microseconds) noexcept override { return true; }
  bool Shutdown(std::chrono::microseconds) noexcept override { return true; }

 private:
  const std::shared_ptr<Recorded<RecordedLog>> recorded_;
};

double NumberOf(const sdk::metrics::ValueType& value) {
  return nostd::visit([](auto number) { return static_cast<double>(number); }, value);
}

RecordedPoint PointOf(const sdk::metrics::InstrumentDescriptor& instrument,
                      const sdk::metrics::PointDataAttributes& data) {
  RecordedPoint point;
  point.name = instrument.name_;
  point.unit = instrument.unit_;
  point.attributes = AttributesOf(data.attributes);
  if (const auto* sum = nostd::get_if<sdk::metrics::SumPointData>(&data.point_data)) {
    point.value = NumberOf(sum->value_);
  } else if (const auto* last = nostd::get_if<sdk::metrics::LastValuePointData>(&data.point_data)) {
    point.value = NumberOf(last->value_);
  } else if (const auto* histogram = nostd::get_if<sdk::metrics::HistogramPointData>(&data.point_data)) {
    point.value = NumberOf(histogram->sum_);
    point.count = histogram->count_;
    point.boundaries = histogram->boundaries_;
    point.buckets = histogram->counts_;
  }
  return point;
}

// By value: nostd::shared_ptr converts rvalues alone.
template <class T>
nostd::shared_ptr<T> Copy(nostd::shared_ptr<T> provider) {
  return provider;
}

}  // namespace

struct Telemetry::Impl {
  std::shared_ptr<Recorded<RecordedSpan>> spans = std::make_shared<Recorded<RecordedSpan>>();
  std::shared_ptr<Recorded<RecordedLog>> logs = std::make_shared<Recorded<RecordedLog>>();
  std::shared_ptr<detail::PointReader> reader = std::make_shared<detail::PointReader>();

  // Under mutex.
  std::vector<RecordedPoint> Points() const;

  mutable std::mutex mutex;
  // All guarded by mutex.
  nostd::shared_ptr<sdk::trace::TracerProvider> tracers;
  nostd::shared_ptr<sdk::metrics::MeterProvider> meters;
  nostd::shared_ptr<sdk::logs::LoggerProvider> loggers;
  bool shut_down = false;
  std::vector<RecordedPoint> last_points;  // of the collection at the shutdown
};

Telemetry::Telemetry() : impl_(std::make_unique<Impl>()) {
  auto span_exporter = std::make_unique<SpanRecorder>(impl_->spans);
  impl_->tracers = nostd::shared_ptr<sdk::trace::TracerProvider>(
      new sdk::trace::TracerProvider(std::make_unique<sdk::trace::SimpleSpanProcessor>(std::move(span_exporter))));
  impl_->meters = nostd::shared_ptr<sdk::metrics::MeterProvider>(new sdk::metrics::MeterProvider());
  impl_->meters->AddMetricReader(impl_->reader);
  auto log_exporter = std::make_unique<LogRecorder>(impl_->logs);
  impl_->loggers = nostd::shared_ptr<sdk::logs::LoggerProvider>(
      new sdk::logs::LoggerProvider(std::make_unique<sdk::logs::SimpleLogRecordProcessor>(std::move(log_exporter))));
}

Telemetry::~Telemetry() = default;

nostd::shared_ptr<opentelemetry::trace::TracerProvider> Telemetry::tracer_provider() const {
  std::lock_guard lock(impl_->mutex);
  return Copy(impl_->tracers);
}

nostd::shared_ptr<opentelemetry::metrics::MeterProvider> Telemetry::meter_provider() const {
  std::lock_guard lock(impl_->mutex);
  return Copy(impl_->meters);
}

nostd::shared_ptr<opentelemetry::logs::LoggerProvider> Telemetry::logger_provider() const {
  std::lock_guard lock(impl_->mutex);
  return Copy(impl_->loggers);
}

sdk::metrics::MeterProvider& Telemetry::sdk_meter_provider() const {
  std::lock_guard lock(impl_->mutex);
  return *impl_->meters;
}

std::vector<RecordedSpan> Telemetry::Spans() const { return impl_->spans->Copy(); }

std::vector<RecordedPoint> Telemetry::Points() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->Points();
}

std::vector<RecordedPoint> Telemetry::Impl::Points() const {
  if (shut_down) return last_points;
  std::vector<RecordedPoint> points;
  reader->Collect([&](sdk::metrics::ResourceMetrics& resource) {
    for (const auto& scope : resource.scope_metric_data_) {
      for (const auto& metric : scope.metric_data_) {
        for (const auto& data : metric.point_data_attr_) points.push_back(PointOf(metric.instrument_descriptor, data));
      }
    }
    return true;
  });
  return points;
}

double Telemetry::Sum(std::string_view instrument, const RecordedAttributes& attributes) const {
  double sum = 0;
  for (const RecordedPoint& point : Points()) {
    if (point.name != instrument) continue;
    const bool matches = std::all_of(attributes.begin(), attributes.end(), [&](const auto& wanted) {
      const auto found = point.attributes.find(wanted.first);
      return found != point.attributes.end() && found->second == wanted.second;
    });
    if (matches) sum += point.value;
  }
  return sum;
}

std::vector<RecordedLog> Telemetry::Logs() const { return impl_->logs->Copy(); }

void Telemetry::Shutdown() {
  std::lock_guard lock(impl_->mutex);
  if (impl_->shut_down) return;
  impl_->last_points = impl_->Points();
  impl_->shut_down = true;
  impl_->tracers->Shutdown();
  impl_->meters->Shutdown();
  impl_->loggers->Shutdown();
  impl_->tracers = {};
  impl_->meters = {};
  impl_->loggers = {};
}

}  // namespace penstock::inline v0::testing
