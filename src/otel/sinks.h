#pragma once

// What the providers were asked for, shared by the observers; each may be null.

#include <opentelemetry/logs/logger.h>
#include <opentelemetry/nostd/shared_ptr.h>
#include <opentelemetry/trace/span.h>
#include <opentelemetry/trace/tracer.h>

#include <memory>
#include <string_view>

#include "otel/instruments.h"

namespace penstock::inline v0::otel::detail {

struct Sinks {
  opentelemetry::nostd::shared_ptr<opentelemetry::trace::Tracer> tracer{};
  opentelemetry::nostd::shared_ptr<opentelemetry::logs::Logger> logger{};
  std::shared_ptr<Instruments> instruments{};
};

// "/package.Service/Method" without the slash in front: OpenTelemetry's name for the method, and the span's.
inline std::string_view FullName(std::string_view method) noexcept {
  return method.starts_with('/') ? method.substr(1) : method;
}

}  // namespace penstock::inline v0::otel::detail
