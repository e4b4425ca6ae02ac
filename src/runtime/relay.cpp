#include "runtime/relay.h"

#include "runtime/baggage.h"

namespace penstock::inline v0::detail {
namespace {

std::vector<std::string_view> ValuesOf(const InboundMetadata& headers, std::string_view key) {
  std::vector<std::string_view> values;
  const auto [first, last] = headers.equal_range(grpc::string_ref(key.data(), key.size()));
  for (auto header = first; header != last; ++header) values.emplace_back(header->second.data(), header->second.size());
  return values;
}

}  // namespace

std::optional<InboundTrace> ReadTrace(const InboundMetadata& headers) {
  const std::vector<std::string_view> parents = ValuesOf(headers, kTraceparentKey);
  if (parents.size() != 1) return std::nullopt;
  const std::optional<TraceParent> parent = ParseTraceparent(parents.front());
  if (!parent) return std::nullopt;
  return InboundTrace{*parent, CombineTracestate(ValuesOf(headers, kTracestateKey))};
}

std::vector<std::pair<std::string, std::string>> RelayedMetadata(const InboundMetadata& headers) {
  std::vector<std::pair<std::string, std::string>> relayed;
  if (std::optional<InboundTrace> trace = ReadTrace(headers)) {
    relayed.emplace_back(kTraceparentKey, FormatTraceparent(trace->parent));
    if (!trace->state.empty()) relayed.emplace_back(kTracestateKey, std::move(trace->state));
  }
  const std::vector<std::string_view> baggage = ValuesOf(headers, kBaggageKey);
  if (!baggage.empty()) {
    std::string combined = CombineBaggage(baggage);
    if (!combined.empty()) relayed.emplace_back(kBaggageKey, std::move(combined));
  }
  return relayed;
}

}  // namespace penstock::inline v0::detail
