#pragma once

// How long a cancel takes that comes during an injected delay.

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "penstock/client/client.h"
#include "penstock/faults.h"
#include "support/client_calls.h"
#include "support/echo_service.h"

namespace penstock::test {

// Of each call from Cancel() to its completion, sorted. Checks how each ended, and that none reached a server.
inline std::vector<std::chrono::duration<double, std::milli>> CancelDelayedCalls(int calls) {
  EchoServer server;
  auto faults = std::make_shared<FaultInjector>();
  Client client = MakeClient({.address = server.address(), .faults = faults});
  const auto scope = CallScope::Create(TimePoint::max(), {{"baggage", "penstock.fault=grpc:penstock.test.v1.Echo/Unary?delay=1000s"}});
  std::vector<std::chrono::duration<double, std::milli>> took;
  for (int i = 0; i < calls; ++i) {
    Ending ending;
    CallHandle handle =
        client.Call(PENSTOCK_METHOD(v1::Echo, Unary), v1::EchoRequest(), {.parent = scope, .timeout = std::chrono::hours(1)}, ending.Completion());
    REQUIRE(Eventually([&] { return faults->counts().delays == static_cast<std::uint64_t>(i) + 1; }));
    // Within the delay, and at every phase of gRPC's own polling.
    std::this_thread::sleep_for(std::chrono::milliseconds(i * 37 % 150));
    const auto began = std::chrono::steady_clock::now();
    handle.Cancel();
    const CallResult& result = ending.Wait();
    took.push_back(std::chrono::steady_clock::now() - began);
    CHECK(result.status.error_code() == grpc::StatusCode::CANCELLED);
    CHECK(result.reason == EndReason::kCancelled);
  }
  CHECK(client.circuit_totals().ignored == static_cast<std::uint64_t>(calls));
  CHECK(server.echo().counts().unary == 0);
  std::sort(took.begin(), took.end());
  MESSAGE(calls << " cancels during an injected delay: median " << took[took.size() / 2].count() << " ms, worst " << took.back().count() << " ms");
  return took;
}

}  // namespace penstock::test
