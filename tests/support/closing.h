#pragma once

// How clients end with calls in every state, and calls that make the next one: shared by the quick tests and the long series.

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "penstock/client/client.h"
#include "support/client_calls.h"
#include "support/echo_requests.h"
#include "support/echo_service.h"

namespace penstock::test {

// Calls that count how often each completes.
struct ManyCalls {
  explicit ManyCalls(int count) : completions(static_cast<std::size_t>(count)) {}

  void Begin(
      Client& client, const v1::EchoRequest& request,
      const std::function<CallOptions()>& options = [] { return CallOptions{}; }) {
    for (std::atomic<int>& one : completions) {
      client.Call(PENSTOCK_METHOD(v1::Echo, Repeatable), request, options(),
                  [this, &one](const CallResult& result, v1::EchoResponse&) {
                    ++one;
                    if (result.reason == EndReason::kCancelled) ++cancelled;
                    ++all;
                  });
    }
  }
  void CheckEachOnce() const {
    CHECK(all == static_cast<int>(completions.size()));
    for (const std::atomic<int>& one : completions) CHECK(one == 1);
  }

  std::vector<std::atomic<int>> completions;
  std::atomic<int> cancelled{0};
  std::atomic<int> all{0};
};

// How long it takes, until the last completion has run, with 100 calls each in flight, in backoff and without a connection; by
// CloseAndWait, or by dropping the clients.
inline std::chrono::nanoseconds CloseWithCallsInEveryState(bool waits) {
  EchoServer server;
  ManyCalls in_flight(100), in_backoff(100), waiting(100);
  const ClientSettings settings{.address = "",
                                .max_attempts = 100,
                                .backoff_base = 60s,
                                .backoff_max = 60s,
                                .budget = {.max_tokens = 1000},
                                .breaker = CircuitBreakerSettings{.trip = [](const Counts&) { return false; }}};
  ClientSettings reachable = settings;
  reachable.address = server.address();
  reachable.timeout = 1h;
  ClientSettings not_reachable = settings;
  not_reachable.address = "127.0.0.1:1";
  not_reachable.timeout = 1h;
  auto client = std::make_unique<Client>(MakeClient(reachable));
  auto unreachable = std::make_unique<Client>(MakeClient(not_reachable));
  in_flight.Begin(*client, Hanging());
  in_backoff.Begin(*client, Failing(grpc::UNAVAILABLE));
  waiting.Begin(*unreachable, {}, [] { return CallOptions{.wait_for_ready = true}; });
  REQUIRE(server.echo().WaitUntil([](const EchoCounts& counts) {
    const auto calls = counts.calls.find("Repeatable");
    return calls != counts.calls.end() && calls->second >= 200;
  }));
  const auto begin = std::chrono::steady_clock::now();
  if (waits) {
    CHECK(client->CloseAndWait(begin + kLimit));
    CHECK(unreachable->CloseAndWait(begin + kLimit));
  } else {
    client.reset();
    unreachable.reset();
  }
  CHECK(Eventually([&] { return in_flight.all == 100 && in_backoff.all == 100 && waiting.all == 100; }));
  const auto took = std::chrono::steady_clock::now() - begin;
  MESSAGE("closed after ", took / 1ms, " ms");
  in_flight.CheckEachOnce();
  in_backoff.CheckEachOnce();
  waiting.CheckEachOnce();
  CHECK(in_flight.cancelled == 100);
  CHECK(waiting.cancelled == 100);
  return took;
}

// Each made by the completion of the one before: on a client that refuses them at once, and on one that answers.
inline void ChainCalls(int length) {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  client.Close();  // The fastest ends there are.
  Client open = MakeClient({.address = server.address()});
  struct Chain {
    Client& client;
    const int length;
    std::atomic<int> done{0};
    std::atomic<std::uintptr_t> lowest{~std::uintptr_t{0}};
    std::atomic<std::uintptr_t> highest{0};
    std::thread::id thread{};
    std::promise<void> finished{};
    void Next() {
      client.Call(PENSTOCK_METHOD(v1::Echo, Repeatable), {}, {}, [this](const CallResult&, v1::EchoResponse&) {
        // All on one thread: else the stacks cannot be compared.
        if (thread == std::thread::id()) thread = std::this_thread::get_id();
        if (thread == std::this_thread::get_id()) {
          const auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
          lowest = std::min(lowest.load(), here);
          highest = std::max(highest.load(), here);
        }
        if (++done == length) return finished.set_value();
        Next();
      });
    }
  };
  for (Client* which : {&client, &open}) {
    Chain chain{.client = *which, .length = length};
    chain.Next();
    REQUIRE(chain.finished.get_future().wait_for(120s) == std::future_status::ready);
    CHECK(chain.highest - chain.lowest < 64 * 1024);
  }
}

}  // namespace penstock::test
