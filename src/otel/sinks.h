#pragma once

// What the providers were asked for, shared by the observers; each may be null.

#include <opentelemetry/logs/logger.h>
#include <opentelemetry/nostd/shared_ptr.h>
#include <opentelemetry/trace/span.h>
#include <opentelemetry/trace/tracer.h>

#include <memory>

#include "otel/instruments.h"

namespace penstock::inline v0::otel::detail {

struct Sinks {
  opentelemetry::nostd::shared_ptr<opentelemetry::trace::Tracer> tracer{};
  opentelemetry::nostd::shared_ptr<opentelemetry::logs::Logger> logger{};
  std::shared_ptr<Instruments> instruments{};
};

}  // namespace penstock::inline v0::otel::detail
