#include "penstock/faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "penstock/core/detail/split_mix.h"
#include "runtime/baggage.h"
#include "runtime/status_name.h"

namespace penstock::inline v0 {
namespace {

constexpr std::string_view kPointPrefix = "grpc:";
constexpr std::string_view kInjectedPrefix = "injected by penstock.fault at ";

// What stands before the separator; takes both away from `rest`.
std::string_view TakeUntil(std::string_view& rest, char separator) noexcept {
  const std::size_t at = rest.find(separator);
  const std::string_view taken = rest.substr(0, at);
  rest = at == std::string_view::npos ? std::string_view() : rest.substr(at + 1);
  return taken;
}

// Digits alone, at most `highest`.
std::optional<std::uint64_t> WholeNumber(std::string_view text, std::uint64_t highest) noexcept {
  if (text.empty()) return std::nullopt;
  std::uint64_t number = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    const auto digit = static_cast<std::uint64_t>(c - '0');
    if (number > (highest - std::min(highest, digit)) / 10) return std::nullopt;
    number = number * 10 + digit;
  }
  if (number > highest) return std::nullopt;
  return number;
}

std::optional<Duration> Delay(std::string_view text) noexcept {
  std::uint64_t unit = 0;  // milliseconds
  if (text.ends_with("ms")) {
    unit = 1;
    text.remove_suffix(2);
  } else if (text.ends_with('s')) {
    unit = 1000;
    text.remove_suffix(1);
  } else {
    return std::nullopt;
  }
  const auto longest = static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(FaultScenario::kLongestDelay).count());
  const auto number = WholeNumber(text, longest / unit);
  if (!number || *number == 0) return std::nullopt;
  return std::chrono::milliseconds(*number * unit);
}

std::optional<std::uint32_t> Millionths(std::string_view percent) noexcept {
  const bool has_point = percent.find('.') != std::string_view::npos;
  std::string_view decimals = percent;
  const auto whole = WholeNumber(TakeUntil(decimals, '.'), 100);
  if (!whole || decimals.size() > 4) return std::nullopt;
  std::uint64_t millionths = *whole * 10'000;
  if (has_point) {
    const auto part = WholeNumber(decimals, 9999);
    if (!part) return std::nullopt;
    std::uint64_t scaled = *part;
    for (std::size_t i = decimals.size(); i < 4; ++i) scaled *= 10;
    millionths += scaled;
  }
  if (millionths > 1'000'000) return std::nullopt;
  return static_cast<std::uint32_t>(millionths);
}

bool LegalPointName(std::string_view name) noexcept {
  if (!name.starts_with(kPointPrefix)) return false;
  std::string_view method = name.substr(kPointPrefix.size());
  const std::string_view service = TakeUntil(method, '/');
  const auto legal = [](std::string_view part) {
    return !part.empty() && std::all_of(part.begin(), part.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
    });
  };
  return legal(service) && legal(method);
}

bool LegalRun(std::string_view name) noexcept {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
           c == '-';
  });
}

// What came from a peer, for a message: cut, and without what a terminal would obey.
std::string Shown(std::string_view text) {
  std::string shown(text.substr(0, 80));
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return c < 0x20 || c > 0x7e; }, '?');
  if (text.size() > 80) shown += "...";
  return shown;
}

Result<FaultPoint> ParsePoint(std::string_view text) {
  FaultPoint point;
  std::string_view rest = text;
  point.name = TakeUntil(rest, '?');
  if (!LegalPointName(point.name)) {
    return Error(fmt::format("'{}' is no point: expected grpc:<service>/<method>?<settings>", Shown(point.name)));
  }
  std::vector<std::string_view> seen;
  while (!rest.empty()) {
    const std::string_view setting = TakeUntil(rest, '&');
    std::string_view value = setting;
    const bool has_value = setting.find('=') != std::string_view::npos;
    const std::string_view key = TakeUntil(value, '=');
    const auto bad = [&](std::string_view allowed) {
      return Error(fmt::format("'{}' at {}: expected {}", Shown(setting), Shown(point.name), allowed));
    };
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) return bad("each setting once");
    seen.push_back(key);
    if (key == "abort") {
      point.abort = has_value ? detail::StatusNamed(value) : grpc::StatusCode::UNAVAILABLE;
      if (!point.abort || *point.abort == grpc::StatusCode::OK)
        return bad("abort or abort=CODE with a code such as UNAVAILABLE, not OK");
    } else if (key == "delay") {
      const auto delay = Delay(value);
      if (!delay) return bad("delay=<number>ms or delay=<number>s, 1ms to 3600s");
      point.delay = *delay;
    } else if (key == "percent") {
      const auto millionths = Millionths(value);
      if (!millionths) return bad("percent=0 to percent=100, up to four decimals");
      point.millionths = *millionths;
    } else if (key == "count") {
      const auto count = WholeNumber(value, 1'000'000'000);
      if (!count || *count == 0) return bad("count=1 to count=1000000000");
      point.count = *count;
    } else if (key == "run") {
      if (!LegalRun(value)) return bad("run=<up to 64 letters, digits, '_', '.' and '-'>");
    } else {
      return bad("abort, delay, percent, count or run");
    }
  }
  if (text.ends_with('&')) return Error(fmt::format("'{}' ends with '&'", Shown(text)));
  if (!point.abort && point.delay == Duration::zero()) {
    return Error(fmt::format("{} has neither abort nor delay", Shown(point.name)));
  }
  return point;
}

// The baggage member's values that hold a scenario, not decoded: two are one too many.
struct Found {
  std::string_view value;
  int times = 0;
};

Found FindScenario(std::string_view baggage) {
  Found found;
  if (baggage.find(kFaultBaggageKey) == std::string_view::npos) return found;
  detail::ForEachBaggageMember(baggage, [&](const detail::BaggageMember& member) {
    if (member.key != kFaultBaggageKey) return;
    found.value = member.value;
    ++found.times;
  });
  return found;
}

}  // namespace

Result<FaultScenario> FaultScenario::Parse(std::string_view text) {
  if (text.size() > kLongest) return Error(fmt::format("{} characters: expected at most {}", text.size(), kLongest));
  FaultScenario scenario;
  for (std::string_view rest = text;;) {
    const bool more = rest.find('|') != std::string_view::npos;
    auto point = ParsePoint(TakeUntil(rest, '|'));
    if (!point.ok()) return point.error();
    if (scenario.Find(point->name) != nullptr) return Error(fmt::format("{} comes twice", Shown(point->name)));
    if (scenario.points_.size() == kMostPoints) return Error(fmt::format("more than {} points", kMostPoints));
    scenario.points_.push_back(*std::move(point));
    if (!more) return scenario;
  }
}

const FaultPoint* FaultScenario::Find(std::string_view name) const noexcept {
  const auto found =
      std::find_if(points_.begin(), points_.end(), [&](const FaultPoint& point) { return point.name == name; });
  return found == points_.end() ? nullptr : &*found;
}

bool IsInjected(const grpc::Status& status) noexcept {
  return std::string_view(status.error_message()).starts_with(kInjectedPrefix);
}

FaultInjector::FaultInjector(FaultSettings settings)
    : settings_(settings), drawn_(settings.seed != 0 ? settings.seed : std::random_device()()) {}

Fault FaultInjector::Evaluate(std::string_view method, std::string_view baggage) {
  const Found found = FindScenario(baggage);
  if (found.times == 0) return {};
  if (found.times > 1) return Bad("given twice");
  const auto text = detail::PercentDecoded(found.value);
  if (!text) return Bad("malformed percent-encoding");
  const auto scenario = FaultScenario::Parse(*text);
  if (!scenario.ok()) return Bad(scenario.error().message());

  std::string name(kPointPrefix);
  name += method.starts_with('/') ? method.substr(1) : method;
  const FaultPoint* point = scenario->Find(name);
  if (point == nullptr || !Draw(point->millionths)) return {};
  if (point->count != 0 && !TakeOne(*text, *point)) return {};

  Fault fault;
  fault.delay = point->delay;
  if (fault.delay > Duration::zero()) delays_.fetch_add(1, std::memory_order_relaxed);
  if (point->abort) {
    fault.abort = grpc::Status(*point->abort, std::string(kInjectedPrefix) + name);
    aborts_.fetch_add(1, std::memory_order_relaxed);
  }
  return fault;
}

std::string FaultInjector::Forwarded(std::string_view baggage) const {
  if (settings_.forward_scenario || baggage.find(kFaultBaggageKey) == std::string_view::npos)
    return std::string(baggage);
  return detail::WithoutBaggageMember(baggage, kFaultBaggageKey);
}

FaultCounts FaultInjector::counts() const noexcept {
  return {aborts_.load(std::memory_order_relaxed), delays_.load(std::memory_order_relaxed),
          bad_scenarios_.load(std::memory_order_relaxed)};
}

std::string FaultInjector::last_problem() const {
  std::lock_guard lock(mutex_);
  return last_problem_;
}

bool FaultInjector::Draw(std::uint32_t millionths) noexcept {
  if (millionths == 1'000'000) return true;
  // The n-th number, from n alone.
  return detail::SplitMix(drawn_.fetch_add(1, std::memory_order_relaxed) * detail::kSplitMixStep) % 1'000'000 < millionths;
}

bool FaultInjector::TakeOne(std::string_view scenario, const FaultPoint& point) {
  std::string text(scenario);
  text += '\n';  // in no scenario
  text += point.name;
  std::lock_guard lock(mutex_);
  const auto known = by_text_.find(text);
  if (known != by_text_.end()) {
    latest_first_.splice(latest_first_.begin(), latest_first_, known->second);
  } else {
    if (latest_first_.size() == kRememberedScenarios) {
      by_text_.erase(latest_first_.back().first);
      latest_first_.pop_back();
    }
    latest_first_.emplace_front(std::move(text), 0);
    by_text_.emplace(latest_first_.front().first, latest_first_.begin());
  }
  std::uint64_t& taken = latest_first_.front().second;
  if (taken == point.count) return false;
  ++taken;
  return true;
}

Fault FaultInjector::Bad(std::string problem) {
  bad_scenarios_.fetch_add(1, std::memory_order_relaxed);
  std::lock_guard lock(mutex_);
  last_problem_ = std::move(problem);
  return {};
}

}  // namespace penstock::inline v0
