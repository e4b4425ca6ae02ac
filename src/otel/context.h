#pragma once

// Between the headers of W3C trace context and OpenTelemetry's span contexts.

#include <opentelemetry/context/context.h>
#include <opentelemetry/nostd/variant.h>
#include <opentelemetry/trace/span_context.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/trace_context.h"

namespace penstock::inline v0::otel::detail {

using Pairs = std::vector<std::pair<std::string, std::string>>;

// The trace that these headers continue; an invalid context when there is none.
opentelemetry::trace::SpanContext SpanContextOf(const Pairs& headers);
opentelemetry::trace::SpanContext SpanContextOf(const penstock::detail::TraceParent& parent, std::string_view tracestate);

// Empty for an invalid context.
std::string TraceparentOf(const opentelemetry::trace::SpanContext& context);
std::string TracestateOf(const opentelemetry::trace::SpanContext& context);

// For StartSpanOptions::parent. A span without a parent is a root: whatever span happens to be active on this thread is
// not its parent.
opentelemetry::nostd::variant<opentelemetry::trace::SpanContext, opentelemetry::context::Context> ParentOrRoot(
    const opentelemetry::trace::SpanContext& parent);

}  // namespace penstock::inline v0::otel::detail
