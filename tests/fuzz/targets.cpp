#include "fuzz/targets.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "penstock/faults.h"
#include "runtime/address.h"
#include "runtime/baggage.h"
#include "runtime/metadata.h"
#include "runtime/pushback.h"
#include "runtime/trace_context.h"
#include "support/percent.h"

namespace penstock::test {
namespace {

using namespace penstock::detail;

void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

void TraceContext(std::string_view input) {
  if (const auto parent = ParseTraceparent(input)) {
    const std::string text = FormatTraceparent(*parent);
    Require(text.size() == 55, "a traceparent has 55 characters");
    Require(ParseTraceparent(text) == parent, "a traceparent that is written reads the same");
  }
  const std::string state = CombineTracestate({input});
  Require(state.size() <= kLongestTracestate, "a tracestate is no longer than its limit");
  Require(LegalMetadataValue(kTracestateKey, state), "a tracestate can be sent");
  Require(CombineTracestate({state}) == state, "a tracestate that was combined stays as it is");
}

void Baggage(std::string_view input) {
  const std::string combined = CombineBaggage({input});
  Require(combined.size() <= kLongestBaggage, "baggage is no longer than its limit");
  Require(LegalMetadataValue(kBaggageKey, combined), "baggage can be sent");
  Require(CombineBaggage({combined}) == combined, "baggage that was combined stays as it is");
  std::size_t members = 0;
  ForEachBaggageMember(combined, [&](const BaggageMember& member) {
    ++members;
    Require(input.find(member.text) != std::string_view::npos, "a member passes as it came");
    ForEachBaggageMember(WithoutBaggageMember(combined, member.key), [&](const BaggageMember& other) {
      Require(other.key != member.key, "a key that was taken out is gone");
    });
  });
  Require(members <= kMostBaggageMembers, "baggage has no more members than its limit");
  Require(PercentDecoded(PercentEncoded(input)) == std::string(input), "what was encoded decodes to the same");
  PercentDecoded(input);
}

void FaultScenarios(std::string_view input) {
  const auto scenario = FaultScenario::Parse(input);
  if (scenario.ok()) {
    Require(!scenario->points().empty() && scenario->points().size() <= FaultScenario::kMostPoints,
            "a scenario has points");
    for (const FaultPoint& point : scenario->points()) {
      Require(point.abort.has_value() || point.delay > Duration::zero(), "a point does something");
      Require(point.delay >= Duration::zero() && point.delay <= FaultScenario::kLongestDelay,
              "a delay is within its bounds");
      Require(point.millionths <= 1'000'000, "a percentage is within its bounds");
      Require(scenario->Find(point.name) == &point, "a point is found by its name");
    }
  } else {
    Require(!scenario.error().message().empty() && scenario.error().message().size() < 400,
            "an error says why, and not too much");
  }
  FaultInjector injector;
  const std::string baggage = "penstock.fault=" + PercentEncoded(input);
  const Fault fault = injector.Evaluate("/a/b", baggage);
  Require(scenario.ok() || (!fault.any() && injector.counts().bad_scenarios == 1),
          "a bad scenario strikes nothing and is counted");
  Require(injector.Forwarded(baggage).empty(), "a scenario is taken out");
  injector.Evaluate("/a/b", input);
}

void Pushbacks(std::string_view input) {
  const Pushback pushback = ParsePushback(input);
  Require(pushback.after >= Duration::zero(), "a pushback is not negative");
  Require(pushback.kind == Pushback::Kind::kAfter || pushback.after == Duration::zero(), "only a wait has a length");
}

void Addresses(std::string_view input) {
  for (const AddressUse use : {AddressUse::kConnect, AddressUse::kListen}) {
    const auto address = ParseAddress(input, use);
    std::vector<std::string> problems;
    CheckAddress("address", input, use, problems);
    Require(problems.empty() == address.ok(), "the check agrees with the parser");
    if (!address.ok()) {
      Require(!address.error().message().empty(), "a refused address has a reason");
      continue;
    }
    Require(address->text == input, "an address is kept as it was given");
    Require(use == AddressUse::kListen || (address->port != 0 && !address->host.empty()),
            "one connects to a host and a port");
    const std::string target = use == AddressUse::kConnect ? TargetOf(*address) : ListeningTargetOf(*address);
    for (const char c : target) Require(c > 0x20 && c < 0x7f, "a target has printable characters alone");
  }
  std::vector<std::string> problems;
  CheckUnixPath("unix_socket", input, problems);
  CheckAuthority("authority", input, problems);
}

}  // namespace

const std::vector<FuzzTarget>& FuzzTargets() {
  static const std::vector<FuzzTarget> targets = {
      {"trace_context",
       TraceContext,
       {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
        "fw529a3039@dt=FfVkL, 1t@a=x y"}},
      {"baggage", Baggage, {"a=b+c,d=%3D;p=1;q, e = x:y", "k=v;p=\"1\",(a)=2"}},
      {"faults",
       FaultScenarios,
       {"grpc:a/b?abort=UNAVAILABLE&percent=12.5&count=3&run=x|grpc:c/d?delay=250ms", "grpc:a/b?delay=1e309",
        "grpc:a/b?abort&percent=NaN"}},
      {"pushback", Pushbacks, {"0", "500", "-1", "9223372036854775807", "9223372036854775808", "007", " 5"}},
      {"address", Addresses, {"ledger:9090", "[::1]:443", "127.0.0.1:1", ":0", "dns:///x:1", "x:http", "a%25b:1"}},
  };
  return targets;
}

}  // namespace penstock::test
