// Unary calls against a real server: the forms, the options, and what a call ends with.

#include <doctest/doctest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "penstock/client/client.h"
#include "penstock/runtime/callback_thread.h"
#include "penstock/testing/manual_time.h"
#include "support/client_calls.h"
#include "support/echo_requests.h"
#include "support/echo_service.h"

namespace penstock::test {
namespace {

using detail::Waiter;
using testing::ManualTime;

}  // namespace

TEST_CASE("L15: a generated method is named, called by callback, and answers") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  Ending ending;
  client.Call(PENSTOCK_METHOD(v1::Echo, Unary), Request("hello"), {}, ending.Completion());
  const CallResult& result = ending.Wait();
  CHECK(result.ok());
  CHECK(result.reason == EndReason::kAnswered);
  CHECK(result.reached == Reached::kResponded);
  CHECK(result.attempts == 1);
  CHECK(ending.response().text() == "hello");
  CHECK(client.circuit_totals().successes == 1);
}

TEST_CASE("L15: the path of each kind of method is known when it is compiled") {
  static_assert(kUnary.info->path == "/penstock.test.v1.Echo/Unary");
  constexpr ServerStreamMethod down = PENSTOCK_METHOD(v1::Echo, Down);
  static_assert(down.info->path == "/penstock.test.v1.Echo/Down");
  constexpr ClientStreamMethod up = PENSTOCK_METHOD(v1::Echo, Up);
  static_assert(up.info->path == "/penstock.test.v1.Echo/Up");
  constexpr BidiMethod bidi = PENSTOCK_METHOD(v1::Echo, Bidi);
  static_assert(bidi.info->path == "/penstock.test.v1.Echo/Bidi");
  CHECK(bidi.info->service() == "penstock.test.v1.Echo");
  CHECK(bidi.info->method() == "Bidi");
  CHECK(PENSTOCK_METHOD(v1::Echo, Bidi).info == bidi.info);
}

TEST_CASE("L11: an embedded reactor is started again from its own end, and may delete itself there") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  struct Reactor final : UnaryReactor<v1::EchoRequest, v1::EchoResponse> {
    Reactor(Client& of, std::atomic<int>& ends, Waiter& waiter) : client(of), ends(ends), waiter(waiter) {}
    void OnDone(const CallResult& result) override {
      CHECK(result.ok());
      CHECK(response().text() == request().text());
      CHECK(result.trailers != nullptr);
      if (++ends < 100) {
        request().set_text(std::to_string(ends.load()));
        CHECK(client.Start(kUnary, *this));
        return;
      }
      Waiter& last = waiter;
      delete this;
      last.Done();
    }
    Client& client;
    std::atomic<int>& ends;
    Waiter& waiter;
  };
  std::atomic<int> ends{0};
  Waiter waiter;
  client.Start(kUnary, *new Reactor(client, ends, waiter));
  waiter.Wait();
  CHECK(ends == 100);
  CHECK(server.echo().counts().unary == 100);
}

TEST_CASE("L8, L9: an embedded reactor is cancelled, and refused by a closed client") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  struct Reactor final : UnaryReactor<v1::EchoRequest, v1::EchoResponse> {
    void OnDone(const CallResult& result) override {
      status = result.status;
      waiter->Done();
    }
    grpc::Status status;
    std::unique_ptr<Waiter> waiter = std::make_unique<Waiter>();
  };
  Reactor reactor;
  reactor.Cancel();  // Nothing is under way.
  reactor.request() = Hanging();
  client.Start(kUnary, reactor);
  REQUIRE(server.echo().WaitUntil([](const EchoCounts& counts) { return counts.open_unary == 1; }));
  CHECK_FALSE(client.Start(kUnary, reactor));  // It has not ended.
  reactor.Cancel();
  reactor.waiter->Wait();
  CHECK(reactor.status.error_code() == grpc::CANCELLED);

  client.Close();
  reactor.waiter = std::make_unique<Waiter>();
  client.Start(kUnary, reactor);
  reactor.waiter->Wait();
  CHECK(reactor.status.error_message() == "the client was closed");
}

TEST_CASE("L11: an embedded reactor is started again by any thread the moment its end is told, and not before") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  struct Reactor final : UnaryReactor<v1::EchoRequest, v1::EchoResponse> {
    void OnDone(const CallResult& result) override {
      if (!result.ok()) ++failed;
      ++ends;
    }
    std::atomic<int> ends{0}, failed{0};
  } reactor;
  constexpr int kCalls = 3'000;
  std::atomic<int> starts{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&] {
      while (starts < kCalls) {
        if (client.Start(kUnary, reactor)) ++starts;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(Eventually([&] { return reactor.ends == starts; }));
  CHECK(reactor.failed == 0);
  CHECK(client.CloseAndWait(std::chrono::steady_clock::now() + kLimit));
  CHECK(server.echo().counts().unary == static_cast<std::uint64_t>(starts.load()));
}

TEST_CASE("L11: an embedded reactor that has ended holds nothing of what its options brought") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  struct Reactor final : UnaryReactor<v1::EchoRequest, v1::EchoResponse> {
    void OnDone(const CallResult&) override {
      held = !scope.expired();
      waiter.Done();
    }
    std::weak_ptr<CallScope> scope;
    bool held = true;
    Waiter waiter;
  } reactor;
  auto scope = CallScope::Create(TimePoint::max(), {});
  reactor.scope = scope;
  client.Start(kUnary, reactor, {.parent = std::move(scope)});
  reactor.waiter.Wait();
  CHECK_FALSE(reactor.held);
}

TEST_CASE("L3: the timeout ends a call at its time, not before; the server hears of it; it is a failure") {
  EchoServer server;
  auto time = std::make_shared<ManualTime>();
  Client client = MakeClient({.address = server.address(), .timeout = 10s, .time = time});
  Ending ending;
  client.Call(kUnary, Hanging(), {}, ending.Completion());
  REQUIRE(server.echo().WaitUntil([](const EchoCounts& counts) { return counts.open_unary == 1; }));
  time->Advance(10s - 1ns);
  CHECK_FALSE(ending.ended());
  CHECK(server.echo().counts().cancelled == 0);
  time->Advance(1ns);
  const CallResult& result = ending.Wait();
  CHECK(result.status.error_code() == grpc::DEADLINE_EXCEEDED);
  CHECK(result.reason == EndReason::kExpired);
  CHECK(result.reached == Reached::kMaybeProcessed);
  CHECK(result.attempts == 1);
  CHECK(client.circuit_totals().failures == 1);
  CHECK(server.echo().WaitUntil([](const EchoCounts& counts) { return counts.cancelled == 1; }));
  CHECK(time->timers() == 0);
}

TEST_CASE("L3: the earliest of timeout and deadline counts, a later deadline does not extend it; both go out") {
  EchoServer server;
  auto time = std::make_shared<ManualTime>();
  Client client = MakeClient(
      {.address = server.address(), .timeout = 10s, .methods = {{.method = kRepeatable, .timeout = 3s}}, .time = time});
  struct Case {
    CallOptions options;
    bool repeatable;
    Duration expected;
  };
  for (const Case& tried : {Case{{}, false, 10s}, Case{{}, true, 3s}, Case{{.deadline = time->Now() + 4s}, false, 4s},
                            Case{{.deadline = time->Now() + 1h}, false, 10s}, Case{{.timeout = 20s}, true, 20s},
                            Case{{.deadline = time->Now() + 2s, .timeout = 20s}, true, 2s},
                            Case{{.deadline = std::chrono::system_clock::now() + 5s}, false, 5s}}) {
    CHECK(time->timers() == 0);
    Ending ending;
    v1::EchoRequest request = Request("");
    tried.repeatable ? client.Call(kRepeatable, request, tried.options, ending.Completion())
                     : client.Call(kUnary, request, tried.options, ending.Completion());
    ending.Wait();
    const auto left = std::chrono::milliseconds(ending.response().remaining_ms());
    // On the wire a timeout has few digits and is rounded up.
    CHECK(left < tried.expected + 200ms);
    CHECK(left > tried.expected - 900ms);
  }
}

TEST_CASE("L3: deadlines at every end of the range fail at once without an attempt, or hold for ever") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  client.CallAndWait(kUnary, Request("connect"));
  const auto before = server.echo().counts().unary;
  using WallClock = std::chrono::system_clock;
  for (const Deadline deadline :
       {Deadline(WallClock::time_point::min()), Deadline(WallClock::time_point(-1s)), Deadline(WallClock::time_point()),
        Deadline(WallClock::now() - 1s), Deadline(TimePoint::min()), Deadline(TimePoint()),
        Deadline(SteadyClock().Now() - 1s), Deadline(SteadyClock().Now())}) {
    const TimePoint start = SteadyClock().Now();
    const auto waited = client.CallAndWait(kUnary, Request(""), {.deadline = deadline});
    // 5 ms is the rule; a sanitizer and a busy machine are let take longer.
    CHECK(SteadyClock().Now() - start < 1s);
    CHECK(waited.result.status.error_code() == grpc::DEADLINE_EXCEEDED);
    CHECK(waited.result.reason == EndReason::kExpired);
    CHECK(waited.result.reached == Reached::kNotSent);
    CHECK(waited.result.attempts == 0);
  }
  CHECK(server.echo().counts().unary == before);
  CHECK(client.circuit_totals().failures == 0);
  CHECK(client.circuit_totals().ignored == 0);
  for (const Deadline deadline : {Deadline(WallClock::time_point::max()), Deadline(TimePoint::max())}) {
    const auto waited = client.CallAndWait(kUnary, Request(""), {.deadline = deadline, .timeout = Duration::max()});
    CHECK(waited.ok());
    // The test server says -1 for no deadline, or what is left of one of centuries.
    CHECK((waited.response.remaining_ms() == -1 || waited.response.remaining_ms() > 1'000'000'000));
  }
  CHECK(client.CallAndWait(kUnary, Request(""), {.deadline = Deadline(TimePoint::max() - 1ns), .timeout = Duration::max()}).ok());
}

TEST_CASE("L4, K1: a failing call is tried three times, with the waits drawn, and ends with the last status") {
  EchoServer server;
  auto time = std::make_shared<ManualTime>();
  auto observer = std::make_shared<RecordingObserver>();
  Client client = MakeClient({.address = server.address(), .observer = observer, .time = time});
  Ending ending;
  client.Call(kUnary, Failing(grpc::UNAVAILABLE, "busy"), {}, ending.Completion());
  for (int retry = 0; retry < 2; ++retry) {
    // The deadline's timer and the wait's.
    REQUIRE(time->WaitForTimers(2));
    CHECK(time->NextDue() <= time->Now() + (retry == 0 ? 100ms : 200ms));
    time->AdvanceToNext();
  }
  const CallResult& result = ending.Wait();
  CHECK(result.status.error_code() == grpc::UNAVAILABLE);
  CHECK(result.status.error_message() == "busy");
  CHECK(result.reason == EndReason::kExhausted);
  CHECK(result.attempts == 3);
  CHECK(server.echo().counts().unary == 3);
  CHECK(client.circuit_totals().failures == 3);
  CHECK(client.budget_tokens() == doctest::Approx(97));
  std::lock_guard lock(observer->mutex);
  CHECK(observer->attempts == std::vector<std::string>{"/penstock.test.v1.Echo/Unary 1", "/penstock.test.v1.Echo/Unary 2",
                                                       "/penstock.test.v1.Echo/Unary 3"});
  CHECK(observer->codes == std::vector<grpc::StatusCode>(3, grpc::UNAVAILABLE));
  CHECK(observer->outcomes == std::vector<Outcome>(3, Outcome::kFailure));
  CHECK(observer->decisions ==
        std::vector<RetryDecision>{RetryDecision::kRetried, RetryDecision::kRetried, RetryDecision::kExhausted});
}

TEST_CASE("L4: retries are off with one attempt, by client, by method and by call") {
  EchoServer server;
  Client client = MakeClient({.address = server.address(), .max_attempts = 1, .backoff_base = 1ns,
                              .methods = {{.method = kRepeatable, .max_attempts = 2}}});
  CHECK(client.CallAndWait(kUnary, Failing(grpc::UNAVAILABLE)).result.attempts == 1);
  CHECK(client.CallAndWait(kRepeatable, Failing(grpc::UNAVAILABLE)).result.attempts == 2);
  CHECK(client.CallAndWait(kRepeatable, Failing(grpc::UNAVAILABLE), {.max_attempts = 1}).result.attempts == 1);
  CHECK(client.circuit_totals().failures == 4);
}

}  // namespace penstock::test
