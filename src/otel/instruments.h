#pragma once

// The instruments of one meter: two histograms that calls record into, and five that are read at collection.
//
// Threads: every member may be called from any thread. Callbacks run on whatever thread collects, while clients come
// and go; they read the roster and touch no client. Ownership: shared by all Telemetry objects of one meter, so that
// two of them don't overwrite each other's readings: an asynchronous instrument takes the last value observed for an
// attribute set, it does not add up.

#include <opentelemetry/metrics/async_instruments.h>
#include <opentelemetry/metrics/meter.h>
#include <opentelemetry/metrics/meter_provider.h>
#include <opentelemetry/metrics/observer_result.h>
#include <opentelemetry/metrics/sync_instruments.h>
#include <opentelemetry/nostd/shared_ptr.h>
#include <opentelemetry/nostd/unique_ptr.h>

#include <memory>
#include <string_view>
#include <vector>

#include "penstock/core/clock.h"
#include "runtime/client_roster.h"
#include "runtime/name_table.h"

namespace penstock::inline v0::otel::detail {

class Instruments {
 public:
  // The meter is the provider's.
  static std::shared_ptr<Instruments> For(opentelemetry::nostd::shared_ptr<opentelemetry::metrics::MeterProvider> provider,
                                          opentelemetry::nostd::shared_ptr<opentelemetry::metrics::Meter> meter);

  Instruments(opentelemetry::nostd::shared_ptr<opentelemetry::metrics::MeterProvider> provider,
              opentelemetry::nostd::shared_ptr<opentelemetry::metrics::Meter> meter);
  ~Instruments();
  Instruments(const Instruments&) = delete;
  Instruments& operator=(const Instruments&) = delete;

  penstock::detail::ClientRoster& roster() noexcept { return roster_; }

  // The method's name for an attribute.
  std::string_view Named(std::string_view method) { return names_.Find(method); }

  // `method` is what Named() gave.
  void RecordClientCall(std::string_view method, int code, const penstock::detail::ServerName& server,
                        Duration duration) noexcept;
  void RecordServerCall(std::string_view method, int code, Duration duration) noexcept;

 private:
  struct Observable {
    opentelemetry::nostd::shared_ptr<opentelemetry::metrics::ObservableInstrument> instrument;
    opentelemetry::metrics::ObservableCallbackPtr callback;
  };
  using Observer = opentelemetry::metrics::ObserverResultT<std::int64_t>;

  template <void (Instruments::*observe)(Observer&)>
  static void Callback(opentelemetry::metrics::ObserverResult result, void* state) noexcept;

  void ObserveStates(Observer& observer);
  void ObserveTransitions(Observer& observer);
  void ObserveCalls(Observer& observer);
  void ObserveDecisions(Observer& observer);
  void ObserveConnections(Observer& observer);

  // Held: a histogram with a view reads what belongs to the provider (opentelemetry-cpp 1.19).
  const opentelemetry::nostd::shared_ptr<opentelemetry::metrics::MeterProvider> provider_;
  const opentelemetry::nostd::shared_ptr<opentelemetry::metrics::Meter> meter_;
  penstock::detail::ClientRoster roster_;
  penstock::detail::NameTable names_;
  opentelemetry::nostd::unique_ptr<opentelemetry::metrics::Histogram<double>> client_duration_;
  opentelemetry::nostd::unique_ptr<opentelemetry::metrics::Histogram<double>> server_duration_;
  std::vector<Observable> observables_;
};

}  // namespace penstock::inline v0::otel::detail
