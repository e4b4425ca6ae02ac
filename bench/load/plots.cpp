#include <fmt/format.h>
#include <fmt/ostream.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "child.h"
#include "report.h"

namespace load {
namespace {

struct Series {
  std::string title;
  std::vector<std::pair<double, double>> points;
};

class Plotter {
 public:
  explicit Plotter(std::filesystem::path folder) : folder_(std::move(folder)) {}

  // One SVG; nothing where there are no points.
  bool Draw(const std::string& name, const std::string& settings, const std::vector<Series>& series) {
    std::ostringstream script;
    fmt::print(script, "set terminal svg size 900,520 background '#ffffff'\nset output '{}'\nset key outside right\nset grid\n{}",
               (folder_ / (name + ".svg")).string(), settings);
    std::string plots;
    for (std::size_t i = 0; i < series.size(); ++i) {
      if (series[i].points.empty()) continue;
      fmt::print(script, "$data{} << END\n", i);
      for (const auto& [x, y] : series[i].points) fmt::print(script, "{} {}\n", x, y);
      fmt::print(script, "END\n");
      plots += fmt::format("{}$data{} using 1:2 with linespoints title \"{}\"", plots.empty() ? "plot " : ", ", i, series[i].title);
    }
    if (plots.empty()) return true;
    script << plots << "\n";
    FILE* gnuplot = popen("gnuplot", "w");
    if (gnuplot == nullptr) return false;
    const std::string text = script.str();
    std::fwrite(text.data(), 1, text.size(), gnuplot);
    return pclose(gnuplot) == 0;
  }

 private:
  std::filesystem::path folder_;
};

const Scene* FindScene(const std::string& name) {
  for (const Scene& scene : Scenes()) {
    if (scene.name == name) return &scene;
  }
  return nullptr;
}

// A metric over scenes that differ in one number.
std::vector<Series> Over(const Report& report, const std::vector<std::pair<double, std::string>>& scenes,
                         const std::string& metric) {
  std::vector<Series> all;
  const Scene* first = FindScene(scenes.front().second);
  for (const Contender& contender : first->contenders) {
    Series series{.title = contender.label, .points = {}};
    for (const auto& [x, scene] : scenes) {
      if (const auto value = report.Value(scene, metric, contender.label)) series.points.emplace_back(x, *value);
    }
    if (series.points.size() > 1) all.push_back(std::move(series));
  }
  return all;
}

}  // namespace

bool Plot(const Report& report, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  Plotter plotter(folder);
  bool ok = true;
  for (const char* scene : {"loopback_sequential", "loopback_64", "loopback_512", "in_process_64", "bidi_64"}) {
    std::vector<Series> all;
    for (const Contender& contender : FindScene(scene)->contenders) {
      const std::vector<double> quantiles = report.Quantiles(scene, contender.label);
      Series series{.title = contender.label, .points = {}};
      // The further to the right, the rarer: 1 / (1 - quantile).
      for (std::size_t i = 0; i < quantiles.size(); ++i) series.points.emplace_back(1 / (1 - kQuantiles[i]), quantiles[i]);
      all.push_back(std::move(series));
    }
    ok &= plotter.Draw(fmt::format("latency_{}", scene),
                       fmt::format("set title \"Latency, {}\"\nset logscale x\nset xlabel \"quantile\"\nset ylabel \"us\"\n"
                                   "set xtics ('50%%' 2, '90%%' 10, '99%%' 100, '99.9%%' 1000)\n",
                                   FindScene(scene)->what),
                       all);
  }
  ok &= plotter.Draw("throughput",
                     "set title \"Unary calls a second over calls outstanding\"\nset logscale x 2\nset xlabel \"outstanding\"\n"
                     "set ylabel \"calls a second\"\nset yrange [0:*]\n",
                     Over(report, {{1, "loopback_1"}, {8, "loopback_8"}, {64, "loopback_64"}, {512, "loopback_512"}},
                          "calls_per_second"));
  ok &= plotter.Draw("cost_over_threads",
                     "set title \"Client's CPU a call over threads that wait for each\"\nset logscale x 2\nset xlabel \"threads\"\n"
                     "set ylabel \"us\"\nset yrange [0:*]\n",
                     Over(report, {{1, "loopback_sequential"}, {2, "threads_2"}, {4, "threads_4"}, {8, "threads_8"}}, "cpu_us"));
  if (!ok) fmt::print(stderr, "bench/run load: no plots: gnuplot is not installed (package gnuplot-nox), or failed\n");
  return ok;
}

}  // namespace load
