// Pods on plain grpc++ servers that just call Shutdown(), one after the other, and what their clients see of it.

#include <doctest/doctest.h>

#include <string>

#include "penstock/client/client.h"
#include "penstock/testing/pods.h"
#include "support/client_calls.h"
#include "support/client_load.h"
#include "support/echo_pod.h"
#include "support/plain_load.h"

namespace penstock::test {
namespace {

constexpr int kOutstanding = 64;

void RollOut(Duration delay, int rollouts, std::uint64_t least_calls) {
  auto service = testing::Service::Create(
      {.make_pod = EchoPods({.own_process = true, .plain = true}), .pods = 1, .router = {.delay = delay}});
  if (!service.ok()) FAIL(service.error().message());
  Client client = MakeClient({.address = (*service)->address()});
  Load load(client, kOutstanding, 0, 0);
  PlainLoad plain((*service)->address(), kOutstanding);
  std::size_t serving = 0;
  for (int rollout = 0; rollout < rollouts; ++rollout) {
    // Both loads are on the pod that serves.
    const std::uint64_t before = load.answered() + least_calls / static_cast<std::uint64_t>(rollouts);
    const long plain_before = plain.done() + 4 * kOutstanding;
    REQUIRE(Eventually([&] { return load.answered() >= before && plain.done() >= plain_before; }));
    auto next = (*service)->Replace(serving);
    if (!next.ok()) FAIL(next.error().message());
    serving = *next;
  }
  load.Stop();
  plain.Stop();
  const CircuitTotals totals = client.circuit_totals();
  CHECK_MESSAGE(load.failed() == 0, load.failure());
  CHECK(client.circuit_state() == CircuitState::kClosed);
  CHECK(totals.entered_open == 0);
  MESSAGE(rollouts << " shutdowns, " << delay / 1ms << " ms each way: penstock's client " << load.answered() << " calls, "
                   << load.failed() << " failed, " << totals.ignored << " attempts killed or met by a GOAWAY, " << totals.failures
                   << " failures counted; plain client " << plain.done() << " calls, " << plain.failed() << " failed: "
                   << plain.failures());
}

TEST_CASE("C3, V3: a client of plain servers that just call Shutdown loses no call of a method that may run twice") {
  SUBCASE("no delay") { RollOut(0ms, 5, 10'000); }
  SUBCASE("5 ms each way") { RollOut(5ms, 3, 6'000); }
}

}  // namespace
}  // namespace penstock::test
