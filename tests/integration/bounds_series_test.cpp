// The bounds that the rules name, on a machine that does nothing else (suite slow).

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include "penstock/runtime.h"
#include "support/client_calls.h"
#include "support/closing.h"
#include "support/echo_requests.h"
#include "support/echo_service.h"

namespace penstock::test {
namespace {

std::chrono::microseconds ProcessorTime() {
  rusage usage{};
  REQUIRE(::getrusage(RUSAGE_SELF, &usage) == 0);
  const auto of = [](const timeval& time) { return std::chrono::seconds(time.tv_sec) + std::chrono::microseconds(time.tv_usec); };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

}  // namespace

TEST_CASE("L3: a deadline that has passed ends its call within 5 ms") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  REQUIRE(client.CallAndWait(kUnary, Request("")).ok());
  using WallClock = std::chrono::system_clock;
  std::chrono::nanoseconds slowest{};
  for (int turn = 0; turn < 1'000; ++turn) {
    const std::array deadlines = {Deadline(WallClock::time_point::min()), Deadline(WallClock::time_point(-1s)),
                                  Deadline(WallClock::time_point()), Deadline(WallClock::now() - 1s)};
    const auto begin = std::chrono::steady_clock::now();
    const auto waited = client.CallAndWait(kUnary, Request(""), {.deadline = deadlines[static_cast<std::size_t>(turn) % 4]});
    slowest = std::max(slowest, std::chrono::steady_clock::now() - begin);
    CHECK(waited.result.status.error_code() == grpc::DEADLINE_EXCEEDED);
    CHECK(waited.result.attempts == 0);
  }
  MESSAGE("the slowest of 1,000 took ", slowest / 1us, " us");
  CHECK(slowest < 5ms);
}

TEST_CASE("L9: clients close within a second with 300 calls in every state") {
  for (const bool waits : {true, false}) CHECK(CloseWithCallsInEveryState(waits) < 1s);
}

TEST_CASE("L9: 100,000 calls chained from completions do not grow the stack") { ChainCalls(100'000); }

TEST_CASE("L12: what the heartbeat costs an idle client") {
  Client client = MakeClient({.address = "127.0.0.1:1"});
  std::array<std::chrono::microseconds, 2> used{};
  for (const bool on : {false, true}) {
    REQUIRE(ConfigureRuntime({.heartbeat = on ? 450ms : 0ms}).ok());
    std::this_thread::sleep_for(2s);  // Until the callback threads have gone to sleep, or have not.
    const auto before = ProcessorTime();
    std::this_thread::sleep_for(20s);
    used[on ? 1 : 0] = (ProcessorTime() - before) / 20;
  }
  MESSAGE("CPU a second: ", used[0].count(), " us without it, ", used[1].count(), " us with it");
  CHECK(used[1] - used[0] < 2ms);
}

}  // namespace penstock::test
