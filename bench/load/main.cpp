// What calls and streams cost through penstock, beside grpc++ in its own forms and beside what a team writes by hand.
//
// All contenders of a scene take turns within each round, each run in a process of its own; figures are medians over the rounds,
// and each ratio is the median of the rounds' own ratios to the scene's first contender. The one called "again" is the control:
// how far its ratio strays from 1 is the noise of the run.

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <thread>

#include "child.h"
#include "report.h"
#include "scenes.h"

namespace load {
namespace {

struct Plan {
  int rounds = 5;
  double scale = 1;  // of each run's length
  bool short_run = false;
  bool tiny = false;
  int idle_calls = 45;
  std::string only;  // scenes whose names begin so
  bool Takes(const Scene& scene) const {
    return (!short_run || scene.in_short) && scene.name.rfind(only, 0) == 0;
  }
};

int ClientCore() { return std::thread::hardware_concurrency() >= 2 ? 0 : -1; }
int ServerCore() { return std::thread::hardware_concurrency() >= 2 ? 1 : -1; }

RunOptions OptionsOf(const Scene& scene, const Contender& contender) {
  return {.kind = scene.kind,
          .variant = contender.variant,
          .outstanding = scene.outstanding,
          .payload = scene.payload,
          .waited_for = scene.waited_for,
          .seconds = scene.seconds,
          .clients = scene.clients,
          .core = scene.in_process ? -1 : ClientCore()};
}

// What a scene tells, of all that a run did.
bool Belongs(const Scene& scene, const std::string& metric) {
  if (metric == "calls") return false;
  const bool servers = metric.rfind("server_", 0) == 0;
  if (scene.server_side) return servers || metric == "calls_per_second";
  return !servers;
}

void AddResult(const Scene& scene, const Contender& contender, int round, const RunResult& result, Report& report) {
  for (const auto& [metric, value] : result.metrics) {
    if (Belongs(scene, metric)) report.Add(scene, metric, contender.label, round, value);
  }
  if (!result.quantiles_us.empty()) report.AddQuantiles(scene, contender.label, round, result.quantiles_us);
}

// The servers that clients run against; of each kind one, as long as the scenes of clients are measured. A scene of servers has
// fresh ones.
class Servers {
 public:
  const std::string& Of(const std::string& kind) {
    std::unique_ptr<ServerProcess>& server = servers_[kind];
    if (server == nullptr) server = std::make_unique<ServerProcess>(kind, ServerCore());
    return server->address();
  }

 private:
  std::map<std::string, std::unique_ptr<ServerProcess>> servers_;
};

void MeasureRounds(const Plan& plan, Report& report) {
  Servers servers;
  for (int round = 0; round < plan.rounds; ++round) {
    fmt::print(stderr, "round {} of {}\n", round + 1, plan.rounds);
    for (const Scene& scene : Scenes()) {
      if (scene.spaced_ms > 0 || !plan.Takes(scene)) continue;
      if (scene.seconds <= 0 && round > 0) continue;
      const std::size_t count = scene.contenders.size();
      for (std::size_t i = 0; i < count; ++i) {
        const Contender& contender = scene.contenders[(i + static_cast<std::size_t>(round)) % count];
        RunOptions options = OptionsOf(scene, contender);
        options.seconds *= plan.scale;
        if (plan.tiny && scene.clients > 0) options.clients = 3;
        if (plan.tiny) options.outstanding = std::min(options.outstanding, 64);
        if (scene.kind == Kind::kIdle) options.calls = options.outstanding;
        if (!scene.in_process) options.address = servers.Of(contender.server);
        if (const auto result = ClientProcess(options).Result()) AddResult(scene, contender, round, *result, report);
      }
    }
  }
}

// User-space instructions a call, counted by callgrind in the process that the scene is about.
bool MeasureInstructions(const Scene& scene, const Contender& contender, std::int64_t calls, Report& report) {
  ServerProcess server(contender.server, -1, scene.server_side);
  if (server.address().empty()) return false;
  RunOptions options = OptionsOf(scene, contender);
  options.address = server.address();
  options.calls = calls;
  options.core = -1;
  options.callgrind = !scene.server_side;
  ClientProcess client(options);
  const auto result = client.Result();
  const auto counted = scene.server_side ? server.Instructions() : client.Instructions();
  if (!result || !counted || *counted == 0) return false;
  report.Add(scene, "instructions", contender.label, 0, *counted / result->metrics.at("calls"));
  return true;
}

bool MeasureAllInstructions(const Plan& plan, Report& report) {
  for (const Scene& scene : Scenes()) {
    if (!scene.counted || !plan.Takes(scene)) continue;
    for (const Contender& contender : scene.contenders) {
      fmt::print(stderr, "instructions: {}, {}\n", scene.name, contender.label);
      if (!MeasureInstructions(scene, contender, scene.kind == Kind::kUnary ? 2000 : 20000, report)) return false;
    }
  }
  return true;
}

// Calls 1.0 to 1.2 s apart: whether a sleeping callback queue delays them. All at once, each beside a server of its own.
void MeasureIdle(const Plan& plan, Report& report) {
  struct Pair {
    const Contender* contender;
    std::unique_ptr<ServerProcess> server;
    std::unique_ptr<ClientProcess> client;
  };
  for (const Scene& scene : Scenes()) {
    if (scene.spaced_ms == 0 || !plan.Takes(scene)) continue;
    fmt::print(stderr, "{} calls 1.0 to 1.2 s apart\n", plan.idle_calls);
    std::vector<Pair> pairs;
    for (const Contender& contender : scene.contenders) {
      auto server = std::make_unique<ServerProcess>(contender.server, -1);
      RunOptions options = OptionsOf(scene, contender);
      options.address = server->address();
      options.calls = plan.idle_calls;
      options.spaced_ms = scene.spaced_ms;
      options.core = -1;
      auto client = std::make_unique<ClientProcess>(options);
      pairs.push_back({&contender, std::move(server), std::move(client)});
    }
    for (Pair& pair : pairs) {
      const auto result = pair.client->Result();
      if (!result) continue;
      for (const char* metric : {"p50_us", "p99_us"}) {
        report.Add(scene, metric, pair.contender->label, 0, result->metrics.at(metric));
      }
    }
  }
}

// What the regression check compares: it has no times, and so holds on a busy machine.
bool MeasureForReference(Report& report) {
  for (const Scene& scene : Scenes()) {
    if (!scene.counted || scene.outstanding > 1) continue;
    for (const Contender& contender : scene.contenders) {
      const bool compared = &contender == &scene.contenders.front() ||
                            std::any_of(scene.forms.begin(), scene.forms.end(),
                                        [&](const Form& form) { return form.label == contender.label; });
      if (!compared) continue;
      const std::int64_t calls = scene.kind == Kind::kUnary ? 1500 : 10000;
      if (!MeasureInstructions(scene, contender, calls, report)) return false;
      ServerProcess server(contender.server, -1);
      RunOptions options = OptionsOf(scene, contender);
      options.address = server.address();
      options.calls = 4 * calls;
      options.core = -1;
      const auto result = ClientProcess(options).Result();
      if (!result) return false;
      const char* metric = scene.server_side ? "server_allocations" : "allocations";
      if (const auto found = result->metrics.find(metric); found != result->metrics.end()) {
        report.Add(scene, metric, contender.label, 0, found->second);
      }
    }
  }
  return true;
}

int Run(int argc, char** argv) {
  CLI::App app("What calls and streams cost through penstock, beside plain gRPC and a textbook wrapper.", "bench/run load");
  Plan plan;
  std::string json, plots, check, write_reference;
  bool instructions = false;
  int rounds = 0;
  app.add_option("--json", json, "Write all cells to this file")->type_name("FILE");
  app.add_option("--plots", plots, "Draw SVG plots into this folder, with gnuplot")->type_name("FOLDER");
  app.add_flag("--short", plan.short_run, "2 short rounds of the main scenes, 5 idle calls: about a minute, for a first look");
  app.add_flag("--instructions", instructions,
               "Count instructions by callgrind too, in a pass of its own (some minutes)");
  app.add_option("--rounds", rounds, "How often each contender takes its turn (default 5)")
      ->check(CLI::Range(1, 100))
      ->type_name("N");
  app.add_option("--only", plan.only, "Only scenes whose names begin so")->type_name("PREFIX");
  app.add_option("--check", check, "Only compare instructions and allocations with this reference; exit code 1 where they are worse")
      ->type_name("FILE");
  app.add_option("--write-reference", write_reference, "Only measure what --check compares, and write it to this file")
      ->type_name("FILE");
  app.add_flag("--tiny", plan.tiny)->group("");  // for the tests: everything once, briefly, and no idle calls
  RunOptions child;
  int kind = 0;
  std::string as_server;
  app.add_option("--as-server", as_server)->group("");
  app.add_option("--as-client", child.variant)->group("");
  app.add_option("--kind", kind)->group("");
  app.add_option("--address", child.address)->group("");
  app.add_option("--outstanding", child.outstanding)->group("");
  app.add_option("--payload", child.payload)->group("");
  app.add_option("--calls", child.calls)->group("");
  app.add_option("--seconds", child.seconds)->group("");
  app.add_option("--spaced-ms", child.spaced_ms)->group("");
  app.add_option("--clients", child.clients)->group("");
  app.add_option("--core", child.core)->group("");
  app.add_flag("--waited-for", child.waited_for)->group("");
  app.add_flag("--under-callgrind", child.callgrind)->group("");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    fmt::print(stderr, "bench/run load: {} (see bench/run load --help)\n", error.what());
    return 2;
  }
  child.kind = static_cast<Kind>(kind);
  if (!as_server.empty()) return ServerMain(as_server, child.core);
  if (!child.variant.empty()) return ClientMain(child);

  const std::string& written = json.empty() ? write_reference : json;
  std::ofstream file;
  if (!written.empty()) {
    file.open(written);
    if (!file) {
      fmt::print(stderr, "bench/run load: '{}' cannot be written\n", written);
      return 2;
    }
  }
  if (!CanCount() && (instructions || !check.empty() || !write_reference.empty())) {
    fmt::print(stderr, "bench/run load: instructions cannot be counted: valgrind is not here, or was not when this was built\n");
    return 77;  // meson: skipped
  }
  Report report;
  if (!check.empty() || !write_reference.empty()) {
    if (!MeasureForReference(report)) return 1;
    if (!write_reference.empty()) file << ReferenceJson(report.Cells());
    return check.empty() || WithinReference(report.Cells(), check) ? 0 : 1;
  }

  plan.rounds = rounds > 0 ? rounds : plan.tiny ? 1 : plan.short_run ? 2 : 5;
  plan.scale = plan.tiny ? 0.03 : plan.short_run ? 0.35 : 1.0;
  plan.idle_calls = plan.short_run ? 5 : 45;
  plan.short_run = plan.short_run || plan.tiny;
  MeasureRounds(plan, report);
  if (instructions && !MeasureAllInstructions(plan, report)) return 1;
  if (!plan.tiny) MeasureIdle(plan, report);
  report.Print();
  if (file.is_open()) file << report.Json(plan.rounds);
  if (!plots.empty() && !Plot(report, plots)) return 1;
  return 0;
}

}  // namespace
}  // namespace load

int main(int argc, char** argv) { return load::Run(argc, argv); }
