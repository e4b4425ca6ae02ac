#pragma once

// What of a call's headers goes on to the calls that are made for it: its trace and its baggage, as far as they are to
// the letter (L10, O3, G1).
//
//     scope = CallScope::Create(deadline, RelayedMetadata(context->client_metadata()));
//
// Threads: pure functions.
// Ownership: values.
// Time: none.
// Errors: what cannot be read is not relayed.

#include <grpcpp/support/string_ref.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/trace_context.h"

namespace penstock::inline v0::detail {

using InboundMetadata = std::multimap<grpc::string_ref, grpc::string_ref>;

// The trace that the headers continue: nothing when `traceparent` is absent, malformed or given twice.
struct InboundTrace {
  TraceParent parent;
  std::string state;  // tracestate, one value; empty when absent or malformed
};
std::optional<InboundTrace> ReadTrace(const InboundMetadata& headers);

// traceparent (in version 00, whatever version came), tracestate and baggage, at most one of each.
std::vector<std::pair<std::string, std::string>> RelayedMetadata(const InboundMetadata& headers);

}  // namespace penstock::inline v0::detail
