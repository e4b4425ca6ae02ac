#pragma once

// The figures of a measurement: medians, ratios to each scene's first contender with their spread, a table, JSON, plots.
//
//     Report report;
//     report.Add(scene, "cpu_us", "textbook wrapper", round, 11.7);
//     report.Print();
//
// Threads: one.
// Ownership: the scenes outlive it.
// Time: none.
// Errors: a contender without a figure in a round has no ratio of that round.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "scenes.h"

namespace load {

// What penstock has beside what it is compared with.
struct Cell {
  std::string name;
  std::string measures;
  bool higher_is_better = false;
  double raw = 0;
  double penstock = 0;
  double ratio = 0;  // the median of the rounds' own
  double ratio_low = 0;
  double ratio_high = 0;
};

class Report {
 public:
  void Add(const Scene& scene, const std::string& metric, const std::string& label, int round, double value);
  void AddQuantiles(const Scene& scene, const std::string& label, int round, const std::vector<double>& quantiles_us);
  void Print() const;

  // Those of penstock's forms, in the order of the scenes. A ratio is 0 where the other has nothing.
  std::vector<Cell> Cells() const;
  // Cells() at the top level, with the control's ratios and what all contenders had; "about" tells of machine and build.
  std::string Json(int rounds) const;

  // The median of the rounds, where there is one.
  std::optional<double> Value(const std::string& scene, const std::string& metric, const std::string& label) const;
  // The medians of kQuantiles.
  std::vector<double> Quantiles(const std::string& scene, const std::string& label) const;

 private:
  using Rounds = std::map<int, double>;
  using Figures = std::map<std::string, Rounds>;  // by label
  struct Key {
    const Scene* scene;
    std::string metric;
    auto operator<=>(const Key&) const = default;
  };
  struct Ratio {
    double median = 0;
    double low = 0;
    double high = 0;
  };

  static Ratio RatioTo(const Rounds& reference, const Rounds& rounds);
  const Rounds* Find(const Key& key, const std::string& label) const;

  std::vector<Key> order_;
  std::map<Key, Figures> figures_;
  std::map<std::pair<std::string, std::string>, std::map<int, std::vector<double>>> quantiles_;
};

// What a metric is, for people.
std::string Measures(const std::string& metric);

// Plots of what was measured, as SVG, in this folder: latency distributions, throughput over outstanding, cost over threads.
// False, with a line on stderr, without gnuplot.
bool Plot(const Report& report, const std::string& folder);

// A check that a later measurement is not worse than the reference: ratios, instructions and allocations, never times.
// Prints what is worse. The reference file is JSON as ReferenceJson() gives it.
std::string ReferenceJson(const std::vector<Cell>& cells);
bool WithinReference(const std::vector<Cell>& cells, const std::string& reference_file);

}  // namespace load
