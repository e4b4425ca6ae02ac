// bench_micro: what the breaker, the budget and the timers cost, beside their textbook forms and the machine's floor.
//
//   --json FILE      write the medians, ratios and targets to FILE
//   --short          fewer and shorter repetitions, 1 and 2 threads: about ten seconds
//   --tiny           one very short repetition of each, for the tests
//   --instructions   count instructions an operation with callgrind (valgrind must be installed) instead of measuring
//   --only NAME      only this workload; may be given several times
//   --list           names and what they measure
//
// An operation's time is wall time times the cores in use (the fewer of threads and cores) divided by operations: what it
// takes of one core. Repetitions of all workloads and thread counts are interleaved at random; the median is what counts,
// the spread beside it is half the distance from the first to the third quartile.
//
// The JSON file: {"machine": {...}, "benchmarks": {NAME: {"what": ..., "ns": {THREADS: median, ...}, "spread_ns": {...}}},
// "ratios": [{"name": ..., "value": ..., "limit": ..., "met": ...}], "instructions": {NAME: number}} (the last one with
// --instructions).

#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bench/about.h"
#include "bench/micro/workloads.h"

namespace {

using bench::Workload;

struct Options {
  std::string json;
  bool brief = false;
  bool tiny = false;
  bool instructions = false;
  std::vector<std::string> only;
  std::string loop;  // what --instructions runs under callgrind
  std::uint64_t count = 0;
};

struct Figure {
  double median = 0;
  double spread = 0;
};
using Figures = std::map<std::string, std::map<int, Figure>>;

int Cores() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

// Keeps the time of each repetition; prints nothing.
class Collector final : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }

  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.run_type != Run::RT_Iteration || run.error_occurred || run.iterations == 0) continue;
      // iterations is the sum over the threads, real_accumulated_time the mean of their wall times.
      const double seconds = run.real_accumulated_time * std::min<double>(static_cast<double>(run.threads), Cores());
      times_[run.run_name.function_name][static_cast<int>(run.threads)].push_back(seconds * 1e9 /
                                                                                  static_cast<double>(run.iterations));
    }
  }

  Figures Medians() {
    Figures figures;
    for (auto& [name, by_threads] : times_) {
      for (auto& [threads, times] : by_threads) {
        std::sort(times.begin(), times.end());
        const auto at = [&times = times](double share) {
          return times[static_cast<std::size_t>(share * static_cast<double>(times.size() - 1) + 0.5)];
        };
        figures[name][threads] = {at(0.5), (at(0.75) - at(0.25)) / 2};
      }
    }
    return figures;
  }

 private:
  std::map<std::string, std::map<int, std::vector<double>>> times_;
};

Figures Measure(const std::vector<Workload>& workloads, const Options& options, const std::vector<int>& thread_counts) {
  for (const Workload& workload : workloads) {
    auto* registered = benchmark::RegisterBenchmark(workload.name.c_str(), [&workload](benchmark::State& state) {
      // In batches: the loop of the framework would cost as much as what is measured.
      constexpr std::uint64_t kBatch = 4096;
      while (state.KeepRunningBatch(kBatch)) workload.run(kBatch);
    });
    for (int threads : thread_counts) registered->Threads(threads);
    registered->UseRealTime();
  }
  std::vector<std::string> arguments{"bench_micro", "--benchmark_enable_random_interleaving=true",
                                     options.tiny    ? "--benchmark_repetitions=1"
                                     : options.brief ? "--benchmark_repetitions=9"
                                                     : "--benchmark_repetitions=21",
                                     options.tiny    ? "--benchmark_min_time=0.0001"
                                     : options.brief ? "--benchmark_min_time=0.01"
                                                     : "--benchmark_min_time=0.04"};
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  int count = static_cast<int>(pointers.size());
  benchmark::Initialize(&count, pointers.data());
  Collector collector;
  benchmark::RunSpecifiedBenchmarks(&collector);
  return collector.Medians();
}

struct Ratio {
  std::string name;
  std::string over;
  int threads;
  std::string base;
  int base_threads;
  double limit;
  double value = 0;
};

std::vector<Ratio> Ratios(const Figures& figures) {
  std::vector<Ratio> ratios{
      {"breaker_success at 1 thread / floor_owned_store", "breaker_success", 1, "floor_owned_store", 1, 5},
      {"breaker_success at 2 threads / floor_owned_store", "breaker_success", 2, "floor_owned_store", 2, 5},
      {"breaker_success at 2 threads / at 1", "breaker_success", 2, "breaker_success", 1, 1.15},
      {"breaker_success / breaker_success_mutex at 1 thread", "breaker_success", 1, "breaker_success_mutex", 1, 1.0 / 15},
      {"breaker_success / breaker_success_mutex at 2 threads", "breaker_success", 2, "breaker_success_mutex", 2, 1.0 / 100},
      {"breaker_reject / breaker_reject_mutex at 2 threads", "breaker_reject", 2, "breaker_reject_mutex", 2, 1.0 / 20},
      {"budget_full / floor_owned_store", "budget_full", 1, "floor_owned_store", 1, 2},
  };
  std::erase_if(ratios, [&](Ratio& ratio) {
    const auto find = [&](const std::string& name, int threads) -> std::optional<double> {
      const auto benchmark = figures.find(name);
      if (benchmark == figures.end() || !benchmark->second.contains(threads)) return std::nullopt;
      return benchmark->second.at(threads).median;
    };
    const auto over = find(ratio.over, ratio.threads);
    const auto base = find(ratio.base, ratio.base_threads);
    if (!over || !base || *base == 0) return true;
    ratio.value = *over / *base;
    return false;
  });
  return ratios;
}

void Print(const std::vector<Workload>& workloads, const Figures& figures, const std::vector<int>& thread_counts) {
  fmt::print("ns an operation, of one core; median ± half the distance between the quartiles\n\n{:<23}", "");
  for (int threads : thread_counts) fmt::print("{:>17}", fmt::format("{} thread{}", threads, threads == 1 ? "" : "s"));
  fmt::print("  one operation\n");
  for (const Workload& workload : workloads) {
    fmt::print("{:<23}", workload.name);
    for (int threads : thread_counts) {
      const Figure& figure = figures.at(workload.name).at(threads);
      fmt::print("{:>17}", fmt::format("{:.2f} ±{:.2f}", figure.median, figure.spread));
    }
    fmt::print("  {}\n", workload.what);
  }
  const auto ratios = Ratios(figures);
  if (!ratios.empty()) fmt::print("\n{:<56}{:>9}{:>9}\n", "", "ratio", "at most");
  for (const Ratio& ratio : ratios) {
    fmt::print("{:<56}{:>9.4f}{:>9.4f}  {}\n", ratio.name, ratio.value, ratio.limit,
               ratio.value <= ratio.limit ? "met" : "MISSED");
  }
}

// Instructions of `count` operations, the program's start included.
std::optional<std::uint64_t> CallgrindTotal(const std::string& name, std::uint64_t count) {
  std::array<char, 4096> self{};
  const ssize_t length = readlink("/proc/self/exe", self.data(), self.size() - 1);
  if (length <= 0) return std::nullopt;
  const std::string command =
      fmt::format("valgrind --tool=callgrind --callgrind-out-file=/dev/null '{}' --loop {} --count {} 2>&1 </dev/null",
                  self.data(), name, count);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  if (pipe == nullptr) return std::nullopt;
  std::optional<std::uint64_t> total;
  std::array<char, 512> line{};
  while (std::fgets(line.data(), line.size(), pipe.get()) != nullptr) {
    const std::string text = line.data();
    const auto found = text.find("Collected :");
    if (found != std::string::npos) total = std::strtoull(text.c_str() + found + 11, nullptr, 10);
  }
  return total;
}

int CountInstructions(const std::vector<Workload>& workloads, std::map<std::string, double>& instructions) {
  constexpr std::uint64_t kFew = 4096;
  constexpr std::uint64_t kMany = 5 * kFew;
  fmt::print("instructions an operation (callgrind, one thread)\n\n");
  for (const Workload& workload : workloads) {
    // The difference of two runs: what the program's start costs falls out.
    const auto few = CallgrindTotal(workload.name, kFew);
    const auto many = CallgrindTotal(workload.name, kMany);
    if (!few || !many) {
      fmt::print(stderr, "callgrind did not run: install the package valgrind\n");
      return 1;
    }
    instructions[workload.name] = static_cast<double>(*many - *few) / static_cast<double>(kMany - kFew);
    fmt::print("{:<23}{:>8.1f}\n", workload.name, instructions[workload.name]);
  }
  return 0;
}

bool WriteJson(const std::string& path, const std::vector<Workload>& workloads, const Figures& figures,
               const std::map<std::string, double>& instructions) {
  std::string text = fmt::format("{{\n  \"machine\": {},\n  \"benchmarks\": {{", bench::AboutJson());
  const char* separator = "\n";
  for (const Workload& workload : workloads) {
    const auto found = figures.find(workload.name);
    if (found == figures.end()) continue;
    std::string medians, spreads;
    for (const auto& [threads, figure] : found->second) {
      medians += fmt::format("{}\"{}\": {:.4f}", medians.empty() ? "" : ", ", threads, figure.median);
      spreads += fmt::format("{}\"{}\": {:.4f}", spreads.empty() ? "" : ", ", threads, figure.spread);
    }
    text += fmt::format("{}    \"{}\": {{\"what\": \"{}\", \"ns\": {{{}}}, \"spread_ns\": {{{}}}}}", separator,
                        workload.name, workload.what, medians, spreads);
    separator = ",\n";
  }
  text += "\n  },\n  \"ratios\": [";
  separator = "\n";
  for (const Ratio& ratio : Ratios(figures)) {
    text += fmt::format("{}    {{\"name\": \"{}\", \"value\": {:.5f}, \"limit\": {:.5f}, \"met\": {}}}", separator, ratio.name,
                        ratio.value, ratio.limit, ratio.value <= ratio.limit);
    separator = ",\n";
  }
  text += "\n  ],\n  \"instructions\": {";
  separator = "";
  for (const auto& [name, count] : instructions) {
    text += fmt::format("{}\"{}\": {:.1f}", separator, name, count);
    separator = ", ";
  }
  text += "}\n}\n";
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) fmt::print(stderr, "cannot write {}\n", path);
  return static_cast<bool>(file);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"What the circuit breaker, the retry budget and the timers cost, beside their textbook forms and the machine's floor."};
  bool list = false;
  app.add_option("--json", options.json, "Write the results to this file");
  app.add_flag("--short", options.brief, "Fewer and shorter repetitions, 1 and 2 threads");
  app.add_flag("--tiny", options.tiny, "One very short repetition of each");
  app.add_flag("--instructions", options.instructions, "Count instructions with callgrind instead");
  app.add_option("--only", options.only, "Only this workload; may be given several times");
  app.add_flag("--list", list, "Names and what they measure");
  app.add_option("--loop", options.loop, "")->group("");
  app.add_option("--count", options.count, "")->group("");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }

  std::vector<Workload> workloads = bench::Workloads();
  for (const std::string& name : options.only) {
    if (std::none_of(workloads.begin(), workloads.end(), [&](const Workload& workload) { return workload.name == name; })) {
      fmt::print(stderr, "--only {}: there is no such workload; --list shows them\n", name);
      return 2;
    }
  }
  if (!options.only.empty()) {
    std::erase_if(workloads, [&](const Workload& workload) {
      return std::find(options.only.begin(), options.only.end(), workload.name) == options.only.end();
    });
  }
  if (list) {
    for (const Workload& workload : workloads) fmt::print("{:<23} {}\n", workload.name, workload.what);
    return 0;
  }
  if (!options.loop.empty()) {
    for (const Workload& workload : workloads) {
      if (workload.name == options.loop) workload.run(options.count);
    }
    return 0;
  }

  Figures figures;
  std::map<std::string, double> instructions;
  if (options.instructions) {
    if (const int code = CountInstructions(workloads, instructions); code != 0) return code;
  } else {
    const std::vector<int> thread_counts = options.brief || options.tiny ? std::vector<int>{1, 2} : std::vector<int>{1, 2, 4, 8};
    figures = Measure(workloads, options, thread_counts);
    Print(workloads, figures, thread_counts);
  }
  if (!options.json.empty() && !WriteJson(options.json, workloads, figures, instructions)) return 1;
  return 0;
}
