#include "report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "bench/about.h"
#include "child.h"

namespace load {
namespace {

struct Metric {
  const char* name;
  const char* measures;
  bool higher_is_better;
};

constexpr Metric kMetrics[] = {
    {"calls_per_second", "calls or messages a second", true},
    {"cpu_us", "CPU time of the client's process a call, us", false},
    {"instructions", "instructions in user space a call, counted by callgrind", false},
    {"allocations", "allocations of the client's process a call", false},
    {"p50_us", "median latency, us", false},
    {"p99_us", "99th percentile of the latency, us", false},
    {"server_cpu_us", "CPU time of the server's process a call, us", false},
    {"server_allocations", "allocations of the server's process a call", false},
    {"first_call_us", "from nothing to the first answer of a new client in a process that has others, us", false},
    {"heap_bytes", "heap of the client's process, bytes each", false},
    {"server_heap_bytes", "heap of the server's process, bytes each", false},
};

const Metric& MetricOf(const std::string& name) {
  for (const Metric& metric : kMetrics) {
    if (name == metric.name) return metric;
  }
  return kMetrics[0];
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double MedianOf(const std::map<int, double>& rounds) {
  std::vector<double> values;
  for (const auto& [round, value] : rounds) values.push_back(value);
  return Median(std::move(values));
}

std::string Number(double value) { return value >= 1000 ? fmt::format("{:.0f}", value) : fmt::format("{:.2f}", value); }

}  // namespace

std::string Measures(const std::string& metric) { return MetricOf(metric).measures; }

void Report::Add(const Scene& scene, const std::string& metric, const std::string& label, int round, double value) {
  const Key key{&scene, metric};
  if (!figures_.contains(key)) order_.push_back(key);
  figures_[key][label][round] = value;
}

void Report::AddQuantiles(const Scene& scene, const std::string& label, int round, const std::vector<double>& quantiles_us) {
  quantiles_[{scene.name, label}][round] = quantiles_us;
}

Report::Ratio Report::RatioTo(const Rounds& reference, const Rounds& rounds) {
  std::vector<double> ratios;
  for (const auto& [round, value] : rounds) {
    const auto other = reference.find(round);
    if (other != reference.end() && other->second > 0) ratios.push_back(value / other->second);
  }
  if (ratios.empty()) return {};
  const auto [low, high] = std::minmax_element(ratios.begin(), ratios.end());
  return {Median(ratios), *low, *high};
}

const Report::Rounds* Report::Find(const Key& key, const std::string& label) const {
  const auto figures = figures_.find(key);
  if (figures == figures_.end()) return nullptr;
  const auto found = figures->second.find(label);
  return found == figures->second.end() ? nullptr : &found->second;
}

std::optional<double> Report::Value(const std::string& scene, const std::string& metric, const std::string& label) const {
  for (const Key& key : order_) {
    if (key.scene->name != scene || key.metric != metric) continue;
    if (const Rounds* rounds = Find(key, label)) return MedianOf(*rounds);
  }
  return std::nullopt;
}

std::vector<double> Report::Quantiles(const std::string& scene, const std::string& label) const {
  const auto found = quantiles_.find({scene, label});
  std::vector<double> medians;
  if (found == quantiles_.end()) return medians;
  for (std::size_t i = 0; i < std::size(kQuantiles); ++i) {
    std::vector<double> values;
    for (const auto& [round, quantiles] : found->second) {
      if (i < quantiles.size()) values.push_back(quantiles[i]);
    }
    medians.push_back(Median(std::move(values)));
  }
  return medians;
}

void Report::Print() const {
  for (const Scene& scene : Scenes()) {
    std::vector<Key> keys;
    for (const Metric& metric : kMetrics) {
      if (const Key key{&scene, metric.name}; figures_.contains(key)) keys.push_back(key);
    }
    if (keys.empty()) continue;
    fmt::print("\n{}: {}\n{:<30}", scene.name, scene.what, "");
    for (const Key& key : keys) fmt::print(" {:>27}", key.metric);
    fmt::print("\n");
    const std::string& first = scene.contenders.front().label;
    for (const Contender& contender : scene.contenders) {
      std::string line = fmt::format("{:<30}", contender.label);
      bool any = false;
      for (const Key& key : keys) {
        const Rounds* rounds = Find(key, contender.label);
        std::string text = "-";
        if (rounds != nullptr) {
          any = true;
          const Rounds* reference = Find(key, first);
          const Ratio ratio = reference == nullptr ? Ratio{} : RatioTo(*reference, *rounds);
          text = fmt::format("{} x{:.2f}", Number(MedianOf(*rounds)), ratio.median);
          if (rounds->size() > 1) text += fmt::format(" ({:.2f}-{:.2f})", ratio.low, ratio.high);
        }
        line += fmt::format(" {:>27}", text);
      }
      if (any) fmt::print("{}\n", line);
    }
  }
  fmt::print("\nMedians over the rounds; x is the median ratio to the first of each table, in brackets the least and the "
             "greatest. The one called 'again' is the first once more: the noise.\n");
}

std::vector<Cell> Report::Cells() const {
  std::vector<Cell> cells;
  for (const Key& key : order_) {
    const Rounds* reference = Find(key, key.scene->contenders.front().label);
    if (reference == nullptr) continue;
    for (const Form& form : key.scene->forms) {
      const Rounds* penstock = Find(key, form.label);
      if (penstock == nullptr) continue;
      const Ratio ratio = RatioTo(*reference, *penstock);
      cells.push_back({.name = fmt::format("{}.{}{}", key.scene->name, form.infix, key.metric),
                       .measures = fmt::format("{}: {}", key.scene->what, MetricOf(key.metric).measures),
                       .higher_is_better = MetricOf(key.metric).higher_is_better,
                       .raw = MedianOf(*reference),
                       .penstock = MedianOf(*penstock),
                       .ratio = ratio.median,
                       .ratio_low = ratio.low,
                       .ratio_high = ratio.high});
    }
  }
  return cells;
}

std::string Report::Json(int rounds) const {
  std::string text = fmt::format("{{\n  \"about\": {},\n  \"rounds\": {}", bench::AboutJson(), rounds);
  const std::vector<Cell> cells = Cells();
  for (const Key& key : order_) {
    const Rounds* reference = Find(key, key.scene->contenders.front().label);
    if (reference == nullptr) continue;
    for (const Form& form : key.scene->forms) {
      const std::string name = fmt::format("{}.{}{}", key.scene->name, form.infix, key.metric);
      const auto cell = std::find_if(cells.begin(), cells.end(), [&](const Cell& one) { return one.name == name; });
      if (cell == cells.end()) continue;
      text += fmt::format(
          ",\n  \"{}\": {{\"raw\": {:.4f}, \"penstock\": {:.4f}, \"ratio\": {:.4f}, \"ratio_low\": {:.4f}, \"ratio_high\": {:.4f}",
          name, cell->raw, cell->penstock, cell->ratio, cell->ratio_low, cell->ratio_high);
      if (const Rounds* control = Find(key, key.scene->control)) {
        const Ratio ratio = RatioTo(*reference, *control);
        text += fmt::format(", \"control\": {:.4f}, \"control_low\": {:.4f}, \"control_high\": {:.4f}", ratio.median,
                            ratio.low, ratio.high);
      }
      text += fmt::format(", \"better\": \"{}\", \"measures\": \"{}\"", cell->higher_is_better ? "higher" : "lower",
                          cell->measures);
      if (&form == &key.scene->forms.front()) {
        text += ", \"all\": {";
        const char* separator = "";
        for (const auto& [label, values] : figures_.at(key)) {
          text += fmt::format("{}\"{}\": {{\"value\": {:.4f}, \"ratio\": {:.4f}}}", separator, label, MedianOf(values),
                              RatioTo(*reference, values).median);
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
