// Rollouts whose premise does not hold (V3): endpoints that still lead to the pod that leaves.
#include <doctest/doctest.h>

#include "penstock/testing/pods.h"
#include "support/client_load.h"
#include "support/echo_pod.h"
#include "support/server_fixture.h"

namespace penstock::test {
namespace {

using Steady = std::chrono::steady_clock;

std::unique_ptr<testing::Service> MakeService(testing::ServiceSettings settings) {
  auto service = testing::Service::Create(std::move(settings));
  if (!service.ok()) FAIL(service.error().message());
  return *std::move(service);
}

Client ClientOf(const testing::Service& service) {
  ClientSettings settings{.address = service.address(), .breaker = {.open_for = 500ms}};
  settings.connection.name_server = service.name_server();
  return MakeClient(std::move(settings));
}

double Seconds(Steady::duration length) { return std::chrono::duration<double>(length).count(); }

bool Answers(Load& load, std::uint64_t more) {
  const std::uint64_t before = load.answered();
  return Eventually([&] { return load.answered() > before + more; });
}

// One of two pods leaves under load, and is still named to new connections for 2 s. It is to be gone before its grace ends.
void LeaveWhileNamed(testing::ServiceSettings settings, Steady::duration grace) {
  LogKeeper log;
  auto service = MakeService(std::move(settings));
  Client client = ClientOf(*service);
  Load load(client, 16);
  REQUIRE(Answers(load, 100));
  const auto began = Steady::now();
  service->pod(0).Shutdown();
  std::this_thread::sleep_for(2s);
  service->Drain(0);
  CHECK(service->pod(0).Wait() == 0);
  const auto took = Steady::now() - began;
  CHECK(took < grace);
  CHECK(Answers(load, 100));
  load.Stop();
  CHECK_MESSAGE(load.failed() == 0, load.failure());
  CHECK(client.circuit_totals().entered_open == 0);
  MESSAGE(std::string("gone after ") << Seconds(took) << " s, " << load.answered() << " answered, "
                                     << client.circuit_totals().failures << " failures counted");
}

TEST_CASE("V3: a router that sends new connections to the dying pod for 2 s more costs no call") {
  LeaveWhileNamed({.make_pod = EchoPods({.grace_ms = 10'000}), .pods = 2}, 10s);
}

TEST_CASE("V3: nor does a headless name that still lists it") {
  LeaveWhileNamed({.make_pod = EchoPods({.grace_ms = 15'000}), .pods = 2, .headless = true}, 15s);
}

// What cannot be had without another pod is bounded at least: whoever is told to go away comes back to the same one.
TEST_CASE("V3: the only replica leaves in its grace, and its clients find the next one") {
  auto service = MakeService({.make_pod = EchoPods({.grace_ms = 3'000}), .pods = 1});
  Client client = ClientOf(*service);
  Load load(client, 16);
  REQUIRE(Answers(load, 100));
  const auto began = Steady::now();
  service->pod(0).Shutdown();
  service->pod(0).Wait();
  const auto took = Steady::now() - began;
  CHECK(took < 3s + 1s + (FullRun() ? 0s : 20s));
  service->Drain(0);
  const std::uint64_t lost_with_it = load.failed();
  CHECK(Eventually([&] { return client.circuit_state() == CircuitState::kOpen; }));
  REQUIRE(service->Start().ok());
  CHECK(Answers(load, 100));
  CHECK(Eventually([&] { return client.circuit_state() == CircuitState::kClosed; }));
  load.Stop();
  MESSAGE(std::string("gone after ") << Seconds(took) << " s; " << load.answered() << " answered, " << lost_with_it
                                     << " failed until it was gone, " << load.failed() << " in all");
}

}  // namespace
}  // namespace penstock::test
