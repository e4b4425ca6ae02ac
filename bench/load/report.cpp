#include "report.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <thread>

#include "bench/about.h"

namespace load {
namespace {

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double MedianOf(const std::map<int, double>& rounds) {
  std::vector<double> values;
  for (const auto& [round, value] : rounds) values.push_back(value);
  return Median(values);
}

bool HigherIsBetter(const std::string& metric) { return metric == "calls_per_second"; }

}  // namespace

void Report::Add(const std::string& pattern, const std::string& metric, const std::string& variant, int round,
                 double value) {
  const Key key{pattern, metric};
  if (!figures_.contains(key)) order_.push_back(key);
  if (std::find(variants_.begin(), variants_.end(), variant) == variants_.end()) variants_.push_back(variant);
  figures_[key][variant][round] = value;
}

Report::Ratio Report::RatioTo(const Rounds& reference, const Rounds& rounds) const {
  std::vector<double> ratios;
  for (const auto& [round, value] : rounds) {
    const auto other = reference.find(round);
    if (other != reference.end() && other->second > 0) ratios.push_back(value / other->second);
  }
  if (ratios.empty()) return {};
  const auto [low, high] = std::minmax_element(ratios.begin(), ratios.end());
  return {Median(ratios), *low, *high};
}

void Report::Print() const {
  std::string pattern;
  for (const Key& key : order_) {
    if (key.pattern != pattern) {
      pattern = key.pattern;
      std::vector<std::string> metrics;
      for (const Key& other : order_) {
        if (other.pattern == pattern) metrics.push_back(other.metric);
      }
      fmt::print("\n{}\n{:<26}", pattern, "");
      for (const auto& metric : metrics) fmt::print(" {:>25}", metric);
      fmt::print("\n");
      for (const auto& variant : variants_) {
        std::string line = fmt::format("{:<26}", variant);
        bool any = false;
        for (const auto& metric : metrics) {
          const Figures& figures = figures_.at({pattern, metric});
          const auto found = figures.find(variant);
          const auto reference = figures.find(reference_);
          if (found == figures.end()) {
            line += fmt::format(" {:>25}", "-");
            continue;
          }
          any = true;
          const double value = MedianOf(found->second);
          const Ratio ratio = reference == figures.end() ? Ratio{} : RatioTo(reference->second, found->second);
          const std::string number = value >= 1000 ? fmt::format("{:.0f}", value) : fmt::format("{:.2f}", value);
          line += found->second.size() > 1
                      ? fmt::format(" {:>25}", fmt::format("{} x{:.2f} ({:.2f}-{:.2f})", number, ratio.median, ratio.low,
                                                           ratio.high))
                      : fmt::format(" {:>25}", fmt::format("{} x{:.2f}", number, ratio.median));
        }
        if (any) fmt::print("{}\n", line);
      }
    }
  }
  fmt::print("\nMedians over the rounds; x is the median ratio to the {}, in brackets the least and the greatest.\n",
             reference_);
}

std::string Report::Json(int rounds) const {
  std::string text = fmt::format("{{\n  \"about\": {},\n  \"rounds\": {}", bench::AboutJson(), rounds);
  for (const Key& key : order_) {
    const Figures& figures = figures_.at(key);
    const auto reference = figures.find(reference_);
    if (reference == figures.end()) continue;
    const auto control = figures.find(reference_ + " again");
    for (const auto& [form, infix] : {std::pair{"penstock callback", ""}, std::pair{"penstock reactor", "reactor."}}) {
      const auto penstock = figures.find(form);
      const bool callback = *infix == '\0';
      if (penstock == figures.end() && !callback) continue;
      text += fmt::format(",\n  \"{}.{}{}\": {{\"raw\": {:.4f}", key.pattern, infix, key.metric,
                          MedianOf(reference->second));
      if (penstock != figures.end()) {
        const Ratio ratio = RatioTo(reference->second, penstock->second);
        text += fmt::format(", \"penstock\": {:.4f}, \"ratio\": {:.4f}, \"ratio_low\": {:.4f}, \"ratio_high\": {:.4f}",
                            MedianOf(penstock->second), ratio.median, ratio.low, ratio.high);
      } else {
        text += ", \"penstock\": null, \"ratio\": null";
      }
      if (control != figures.end()) {
        const Ratio ratio = RatioTo(reference->second, control->second);
        text += fmt::format(", \"control\": {:.4f}, \"control_low\": {:.4f}, \"control_high\": {:.4f}", ratio.median,
                            ratio.low, ratio.high);
      }
      text += fmt::format(", \"better\": \"{}\"", HigherIsBetter(key.metric) ? "higher" : "lower");
      if (callback) {
        text += ", \"variants\": {";
        const char* separator = "";
        for (const auto& [variant, values] : figures) {
          text += fmt::format("{}\"{}\": {{\"value\": {:.4f}, \"ratio\": {:.4f}}}", separator, variant, MedianOf(values),
                              RatioTo(reference->second, values).median);
          separator = ", ";
        }
        text += "}";
      }
      text += "}";
    }
  }
  return text + "\n}\n";
}

}  // namespace load
