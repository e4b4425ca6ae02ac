#include "penstock/otel/telemetry.h"

#include <opentelemetry/logs/logger.h>
#include <opentelemetry/metrics/meter.h>
#include <opentelemetry/trace/tracer.h>

#include <utility>

#include "otel/client_observer.h"
#include "otel/server_observer.h"

namespace penstock::inline v0::otel {
namespace {

constexpr char kScope[] = "penstock";

class SharedTelemetry final : public Telemetry {
 public:
  explicit SharedTelemetry(detail::Sinks sinks) : sinks_(std::move(sinks)) {}

  std::shared_ptr<ClientObserver> ForClient() override { return detail::MakeClientObserver(sinks_); }
  std::shared_ptr<ServerObserver> ForServer() override { return detail::MakeServerObserver(sinks_); }

 private:
  const detail::Sinks sinks_;
};

}  // namespace

std::shared_ptr<Telemetry> Telemetry::Create(const Providers& providers) {
  detail::Sinks sinks;
  if (providers.tracer) sinks.tracer = providers.tracer->GetTracer(kScope, PENSTOCK_VERSION);
  if (providers.logger) sinks.logger = providers.logger->GetLogger(kScope, kScope, PENSTOCK_VERSION);
  if (providers.meter) {
    if (auto meter = providers.meter->GetMeter(kScope, PENSTOCK_VERSION))
      sinks.instruments = detail::Instruments::For(providers.meter, meter);
  }
  return std::make_shared<SharedTelemetry>(std::move(sinks));
}

}  // namespace penstock::inline v0::otel
