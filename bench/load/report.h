#pragma once

// The figures of a measurement: medians, ratios to the first variant with their spread, a table and JSON.
//
//     Report report("raw reactor");
//     report.Add("loopback_64", "cpu_us", "textbook wrapper", round, 11.7);
//     report.Print();
//
// Threads: one.
// Ownership: a plain value.
// Time: none.
// Errors: a variant without a figure in a round has no ratio of that round.

#include <map>
#include <string>
#include <vector>

namespace load {

class Report {
 public:
  explicit Report(std::string reference) : reference_(std::move(reference)) {}

  void Add(const std::string& pattern, const std::string& metric, const std::string& variant, int round, double value);
  void Print() const;
  // Cells at the top level, each "<pattern>.<metric>" for penstock's callback form and "<pattern>.reactor.<metric>" for
  // its reactor form; "about" tells of the machine and the build.
  std::string Json(int rounds) const;

 private:
  struct Key {
    std::string pattern;
    std::string metric;
    auto operator<=>(const Key&) const = default;
  };
  struct Ratio {
    double median = 0;
    double low = 0;
    double high = 0;
  };
  using Rounds = std::map<int, double>;
  using Figures = std::map<std::string, Rounds>;  // by variant

  Ratio RatioTo(const Rounds& reference, const Rounds& rounds) const;

  std::string reference_;
  std::vector<Key> order_;
  std::map<Key, Figures> figures_;
  std::vector<std::string> variants_;
};

}  // namespace load
