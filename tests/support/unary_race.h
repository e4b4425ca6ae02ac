#pragma once

// Calls whose deadline and answer come at the same time.

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "support/client_calls.h"
#include "support/echo_requests.h"
#include "support/echo_service.h"

namespace penstock::test {

// Each completes once, answered or DEADLINE_EXCEEDED; about half of them either way.
inline void RaceAnswersWithDeadlines(int calls) {
  EchoServer server;
  Client client = MakeClient({.address = server.address(), .breaker = {.trip = [](const Counts&) { return false; }}});
  std::atomic<int> completions{0};
  std::atomic<int> answered{0};
  // Kept where about half of the calls are answered, however fast the machine is.
  std::atomic<std::int64_t> timeout{std::chrono::nanoseconds(2ms).count()};
  std::vector<std::atomic<int>> each(static_cast<std::size_t>(calls));
  for (int i = 0; i < calls; ++i) {
    client.Call(kUnary, Request(""), {.timeout = Duration(timeout.load())}, [&, i](const CallResult& result, v1::EchoResponse&) {
      ++each[static_cast<std::size_t>(i)];
      CHECK((result.ok() || result.status.error_code() == grpc::DEADLINE_EXCEEDED));
      if (result.ok()) ++answered;
      timeout = std::max<std::int64_t>(1'000, timeout * (result.ok() ? 95 : 105) / 100);
      ++completions;
    });
    if (i % 16 == 15) REQUIRE(Eventually([&] { return completions > i - 16; }));
  }
  REQUIRE(Eventually([&] { return completions == calls; }));
  REQUIRE(client.CloseAndWait(std::chrono::steady_clock::now() + kLimit));
  for (const std::atomic<int>& count : each) CHECK(count == 1);
  CHECK(answered > calls / 10);
  CHECK(answered < calls * 9 / 10);
}

}  // namespace penstock::test
