#pragma once

// Buckets in seconds for the duration histograms.
//
// OpenTelemetry's default buckets are meant for milliseconds: rpc.client.call.duration and rpc.server.call.duration,
// which are in seconds by its own conventions, would all fall into the first two. An instrument cannot say otherwise in
// this version; a view can. Call this where the program makes its MeterProvider:
//
//     auto meters = std::make_shared<opentelemetry::sdk::metrics::MeterProvider>();
//     penstock::otel::AddDurationBuckets(*meters);
//
// Threads: before the provider is used, as the SDK asks of AddView().
// Ownership: the provider's.
// Time: boundaries in seconds.
// Errors: none. Once for a provider: a second view makes a second stream of the same name.

#include <opentelemetry/sdk/metrics/aggregation/aggregation_config.h>
#include <opentelemetry/sdk/metrics/meter_provider.h>
#include <opentelemetry/sdk/metrics/view/instrument_selector.h>
#include <opentelemetry/sdk/metrics/view/meter_selector.h>
#include <opentelemetry/sdk/metrics/view/view.h>

#include <iterator>
#include <memory>
#include <vector>

#include "penstock/telemetry.h"

namespace penstock::inline v0::otel {

inline const std::vector<double>& DurationBuckets() {
  static const std::vector<double> buckets(std::begin(kDurationBuckets), std::end(kDurationBuckets));
  return buckets;
}

inline void AddDurationBuckets(opentelemetry::sdk::metrics::MeterProvider& provider,
                               const std::vector<double>& buckets = DurationBuckets()) {
  namespace metrics = opentelemetry::sdk::metrics;
  for (const char* name : {"rpc.client.call.duration", "rpc.server.call.duration"}) {
    auto config = std::make_shared<metrics::HistogramAggregationConfig>();
    config->boundaries_ = buckets;
    provider.AddView(
        std::make_unique<metrics::InstrumentSelector>(metrics::InstrumentType::kHistogram, name, "s"),
        std::make_unique<metrics::MeterSelector>("penstock", "", ""),
        std::make_unique<metrics::View>(name, "", "s", metrics::AggregationType::kHistogram, std::move(config)));
  }
}

}  // namespace penstock::inline v0::otel
