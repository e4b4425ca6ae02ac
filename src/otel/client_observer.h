#pragma once

// One client's traces, metrics and log records.

#include <memory>

#include "otel/sinks.h"
#include "penstock/telemetry.h"

namespace penstock::inline v0::otel::detail {

std::shared_ptr<ClientObserver> MakeClientObserver(Sinks sinks);

}  // namespace penstock::inline v0::otel::detail
