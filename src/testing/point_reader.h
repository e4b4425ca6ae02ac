#pragma once

// A metric reader that collects when it is asked, since its beginning (cumulative).

#include <opentelemetry/sdk/metrics/metric_reader.h>

#include <chrono>

namespace penstock::inline v0::testing::detail {

class PointReader final : public opentelemetry::sdk::metrics::MetricReader {
 public:
  opentelemetry::sdk::metrics::AggregationTemporality GetAggregationTemporality(
      opentelemetry::sdk::metrics::InstrumentType) const noexcept override {
    return opentelemetry::sdk::metrics::AggregationTemporality::kCumulative;
  }

 private:
  bool OnForceFlush(std::chrono::microseconds) noexcept override { return true; }
  bool OnShutDown(std::chrono::microseconds) noexcept override { return true; }
};

}  // namespace penstock::inline v0::testing::detail
