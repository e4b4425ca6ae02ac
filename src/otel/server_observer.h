#pragma once

// Spans and durations of a server's calls.

#include <memory>

#include "otel/sinks.h"
#include "penstock/server/call.h"

namespace penstock::inline v0::otel::detail {

std::shared_ptr<ServerObserver> MakeServerObserver(Sinks sinks);

}  // namespace penstock::inline v0::otel::detail
