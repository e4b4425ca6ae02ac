// Pods that are killed under load, and servers that only look as if they were.

#include "support/killed_pods.h"

namespace penstock::test {

TEST_CASE("C10: a pod killed under 64 calls in flight costs none of them, and leaves the breaker closed") {
  KillUnderLoad(64, 5);
}

TEST_CASE("C10: nor does one under 256") { KillUnderLoad(256, 2); }

TEST_CASE("C10: a live server that refuses every second of 64 calls in flight opens the breaker by the ratio") {
  PodProcess pod("pod");
  Client client =
      MakeClient({.address = pod.address(), .max_attempts = 1, .breaker = {.consecutive_failures = 1'000'000}});
  Load load(client, 64, 2);
  CHECK(Eventually([&] { return client.circuit_totals().entered_open > 0; }));
}

TEST_CASE("C10: a live server that refuses everything opens it too") {
  PodProcess pod("pod");
  Client client = MakeClient({.address = pod.address(), .max_attempts = 1});
  const auto begin = std::chrono::steady_clock::now();
  Load load(client, 64, 1);
  CHECK(Eventually([&] { return client.circuit_totals().entered_open > 0; }));
  MESSAGE("open after ", (std::chrono::steady_clock::now() - begin) / 1us, " us, ", client.circuit_totals().failures,
          " failures and ", load.failed(), " calls");
}

TEST_CASE("C10, D2: with every pod killed the breaker opens after 5 counted failures, and closes when they are back") {
  KilledPods pods;
  Client client = MakeClient({.address = pods.router->address(), .breaker = {.open_for = 300ms}});
  Load load(client, 64);
  REQUIRE(Eventually([&] { return load.answered() > 200; }));
  const std::uint64_t before = client.circuit_totals().failures;
  const auto killed = std::chrono::steady_clock::now();
  for (auto& pod : pods.pods) pod.reset();
  pods.router->SetTargets({});
  pods.router->CutAll();
  REQUIRE(Eventually([&] { return client.circuit_totals().entered_open > 0; }));
  MESSAGE("open ", (std::chrono::steady_clock::now() - killed) / 1ms, " ms after the kill, ",
          client.circuit_totals().failures - before, " failures counted");
  CHECK(client.circuit_totals().failures - before >= 5);

  for (auto& pod : pods.pods) pod = std::make_unique<PodProcess>("pod");
  pods.router->SetTargets(pods.Targets());
  const auto back = std::chrono::steady_clock::now();
  REQUIRE(Eventually([&] { return client.circuit_state() == CircuitState::kClosed; }));
  MESSAGE("closed ", (std::chrono::steady_clock::now() - back) / 1ms, " ms after they were back");
}

}  // namespace penstock::test
