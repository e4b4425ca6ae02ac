#pragma once

// Histograms of call durations by method, code and server, as many as may become series.
//
// Threads: every member may be called from any thread.
// Ownership: the histograms live as long as the table.
// Time: real.
// Errors: none.

#include <prometheus/metric_family.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <tuple>

#include "penstock/core/clock.h"
#include "penstock/telemetry.h"
#include "runtime/client_roster.h"

namespace penstock::inline v0::prometheus::detail {

class Durations {
 public:
  // Series beyond so many are put together under _OTHER: what comes in from outside must not make series without end.
  static constexpr std::size_t kMostSeries = 2000;

  // `method` is "package.Service/Method"; `server` is empty at a server.
  void Record(std::string_view method, int code, const penstock::detail::ServerName& server, Duration duration);

  void CollectInto(::prometheus::MetricFamily& family) const;

 private:
  static constexpr std::size_t kBuckets = std::size(kDurationBuckets);

  struct Histogram {
    // relaxed everywhere: statistics; a scrape may see a call's count before its sum.
    std::array<std::atomic<std::uint64_t>, kBuckets + 1> counts{};  // the last is beyond all bounds
    std::atomic<double> sum{0};
  };
  using Key = std::tuple<std::string, int, std::string, int>;  // method, code, address, port
  using View = std::tuple<std::string_view, int, std::string_view, int>;

  Histogram& Find(const View& view);

  mutable std::shared_mutex mutex_;
  std::map<Key, std::unique_ptr<Histogram>, std::less<>> series_;  // under mutex_
};

}  // namespace penstock::inline v0::prometheus::detail
