#pragma once

// Observers that record with OpenTelemetry's SDK and export nothing: spans are made and dropped, metrics are kept.
//
// Threads: any. Ownership: shared. Time: none. Errors: none.

#include <memory>

#include "penstock/server/call.h"
#include "penstock/telemetry.h"

namespace load {

std::shared_ptr<penstock::ClientObserver> OtelClientObserver();
std::shared_ptr<penstock::ServerObserver> OtelServerObserver();

}  // namespace load
