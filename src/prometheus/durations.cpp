#include "prometheus/durations.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <utility>

#include "runtime/status_code.h"
#include "runtime/status_name.h"

namespace penstock::inline v0::prometheus::detail {

void Durations::Record(std::string_view method, int code, const penstock::detail::ServerName& server,
                       Duration duration) {
  const double seconds = std::chrono::duration<double>(duration).count();
  Histogram& histogram = Find({method, penstock::detail::NormalCode(code), server.address, server.port});
  const auto bound = std::lower_bound(std::begin(kDurationBuckets), std::end(kDurationBuckets), seconds);
  const auto bucket = static_cast<std::size_t>(std::distance(std::begin(kDurationBuckets), bound));
  histogram.counts[bucket].fetch_add(1, std::memory_order_relaxed);
  histogram.sum.fetch_add(seconds, std::memory_order_relaxed);
}

Durations::Histogram& Durations::Find(const View& view) {
  const auto& [method, code, address, port] = view;
  // A server's durations have no address, and so has what is put together of them.
  constexpr std::string_view kOther = penstock::detail::ClientRoster::kOther;
  const View other(kOther, code, address.empty() ? address : kOther, 0);
  {
    std::shared_lock lock(mutex_);
    auto known = series_.find(view);
    if (known == series_.end() && series_.size() >= kMostSeries) known = series_.find(other);
    if (known != series_.end()) return *known->second;
  }
  std::unique_lock lock(mutex_);
  auto known = series_.find(view);
  if (known == series_.end()) {
    const View& made = series_.size() < kMostSeries ? view : other;
    known = series_.try_emplace(Key(std::get<0>(made), std::get<1>(made), std::get<2>(made), std::get<3>(made))).first;
    if (known->second == nullptr) known->second = std::make_unique<Histogram>();
  }
  return *known->second;
}

void Durations::CollectInto(::prometheus::MetricFamily& family) const {
  std::shared_lock lock(mutex_);
  for (const auto& [key, histogram] : series_) {
    const auto& [method, code, address, port] = key;
    ::prometheus::ClientMetric metric;
    metric.label = {{"rpc_system_name", "grpc"},
                    {"rpc_method", method},
                    {"rpc_response_status_code", std::string(penstock::detail::StatusName(code))}};
    const bool error = address.empty() ? penstock::detail::IsErrorAtServer(code) : penstock::detail::IsErrorAtClient(code);
    if (error) metric.label.push_back({"error_type", std::string(penstock::detail::StatusName(code))});
    if (!address.empty()) metric.label.push_back({"server_address", address});
    if (port != 0) metric.label.push_back({"server_port", std::to_string(port)});
    std::uint64_t count = 0;
    for (std::size_t i = 0; i < histogram->counts.size(); ++i) {
      count += histogram->counts[i].load(std::memory_order_relaxed);
      metric.histogram.bucket.push_back(
          {count, i < kBuckets ? kDurationBuckets[i] : std::numeric_limits<double>::infinity()});
    }
    metric.histogram.sample_count = count;
    metric.histogram.sample_sum = histogram->sum.load(std::memory_order_relaxed);
    family.metric.push_back(std::move(metric));
  }
}

}  // namespace penstock::inline v0::prometheus::detail
