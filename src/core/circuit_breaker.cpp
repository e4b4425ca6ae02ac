#include "penstock/core/circuit_breaker.h"

#include <fmt/format.h>

#include "core/circuit_core.h"
#include "core/milliseconds.h"

namespace penstock::inline v0 {

void CheckSettings(const CircuitBreakerSettings& settings, std::string_view prefix, std::vector<std::string>& problems) {
  constexpr Duration kLongest = std::chrono::years(100);
  const auto refuse = [&](std::string_view name, const auto& value, std::string_view allowed) {
    problems.push_back(fmt::format("{}{}: {}; expected {}", prefix, name, value, allowed));
  };
  if (settings.consecutive_failures < 1) refuse("consecutive_failures", settings.consecutive_failures, "1 or more");
  // Written so that NaN is refused too.
  if (!(settings.failure_ratio >= 1e-9 && settings.failure_ratio <= 1)) {
    refuse("failure_ratio", settings.failure_ratio, "0.000000001 to 1");
  }
  if (settings.min_results < 1) refuse("min_results", settings.min_results, "1 or more");
  if (settings.window < 1 || settings.window > 1'048'576) refuse("window", settings.window, "1 to 1048576");
  if (settings.consecutive_span < Duration::zero() || settings.consecutive_span > std::chrono::years(1)) {
    refuse("consecutive_span", detail::Milliseconds(settings.consecutive_span), "0 to 1 year");
  }
  if (settings.open_for <= Duration::zero() || settings.open_for > kLongest) {
    refuse("open_for", detail::Milliseconds(settings.open_for), "more than 0 and at most 100 years");
  }
  if (settings.probe_timeout <= Duration::zero() || settings.probe_timeout > kLongest) {
    refuse("probe_timeout", detail::Milliseconds(settings.probe_timeout), "more than 0 and at most 100 years");
  }
  if (settings.probes < 1 || settings.probes > 4096) refuse("probes", settings.probes, "1 to 4096");
  if (settings.successes_to_close < 1 || settings.successes_to_close > 1'000'000) {
    refuse("successes_to_close", settings.successes_to_close, "1 to 1000000");
  }
}

Result<std::unique_ptr<CircuitBreaker>> CircuitBreaker::Create(CircuitBreakerSettings settings) {
  std::vector<std::string> problems;
  CheckSettings(settings, "", problems);
  if (!problems.empty()) return Error(fmt::format("{}", fmt::join(problems, "\n")));
  return std::unique_ptr<CircuitBreaker>(new CircuitBreaker(std::move(settings)));
}

namespace detail {
template class CircuitCore<ProcessAtomics>;
}  // namespace detail

}  // namespace penstock::inline v0
