#include "otel/context.h"

#include <opentelemetry/trace/span_metadata.h>
#include <opentelemetry/trace/trace_state.h>

#include <algorithm>

#include "penstock/otel/telemetry.h"

namespace penstock::inline v0::otel {

namespace trace = opentelemetry::trace;
namespace nostd = opentelemetry::nostd;

namespace detail {

trace::SpanContext SpanContextOf(const penstock::detail::TraceParent& parent, std::string_view tracestate) {
  auto state = tracestate.empty() ? trace::TraceState::GetDefault()
                                  : trace::TraceState::FromHeader({tracestate.data(), tracestate.size()});
  return trace::SpanContext(trace::TraceId(parent.trace_id), trace::SpanId(parent.span_id),
                            trace::TraceFlags(parent.flags), true, std::move(state));
}

trace::SpanContext SpanContextOf(const Pairs& headers) {
  std::string_view traceparent;
  std::string_view tracestate;
  for (const auto& [key, value] : headers) {
    if (key == penstock::detail::kTraceparentKey) traceparent = value;
    if (key == penstock::detail::kTracestateKey) tracestate = value;
  }
  const auto parent = penstock::detail::ParseTraceparent(traceparent);
  return parent ? SpanContextOf(*parent, tracestate) : trace::SpanContext::GetInvalid();
}

std::string TraceparentOf(const trace::SpanContext& context) {
  if (!context.IsValid()) return {};
  penstock::detail::TraceParent parent;
  std::ranges::copy(context.trace_id().Id(), parent.trace_id.begin());
  std::ranges::copy(context.span_id().Id(), parent.span_id.begin());
  parent.flags = context.trace_flags().flags();
  return penstock::detail::FormatTraceparent(parent);
}

std::string TracestateOf(const trace::SpanContext& context) {
  const auto& state = context.trace_state();
  if (!context.IsValid() || !state || state->Empty()) return {};
  // What a sampler added is checked as what came in is.
  const std::string header = state->ToHeader();
  return penstock::detail::CombineTracestate({header});
}

nostd::variant<trace::SpanContext, opentelemetry::context::Context> ParentOrRoot(const trace::SpanContext& parent) {
  if (parent.IsValid()) return parent;
  return opentelemetry::context::Context(trace::kIsRootSpanKey, true);
}

}  // namespace detail

std::shared_ptr<CallScope> ScopeFor(const trace::SpanContext& span, TimePoint deadline) {
  CallScope::Metadata relayed;
  if (std::string traceparent = detail::TraceparentOf(span); !traceparent.empty()) {
    relayed.emplace_back(penstock::detail::kTraceparentKey, std::move(traceparent));
  }
  if (std::string tracestate = detail::TracestateOf(span); !tracestate.empty()) {
    relayed.emplace_back(penstock::detail::kTracestateKey, std::move(tracestate));
  }
  return CallScope::Create(deadline, std::move(relayed));
}

}  // namespace penstock::inline v0::otel
