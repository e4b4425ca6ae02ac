#pragma once

// Three pods in processes of their own behind one router, calls that are always in flight, and what becomes of them as
// pods are killed: shared by the quick test and the long series.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "penstock/client/client.h"
#include "penstock/testing/router.h"
#include "support/client_calls.h"
#include "support/client_load.h"
#include "support/pod_process.h"

namespace penstock::test {

struct KilledPods {
  KilledPods() {
    for (std::size_t place = 0; place < pods.size(); ++place) pods[place] = std::make_unique<PodProcess>("pod");
    auto made = testing::Router::Create({.targets = Targets()});
    REQUIRE(made.ok());
    router = *std::move(made);
  }

  std::vector<std::uint16_t> Targets() const {
    std::vector<std::uint16_t> ports;
    for (const auto& pod : pods) {
      if (pod != nullptr) ports.push_back(pod->port());
    }
    return ports;
  }

  // The pod that has the client's connection.
  std::size_t Connected() const {
    std::size_t found = pods.size();
    REQUIRE(Eventually([&] {
      const auto connections = router->connections();
      if (connections.size() != 1) return false;
      for (std::size_t place = 0; place < pods.size(); ++place) {
        if (pods[place] != nullptr && pods[place]->port() == connections[0].target) found = place;
      }
      return found < pods.size();
    }));
    return found;
  }

  // Kills the pod that serves, and takes it off the router's targets so much later. A new one takes its place.
  void KillServing(std::chrono::milliseconds lingers = {}) {
    const std::size_t place = Connected();
    const std::uint16_t port = pods[place]->port();
    if (lingers == lingers.zero()) {
      // At once means that no new connection meets the dead pod, not even within the microseconds between two calls here.
      std::vector<std::uint16_t> others = Targets();
      std::erase(others, port);
      router->SetTargets(others);
    }
    pods[place]->Kill();
    if (lingers > lingers.zero()) {
      std::this_thread::sleep_for(lingers);
    }
    router->DropTarget(port);
    pods[place] = std::make_unique<PodProcess>("pod");
    router->SetTargets(Targets());
  }

  std::array<std::unique_ptr<PodProcess>, 3> pods;
  std::unique_ptr<testing::Router> router;
};

// Kills the serving pod again and again under so many calls in flight, and checks that it costs nothing. Five attempts: full
// jitter may draw two waits of almost nothing, and three attempts then end on a connection that gRPC has not yet found broken
// (seen: one to two calls of 3,000).
inline void KillUnderLoad(int outstanding, int kills, std::chrono::milliseconds lingers = {},
                          std::uint32_t max_attempts = 5) {
  KilledPods pods;
  Client client = MakeClient({.address = pods.router->address(), .max_attempts = max_attempts});
  Load load(client, outstanding);
  std::chrono::nanoseconds slowest{};
  std::uint64_t most = 0;
  for (int kill = 0; kill < kills; ++kill) {
    const std::uint64_t before = load.answered();
    REQUIRE(Eventually([&] { return load.answered() > before + 4 * static_cast<std::uint64_t>(outstanding); }));
    load.TakeSlowest();
    const std::uint64_t failures = client.circuit_totals().failures;
    pods.KillServing(lingers);
    const std::uint64_t after = load.answered();
    REQUIRE(Eventually([&] { return load.answered() > after + 4 * static_cast<std::uint64_t>(outstanding); }));
    CHECK(client.circuit_state() == CircuitState::kClosed);
    most = std::max(most, client.circuit_totals().failures - failures);
    slowest = std::max(slowest, load.TakeSlowest());
  }
  load.Stop();
  CHECK_MESSAGE(load.failed() == 0, load.failure());
  CHECK(client.circuit_totals().entered_open == 0);
  MESSAGE(outstanding, " calls in flight, ", kills, " kills, lingering ", lingers.count(), " ms: ", load.answered(),
          " answered, ", load.failed(), " failed, slowest ", slowest / std::chrono::milliseconds(1), " ms, at most ",
          most, " failures counted a kill");
}

}  // namespace penstock::test
