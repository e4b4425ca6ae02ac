// How unary calls end other than by their answer: cancelled, rejected, by their parent's end, with their client.

#include <doctest/doctest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "penstock/client/client.h"
#include "penstock/runtime.h"
#include "penstock/runtime/callback_thread.h"
#include "penstock/testing/manual_time.h"
#include "support/client_calls.h"
#include "support/echo_requests.h"
#include "support/echo_service.h"
#include "support/unary_race.h"

namespace penstock::test {
namespace {

using testing::ManualTime;

bool UntilOpen(EchoServer& server, std::uint64_t count) {
  return server.echo().WaitUntil([count](const EchoCounts& counts) { return counts.open_unary == count; });
}

// What the breaker counts must not be moved by a cancel.
void CheckUntouched(const Client& client) {
  CHECK(client.circuit_totals().failures == 0);
  CHECK(client.circuit_totals().successes == 0);
  CHECK(client.circuit_state() == CircuitState::kClosed);
}

}  // namespace

TEST_CASE("L8: a cancel during an attempt ends the call and tells the server; the breaker is untouched") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  Ending ending;
  CallHandle handle = client.Call(kUnary, Hanging(), {}, ending.Completion());
  REQUIRE(UntilOpen(server, 1));
  handle.Cancel();
  const CallResult& result = ending.Wait();
  CHECK(result.status.error_code() == grpc::CANCELLED);
  CHECK(result.status.error_message() == "cancelled by the caller");
  CHECK(result.reason == EndReason::kCancelled);
  CHECK(result.reached == Reached::kMaybeProcessed);
  CHECK(server.echo().WaitUntil([](const EchoCounts& counts) { return counts.cancelled == 1; }));
  handle.Cancel();
  CheckUntouched(client);
  CHECK(ending.completions() == 1);
}

TEST_CASE("L8: a cancel right after the call, before anything was sent") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  for (int i = 0; i < 200; ++i) {
    Ending ending;
    client.Call(kUnary, Hanging(), {}, ending.Completion()).Cancel();
    CHECK(ending.Wait().status.error_code() == grpc::CANCELLED);
  }
  CheckUntouched(client);
}

TEST_CASE("L8: a cancel between two attempts ends the wait at once, and no attempt follows") {
  EchoServer server;
  auto time = std::make_shared<ManualTime>();
  Client client = MakeClient({.address = server.address(), .time = time});
  Ending ending;
  CallHandle handle = client.Call(kUnary, Failing(grpc::UNAVAILABLE), {}, ending.Completion());
  REQUIRE(time->WaitForTimers(2));
  handle.Cancel();
  const CallResult& result = ending.Wait();
  CHECK(result.status.error_code() == grpc::CANCELLED);
  CHECK(result.reason == EndReason::kCancelled);
  CHECK(result.attempts == 1);
  CHECK(result.trailers == nullptr);
  time->Advance(1h);
  CHECK(server.echo().counts().unary == 1);
  CHECK(client.circuit_totals().failures == 1);
  CHECK(time->timers() == 0);
}

TEST_CASE("L8: cancelled from four threads at once while it ends, each call completes once") {
  EchoServer server;
  Client client = MakeClient({.address = server.address(), .max_attempts = 2, .backoff_base = 1ms, .breaker = {.trip = [](const Counts&) { return false; }}});
  for (int round = 0; round < 100; ++round) {
    v1::EchoRequest request = round % 2 == 0 ? Request("") : Failing(grpc::UNAVAILABLE);
    request.set_delay_ms(round % 3);
    Ending ending;
    CallHandle handle = client.Call(kUnary, std::move(request), {}, ending.Completion());
    std::atomic<int> ready{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        ++ready;
        while (ready < 4) std::this_thread::yield();
        handle.Cancel();
      });
    }
    for (std::thread& thread : threads) thread.join();
    ending.Wait();
    CHECK(ending.completions() == 1);
  }
  REQUIRE(client.CloseAndWait(std::chrono::steady_clock::now() + kLimit));
}

TEST_CASE("L6: five failures open the breaker; a rejection reaches no channel, says why and for how long") {
  EchoServer server;
  auto time = std::make_shared<ManualTime>();
  auto observer = std::make_shared<RecordingObserver>();
  Client client = MakeClient({.address = server.address(), .max_attempts = 1, .observer = observer, .time = time});
  for (int i = 0; i < 5; ++i) client.CallAndWait(kUnary, Failing(grpc::UNAVAILABLE));
  CHECK(client.circuit_state() == CircuitState::kOpen);
  time->Advance(5800ms);

  const auto rejected = client.CallAndWait(kUnary, Request(""));
  CHECK(rejected.result.status.error_code() == grpc::UNAVAILABLE);
  CHECK(rejected.result.status.error_message() == "call rejected: circuit open for another 4.2s");
  CHECK(rejected.result.reason == EndReason::kRejected);
  CHECK(rejected.result.reached == Reached::kNotSent);
  CHECK(rejected.result.attempts == 0);
  CHECK(rejected.result.rejected_for == 4200ms);
  CHECK(server.echo().counts().unary == 5);
  CHECK(client.circuit_totals().rejected == 1);

  time->Advance(4200ms);
  Ending probe;
  CallHandle handle = client.Call(kUnary, Hanging(), {}, probe.Completion());
  REQUIRE(UntilOpen(server, 1));
  const auto crowded = client.CallAndWait(kUnary, Request(""));
  CHECK(crowded.result.status.error_message() == "call rejected: half-open and every probe slot is taken");
  CHECK(crowded.result.reason == EndReason::kRejected);
  CHECK(crowded.result.rejected_for == Duration::zero());
  // A cancelled probe gives its slot back.
  handle.Cancel();
  probe.Wait();
  for (int i = 0; i < 3; ++i) CHECK(client.CallAndWait(kUnary, Request("")).ok());
  CHECK(client.circuit_state() == CircuitState::kClosed);
  std::lock_guard lock(observer->mutex);
  CHECK(observer->rejected.size() == 2);
  CHECK(std::count(observer->decisions.begin(), observer->decisions.end(), RetryDecision::kRetried) == 0);
}

TEST_CASE("L4: a later attempt that is rejected is the result, and what earlier ones reached stays") {
  EchoServer server;
  auto time = std::make_shared<ManualTime>();
  Client client = MakeClient({.address = server.address(), .breaker = {.consecutive_failures = 2}, .time = time});
  Ending ending;
  client.Call(kUnary, Failing(grpc::UNAVAILABLE), {}, ending.Completion());
  REQUIRE(time->WaitForTimers(2));
  client.CallAndWait(kUnary, Failing(grpc::UNAVAILABLE), {.max_attempts = 1});
  REQUIRE(client.circuit_state() == CircuitState::kOpen);
  time->AdvanceToNext();
  const CallResult& result = ending.Wait();
  CHECK(result.reason == EndReason::kRejected);
  CHECK(result.attempts == 1);
  CHECK(result.reached == Reached::kMaybeProcessed);
  CHECK(result.rejected_for > Duration::zero());
  CHECK(result.status.error_message().starts_with("call rejected: "));
}

TEST_CASE("U3: when the budget is low, no call is retried, and first attempts go on") {
  EchoServer server;
  Client client = MakeClient({.address = server.address(), .backoff_base = 1ns, .budget = {.max_tokens = 4},
                              .breaker = {.trip = [](const Counts&) { return false; }}});
  CHECK(client.CallAndWait(kUnary, Failing(grpc::UNAVAILABLE)).result.attempts == 2);
  const auto throttled = client.CallAndWait(kUnary, Failing(grpc::UNAVAILABLE));
  CHECK(throttled.result.attempts == 1);
  CHECK(throttled.result.reason == EndReason::kThrottled);
  CHECK(throttled.result.status.error_message() == "as asked");
}

TEST_CASE("C9: a once-only method is not retried once it may have reached a server; its options can say otherwise") {
  EchoServer server;
  Client client = MakeClient({.address = server.address(), .backoff_base = 1ns,
                              .breaker = {.trip = [](const Counts&) { return false; }}});
  const auto attempts = [&](auto method, Repeatability repeatability = Repeatability::kFromProto) {
    return client.CallAndWait(method, Failing(grpc::UNAVAILABLE), {.repeatability = repeatability}).result.attempts;
  };
  CHECK(attempts(kOnceOnly) == 1);
  CHECK(attempts(kOnceOnly, Repeatability::kRepeatable) == 3);
  CHECK(attempts(kUnary) == 3);
  CHECK(attempts(kUnary, Repeatability::kOnceOnly) == 1);
  CHECK(attempts(kRepeatable) == 3);
  CHECK(attempts(kIdempotent) == 3);
  Client strict = MakeClient({.address = server.address(), .backoff_base = 1ns,
                              .breaker = {.trip = [](const Counts&) { return false; }}, .retry_unmarked = false,
                              .methods = {{.method = kOnceOnly, .repeatability = Repeatability::kRepeatable}}});
  CHECK(strict.CallAndWait(kUnary, Failing(grpc::UNAVAILABLE)).result.attempts == 1);
  CHECK(strict.CallAndWait(kIdempotent, Failing(grpc::UNAVAILABLE)).result.attempts == 3);
  CHECK(strict.CallAndWait(kOnceOnly, Failing(grpc::UNAVAILABLE)).result.attempts == 3);
}

TEST_CASE("C9, L14: a once-only method is retried while no connection can be had: not sent") {
  Client client = MakeClient({.address = "127.0.0.1:1", .backoff_base = 1ns,
                              .breaker = {.trip = [](const Counts&) { return false; }}});
  const auto waited = client.CallAndWait(kOnceOnly, Request(""));
  CHECK(waited.result.status.error_code() == grpc::UNAVAILABLE);
  CHECK(waited.result.reached == Reached::kNotSent);
  CHECK(waited.result.attempts == 3);
}

TEST_CASE("L14: how far a request got") {
  EchoServer server;
  Client client = MakeClient({.address = server.address(), .max_attempts = 1});
  CHECK(client.CallAndWait(kUnary, Request("")).result.reached == Reached::kResponded);
  CHECK(client.CallAndWait(kUnary, Failing(grpc::NOT_FOUND)).result.reached == Reached::kResponded);
  CHECK(client.CallAndWait(kUnary, Failing(grpc::UNAVAILABLE)).result.reached == Reached::kMaybeProcessed);
  v1::EchoRequest request = Failing(grpc::UNAVAILABLE);
  (*request.mutable_trailers())["who"] = "the handler";
  const auto waited = client.CallAndWait(kUnary, request);
  CHECK(waited.result.reached == Reached::kResponded);
  CHECK(waited.trailers.find("who")->second == "the handler");
}

TEST_CASE("C11: a Classify that throws ends the call with INTERNAL, is told, and takes nothing else down") {
  EchoServer server;
  auto observer = std::make_shared<RecordingObserver>();
  std::atomic<int> asked{0};
  Client client = MakeClient({.address = server.address(),
                              .classify = [&](std::string_view method, const grpc::Status& status, const ServerMetadata& trailers) {
                                ++asked;
                                CHECK(method == "/penstock.test.v1.Echo/Unary");
                                if (status.error_code() == grpc::ABORTED) throw std::runtime_error("my own");
                                return DefaultClassify(method, status, trailers);
                              },
                              .observer = observer});
  const auto waited = client.CallAndWait(kUnary, Failing(grpc::ABORTED));
  CHECK(waited.result.status.error_code() == grpc::INTERNAL);
  CHECK(waited.result.status.error_message() == "Classify threw: my own");
  CHECK(client.circuit_totals().ignored == 1);
  CHECK(client.CallAndWait(kUnary, Request("on")).ok());
  CHECK(asked == 2);  // C1: once an attempt, OK included.
  std::lock_guard lock(observer->mutex);
  REQUIRE(observer->errors.size() == 1);
  CHECK(observer->errors[0] == "Classify threw: my own");
}

TEST_CASE("C5, C6: a Classify's retry-after over backoff_max, or below zero, ends the call") {
  EchoServer server;
  std::atomic<std::int64_t> after{0};
  Client client = MakeClient({.address = server.address(), .backoff_max = 100ms,
                              .classify = [&](auto, const auto&, const auto&) {
                                return Classification{Decision::kRetry, Outcome::kSuccess, Duration(after.load())};
                              }});
  after = Duration(101ms).count();
  const auto over = client.CallAndWait(kUnary, Failing(grpc::DATA_LOSS));
  CHECK(over.result.status.error_code() == grpc::DATA_LOSS);
  CHECK(over.result.attempts == 1);
  after = -1;
  CHECK(client.CallAndWait(kUnary, Failing(grpc::DATA_LOSS)).result.status.error_code() == grpc::INTERNAL);
}

TEST_CASE("C11, L9: a completion that throws is told and harms nothing; completions run on callback threads") {
  EchoServer server;
  auto observer = std::make_shared<RecordingObserver>();
  Client client = MakeClient({.address = server.address(), .observer = observer});
  std::mutex mutex;
  std::atomic<int> ran{0};
  {
    // L9: made under a lock that the completion takes.
    std::lock_guard lock(mutex);
    client.Call(kUnary, Request(""), {}, [&](const CallResult&, v1::EchoResponse&) {
      std::lock_guard inner(mutex);
      CHECK(OnCallbackThread());
      ++ran;
      throw std::runtime_error("mine");
    });
    client.Call(kUnary, Request(""), {.deadline = Deadline(TimePoint::min())}, [&](const CallResult& result, v1::EchoResponse&) {
      std::lock_guard inner(mutex);
      CHECK(OnCallbackThread());
      CHECK(result.reason == EndReason::kExpired);
      ++ran;
    });
  }
  REQUIRE(Eventually([&] { return ran == 2 && (std::lock_guard(observer->mutex), observer->errors.size() == 1); }));
  CHECK(observer->errors[0] == "a completion threw: mine");
  CHECK(client.CallAndWait(kUnary, Request("on")).ok());
}

TEST_CASE("L9: calls chained from completions, made by what fails at once too") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  std::atomic<int> left{2'000};
  detail::Waiter waiter;
  std::function<void()> next = [&] {
    const bool fails = left % 3 == 0;
    client.Call(kUnary, Request(""), fails ? CallOptions{.deadline = Deadline(TimePoint::min())} : CallOptions{},
                [&](const CallResult&, v1::EchoResponse&) { --left > 0 ? next() : waiter.Done(); });
  };
  next();
  waiter.Wait();
  CHECK(left == 0);
  REQUIRE(client.CloseAndWait(std::chrono::steady_clock::now() + kLimit));
}

TEST_CASE("L9, L13: destroying the client cancels what is in flight and returns; every completion runs once") {
  EchoServer server;
  auto time = std::make_shared<ManualTime>();
  std::vector<Ending> endings(60);
  {
    Client client = MakeClient({.address = server.address(), .breaker = {.trip = [](const Counts&) { return false; }}, .time = time});
    for (std::size_t i = 0; i < endings.size(); ++i) {
      client.Call(kUnary, i % 2 == 0 ? Hanging() : Failing(grpc::UNAVAILABLE), {}, endings[i].Completion());
    }
    // Half of them in an attempt, half in a wait.
    REQUIRE(UntilOpen(server, 30));
    REQUIRE(time->WaitForTimers(90));
  }
  for (const Ending& ending : endings) {
    CHECK(ending.Wait().status.error_message() == "the client was closed");
    CHECK(ending.completions() == 1);
  }
  CHECK(time->timers() == 0);
}

TEST_CASE("L9: CloseAndWait waits for completions, refuses on a callback thread, and later calls are CANCELLED") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  std::atomic<bool> refused{false};
  std::atomic<int> completions{0};
  for (int i = 0; i < 20; ++i) {
    client.Call(kUnary, Hanging(), {}, [&](const CallResult&, v1::EchoResponse&) {
      if (completions == 0) refused = !client.CloseAndWait(std::chrono::steady_clock::now() + kLimit);
      std::this_thread::sleep_for(1ms);
      ++completions;
    });
  }
  REQUIRE(UntilOpen(server, 20));
  CHECK(client.CloseAndWait(std::chrono::steady_clock::now() + kLimit));
  CHECK(completions == 20);
  CHECK(refused);
  const auto late = client.CallAndWait(kUnary, Request(""));
  CHECK(late.result.status.error_code() == grpc::CANCELLED);
  CHECK(late.result.status.error_message() == "the client was closed");
  CHECK(late.result.reason == EndReason::kCancelled);
  CHECK(server.echo().counts().unary == 20);
}

TEST_CASE("L13: the last client is dropped in its own completion") {
  EchoServer server;
  for (int i = 0; i < 20; ++i) {
    auto client = std::make_shared<Client>(MakeClient({.address = server.address()}));
    Ending ending;
    Client& called = *client;
    called.Call(kUnary, Request(""), {}, [client = std::move(client), done = ending.Completion()](const CallResult& result, v1::EchoResponse& response) mutable {
      client.reset();
      done(result, response);
    });
    CHECK(ending.Wait().ok());
  }
}

TEST_CASE("L18: the blocking form is refused on a callback thread") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  Ending ending;
  std::atomic<int> code{-1};
  client.Call(kUnary, Request(""), {}, [&, done = ending.Completion()](const CallResult& result, v1::EchoResponse& response) mutable {
    code = client.CallAndWait(kUnary, Request("")).result.status.error_code();
    done(result, response);
  });
  ending.Wait();
  CHECK(code == grpc::FAILED_PRECONDITION);
  CHECK(server.echo().counts().unary == 1);
}

TEST_CASE("L9, L18: what the breaker's settings and the log were given must not wait for calls either, and is refused it") {
  EchoServer server;
  std::atomic<int> told{0};
  std::atomic<int> may_wait{0};
  const auto hear = [&] {
    ++told;
    if (!OnCallbackThread()) ++may_wait;
  };
  std::atomic<bool> throws{true};
  SetLogSink([&](LogSeverity, const std::string&) { hear(); });
  {
    Client client = MakeClient({.address = server.address(),
                                .max_attempts = 1,
                                .breaker = {.open_for = 1ms,
                                            .trip =
                                                [&](const Counts&) {
                                                  hear();
                                                  if (throws.exchange(false)) throw std::runtime_error("mine");
                                                  return true;
                                                },
                                            .probe =
                                                [&](const Counts&) {
                                                  hear();
                                                  return ProbeDecision::kClose;
                                                },
                                            .observer = [&](const CircuitTransition&) { hear(); },
                                            .error_observer = [&](std::exception_ptr) { hear(); }}});
    (void)client.CallAndWait(kUnary, Failing(grpc::UNAVAILABLE));
    CHECK(told == 3);  // trip, which threw; the log and the observer of errors, which hear of it.
    (void)client.CallAndWait(kUnary, Failing(grpc::UNAVAILABLE));
    CHECK(told == 5);  // trip; the breaker has opened.
    REQUIRE(Eventually([&] { return client.circuit_state() == CircuitState::kHalfOpen; }));
    CHECK(client.CallAndWait(kUnary, Request("")).ok());
    CHECK(told == 8);  // half-open, by the thread that calls; probe; closed.
    REQUIRE(client.CloseAndWait(std::chrono::steady_clock::now() + kLimit));
  }
  SetLogSink({});
  CHECK(may_wait == 0);
}

TEST_CASE("L9: a deadline and an answer that race complete a call once") { RaceAnswersWithDeadlines(3'000); }

}  // namespace penstock::test
