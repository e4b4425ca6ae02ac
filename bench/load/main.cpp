// What a unary call costs through penstock, beside grpc++ in its own forms and beside what a team writes by hand.
//
// All variants take turns within each round, each run in a process of its own; figures are medians over the rounds, and
// each ratio is the median of the rounds' own ratios to the raw reactor. "raw reactor again" is the control: how far its
// ratio strays from 1 is the noise of the run.

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <thread>

#include "child.h"
#include "report.h"
#include "variant.h"

namespace load {

const std::vector<VariantEntry>& Variants() {
  static const std::vector<VariantEntry> variants = {
      {"raw reactor", "ClientUnaryReactor: what all others are compared with", MakeRawReactor},
      {"raw reactor again", "the same once more: the control", MakeRawReactor},
      {"raw function", "the std::function form", MakeRawFunction},
      {"raw function, own object", "the same, with context and messages allocated for each call", MakeRawFunctionObject},
      {"raw completion queue", "one thread that drives a queue", MakeRawCompletionQueue},
      {"raw sync", "a thread an outstanding call", MakeRawSync},
      {"grpc retry policy", "the raw reactor with gRPC's own retries configured", MakeRetryPolicy},
      {"do-nothing interceptor", "the raw reactor with an interceptor that only proceeds", MakeInterceptor},
      {"textbook wrapper", "mutex breaker, token bucket, an object a call, a deadline", MakeTextbook},
      {"penstock callback", "Client::Call with the defaults: deadline, breaker, budget, retries", MakePenstockCallback},
      {"penstock reactor", "the embedded UnaryReactor", MakePenstockReactor},
      {"penstock transparent", "Client::Call with transparent_retries on", MakePenstockTransparent},
#ifdef PENSTOCK_BENCH_OTEL
      {"penstock, OpenTelemetry", "the callback form; spans are recorded and dropped, metrics recorded", MakePenstockOtel},
#endif
#ifdef PENSTOCK_BENCH_PROMETHEUS
      {"penstock, Prometheus", "the callback form with the Prometheus exporter", MakePenstockPrometheus},
#endif
  };
  return variants;
}

namespace {

struct Pattern {
  const char* name;
  int outstanding;
  bool in_process;
  double seconds;
};

constexpr Pattern kPatterns[] = {
    {"loopback_sequential", 1, false, 0.3},
    {"loopback_64", 64, false, 0.6},
    {"in_process_sequential", 1, true, 0.3},
    {"in_process_64", 64, true, 0.6},
};

void MeasureRounds(int rounds, double scale, const std::string& address, int client_core, Report& report) {
  const auto& variants = Variants();
  for (int round = 0; round < rounds; ++round) {
    fmt::print(stderr, "round {} of {}\n", round + 1, rounds);
    for (const Pattern& pattern : kPatterns) {
      for (std::size_t i = 0; i < variants.size(); ++i) {
        const VariantEntry& variant = variants[(i + static_cast<std::size_t>(round)) % variants.size()];
        const auto result = RunClient({.variant = variant.name,
                                       .address = pattern.in_process ? "" : address,
                                       .outstanding = pattern.outstanding,
                                       .seconds = pattern.seconds * scale,
                                       .core = pattern.in_process ? -1 : client_core});
        if (!result) continue;
        report.Add(pattern.name, "calls_per_second", variant.name, round, result->calls_per_second);
        report.Add(pattern.name, "cpu_us", variant.name, round, result->cpu_us);
        if (result->allocations >= 0) {
          report.Add(pattern.name, "allocations", variant.name, round, result->allocations);
        }
        report.Add(pattern.name, "p50_us", variant.name, round, result->p50_us);
        report.Add(pattern.name, "p99_us", variant.name, round, result->p99_us);
      }
    }
  }
}

// User-space instructions a call, counted by callgrind: what is left when a short run is taken from a longer one.
void MeasureInstructions(const std::string& address, Report& report) {
  constexpr int kFew = 400;
  constexpr int kMore = 1600;
  for (const Pattern& pattern : kPatterns) {
    if (pattern.in_process) continue;
    for (const VariantEntry& variant : Variants()) {
      fmt::print(stderr, "instructions: {}, {}\n", pattern.name, variant.name);
      RunOptions options{.variant = variant.name, .address = address, .outstanding = pattern.outstanding, .calls = kFew,
                         .callgrind = true};
      const auto few = ClientProcess(options).Instructions();
      options.calls = kMore;
      const auto more = ClientProcess(options).Instructions();
      if (!few || !more) {
        fmt::print(stderr, "instructions are not measured: valgrind is not installed, or does not run here\n");
        return;
      }
      report.Add(pattern.name, "instructions", variant.name, 0, (*more - *few) / (kMore - kFew));
    }
  }
}

// Calls 1.0 to 1.2 s apart: whether a sleeping callback queue delays them. All at once, each beside a server of its own.
void MeasureIdle(int calls, Report& report) {
  fmt::print(stderr, "{} calls 1.0 to 1.2 s apart\n", calls);
  struct Pair {
    std::string variant;
    std::unique_ptr<ServerProcess> server;
    std::unique_ptr<ClientProcess> client;
  };
  std::vector<Pair> pairs;
  for (const VariantEntry& entry : Variants()) {
    const std::string variant = entry.name;
    const bool penstock = variant.rfind("penstock", 0) == 0;
    if (!penstock && variant != "raw reactor" && variant != "raw reactor again" && variant != "raw function") continue;
    Pair& pair = pairs.emplace_back();
    pair.variant = variant;
    pair.server = std::make_unique<ServerProcess>(penstock ? "penstock" : "raw", -1);
    pair.client = std::make_unique<ClientProcess>(
        RunOptions{.variant = variant, .address = pair.server->address(), .calls = calls, .spaced_ms = 1000});
  }
  for (Pair& pair : pairs) {
    const auto result = pair.client->Result();
    if (!result) continue;
    report.Add("idle_1s", "p50_us", pair.variant, 0, result->p50_us);
    report.Add("idle_1s", "p99_us", pair.variant, 0, result->p99_us);
  }
}

int Run(int argc, char** argv) {
  CLI::App app("What a unary call costs through penstock, beside plain gRPC and a textbook wrapper.", "bench/run load");
  std::string json;
  bool short_run = false;
  int rounds = 0;
  app.add_option("--json", json, "Write all cells to this file")->type_name("FILE");
  app.add_flag("--short", short_run, "3 short rounds, 5 idle calls, no instructions: about a minute, for a first look");
  app.add_option("--rounds", rounds, "How often each variant takes its turn (default 7)")
      ->check(CLI::Range(1, 100))
      ->type_name("N");
  bool tiny = false;
  app.add_flag("--tiny", tiny)->group("");  // for the tests: everything once, briefly, and no idle calls
  RunOptions child;
  std::string as_server;
  app.add_option("--as-server", as_server)->group("");
  app.add_option("--as-client", child.variant)->group("");
  app.add_option("--address", child.address)->group("");
  app.add_option("--outstanding", child.outstanding)->group("");
  app.add_option("--calls", child.calls)->group("");
  app.add_option("--seconds", child.seconds)->group("");
  app.add_option("--spaced-ms", child.spaced_ms)->group("");
  app.add_option("--core", child.core)->group("");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    fmt::print(stderr, "bench/run load: {} (see bench/run load --help)\n", error.what());
    return 2;
  }
  if (!as_server.empty()) return ServerMain(as_server, child.core);
  if (!child.variant.empty()) return ClientMain(child);

  std::ofstream file;
  if (!json.empty()) {
    file.open(json);
    if (!file) {
      fmt::print(stderr, "bench/run load: '{}' cannot be written\n", json);
      return 2;
    }
  }
  if (rounds == 0) rounds = tiny ? 1 : short_run ? 3 : 7;
  const double scale = tiny ? 0.05 : short_run ? 0.4 : 1.0;
  const bool two_cores = std::thread::hardware_concurrency() >= 2;
  Report report(Variants().front().name);
  {
    ServerProcess server("raw", two_cores ? 1 : -1);
    if (server.address().empty()) return 1;
    MeasureRounds(rounds, scale, server.address(), two_cores ? 0 : -1, report);
    if (!short_run && !tiny) MeasureInstructions(server.address(), report);
  }
  if (!tiny) MeasureIdle(short_run ? 5 : 45, report);
  report.Print();
  if (file.is_open()) file << report.Json(rounds);
  return 0;
}

}  // namespace
}  // namespace load

int main(int argc, char** argv) { return load::Run(argc, argv); }
