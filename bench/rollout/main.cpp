// A dependency's pods are replaced under load, with penstock on both sides, and then as it is commonly done.

#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <optional>
#include <string>

#include "run.h"

namespace {

volatile sig_atomic_t interrupted = 0;

// The first Ctrl-C ends the run in order, a second one at once.
void OnInterrupt(int) {
  if (interrupted != 0) _exit(130);
  interrupted = 1;
}

int Main(int argc, char** argv) {
  rollout::Options options;
  std::string json;
  bool million = false;
  bool tiny = false;
  CLI::App app(
      "The pods of a ledger are replaced one after the other while a client calls it and watches its accounts: first with "
      "penstock on both sides, then as it is commonly done, for contrast. Exit code 0 when nothing was lost with penstock, 1 when "
      "something was, 2 for a bad option, 130 after Ctrl-C.",
      "bench/run rollout");
  app.add_option("--pods", options.pods, "Pods behind the one address (default 3)")->check(CLI::Range(1, 16))->type_name("N");
  app.add_option("--streams", options.streams, "Watches open all the time (default 64)")
      ->check(CLI::Range(0, 2000))
      ->type_name("N");
  app.add_option("--qps", options.qps, "Unary calls a second (default 1000)")->check(CLI::Range(1, 20000))->type_name("N");
  app.add_flag("--million", million,
               "A million calls, 64 at a time, through at least 20 replacements; then the same with plain gRPC on both sides, "
               "without a breaker");
  app.add_option("--json", json, "Write penstock's figures to this file")->type_name("FILE");
  app.add_flag("--tiny", tiny)->group("");  // for the tests
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    fmt::print(stderr, "bench/run rollout: {} (see bench/run rollout --help)\n", error.what());
    return 2;
  }
  std::ofstream file;
  if (!json.empty()) {
    file.open(json);
    if (!file) {
      fmt::print(stderr, "bench/run rollout: '{}' cannot be written\n", json);
      return 2;
    }
  }
  if (million) {
    options.calls = tiny ? 20'000 : 1'000'000;
    options.replacements = tiny ? 4 : 20;
  }

  struct sigaction action {};
  action.sa_handler = OnInterrupt;
  sigaction(SIGINT, &action, nullptr);
  const auto is_interrupted = [] { return interrupted != 0; };

  const rollout::Side penstock_side{"penstock", rollout::MakePenstockPod,
                                    [&](const std::string& address, rollout::Figures& figures) {
                                      return rollout::MakePenstockCaller(address, options.pods, figures);
                                    }};
  // A breaker turns calls away at once: a caller that always has 64 on the way would count little else.
  const rollout::Side naive_side{"naive", rollout::MakeNaivePod,
                                 [&](const std::string& address, rollout::Figures& figures) {
                                   return rollout::MakeNaiveCaller(address, !million, figures);
                                 }};

  fmt::print("With penstock: each pod drains, says GOAWAY while it still serves, ends its streams, and leaves last.\n");
  const rollout::Outcome outcome = rollout::Run(penstock_side, options, is_interrupted);
  if (outcome.interrupted) {
    fmt::print(stderr, "bench/run rollout: interrupted\n");
    return 130;
  }
  if (!outcome.ran) return 1;
  fmt::print("{}\n{} of {} connections on which a pod ended streams were told to go away first.\n", outcome.Verdict(),
             outcome.goaway_before_trailers, outcome.connections);
  std::optional<rollout::Outcome> naive;
  if (!tiny || million) {
    fmt::print("\nAs it is commonly done: each pod finishes its streams and then shuts down{}.\n",
               million ? "" : "; the caller counts them as failures");
    naive = rollout::Run(naive_side, options, is_interrupted);
    if (naive->interrupted) {
      fmt::print(stderr, "bench/run rollout: interrupted\n");
      return 130;
    }
    if (!naive->ran) return 1;
    fmt::print("{}\n", naive->Verdict());
  }
  if (file.is_open()) file << outcome.Json(naive ? &*naive : nullptr);
  return outcome.clean() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return Main(argc, argv); }
