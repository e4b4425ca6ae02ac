// Subscriptions against plain grpc++ servers behind a router, under the manual clock where time matters.
#include <doctest/doctest.h>

#include <atomic>
#include <future>
#include <thread>

#include "penstock/client/client.h"
#include "penstock/testing/manual_time.h"
#include "penstock/testing/router.h"
#include "support/client_calls.h"
#include "support/echo_service.h"
#include "support/stream_reactors.h"

using namespace penstock;
using namespace std::chrono_literals;
using test::EchoRequest;
using test::EchoResponse;
using test::EchoServer;
using test::Eventually;
using test::Heard;
using testing::ManualTime;
using testing::Router;
using Strings = std::vector<std::string>;

namespace {

constexpr auto kDown = PENSTOCK_METHOD(test::v1::Echo, Down);
constexpr auto kBidi = PENSTOCK_METHOD(test::v1::Echo, Bidi);
const grpc::Status kShuttingDown(grpc::StatusCode::UNAVAILABLE, "server is shutting down");

Client MakeClient(ClientSettings settings) {
  settings.plaintext = true;
  Result<Client> client = Client::Create(std::move(settings));
  REQUIRE(client.ok());
  return std::move(client).value();
}

// A service that sends a message at once and then stays quiet.
EchoRequest OneThenQuiet() {
  EchoRequest request;
  request.set_count(1);
  request.set_delay_ms(-1);
  return request;
}

// What a subscription's hooks hear, in order: "message <pod>", "reopen", "gap <attempts>", "open", "end <code>".
struct Watch {
  Heard heard;
  CallResult result;
  GapDecision decision = GapDecision::kGoOn;
  std::function<void(EchoResponse&)> on_message = [](EchoResponse&) {};

  // The hooks refer to it until the end; the subscription that has them is declared later, and so cancelled before.
  ~Watch() {
    if (used) heard.WaitFor("end");
  }
  bool used = false;

  SubscriptionHooks<EchoRequest, EchoResponse> Hooks() {
    used = true;
    return {.on_message =
                [this](EchoResponse& message) {
                  on_message(message);
                  heard.Add("message " + message.pod());
                },
            .before_reopen = [this](EchoRequest&) { heard.Add("reopen"); },
            .on_gap =
                [this](const Gap& gap) {
                  heard.Add("gap " + std::to_string(gap.attempts));
                  return decision;
                },
            .on_open = [this] { heard.Add("open"); },
            .on_end =
                [this](const CallResult& ended) {
                  result = ended;
                  result.headers = result.trailers = nullptr;
                  heard.Add("end");
                }};
  }
};

}  // namespace

TEST_CASE("S8: a subscription goes on at once on the next server when its stream is ended by a shutdown") {
  EchoServer old_pod(test::EchoOptions{.pod = "old"});
  EchoServer new_pod(test::EchoOptions{.pod = "new"});
  auto router = *Router::Create({.targets = {old_pod.port()}});
  Client client = MakeClient({.address = router->address()});
  Watch watch;
  Subscription subscription = client.Subscribe(kDown, OneThenQuiet(), watch.Hooks());
  REQUIRE(watch.heard.WaitFor("message old"));
  router->SetTargets({new_pod.port()});
  std::thread shutdown([&] { old_pod.Shutdown(10s); });
  REQUIRE(old_pod.echo().WaitUntil([](const auto& counts) { return counts.open_streams == 1; }));
  std::this_thread::sleep_for(50ms);
  old_pod.echo().EndStreams(kShuttingDown);
  REQUIRE(watch.heard.WaitFor("message new"));
  shutdown.join();
  CHECK(watch.heard.all() == Strings{"open", "message old", "gap 0", "reopen", "open", "message new"});
  subscription.Cancel();
  REQUIRE(watch.heard.WaitFor("end"));
  CHECK(watch.result.status.error_code() == grpc::StatusCode::CANCELLED);
  CHECK(watch.result.reason == EndReason::kCancelled);
  CHECK(client.circuit_state() == CircuitState::kClosed);
  CHECK(client.circuit_totals().failures == 0);
}

TEST_CASE("S8: what a bidi subscription's server is to know after the request is written once on_write_done tells of the request") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  using Bidi = decltype(client.Subscribe(kBidi, {}, SubscriptionHooks<EchoRequest, EchoResponse>{}));
  for (int i = 0; i < 200; ++i) {
    Heard heard;
    std::promise<Bidi*> made;
    std::shared_future<Bidi*> subscribed = made.get_future().share();
    std::atomic<bool> second{false};
    EchoRequest request;
    request.set_text("first");
    Bidi subscription = client.Subscribe(
        kBidi, request,
        {.on_message = [&](EchoResponse& message) { heard.Add(message.text()); },
         .on_write_done =
             [&](bool ok) {
               if (!ok || second.exchange(true)) return;
               EchoRequest more;
               more.set_text("second");
               if (subscribed.get()->Write(std::move(more)) != StreamStart::kStarted) heard.Add("refused");
             },
         .on_end = [&](const CallResult&) { heard.Add("end"); }});
    made.set_value(&subscription);
    REQUIRE(heard.WaitFor("second"));
    subscription.Cancel();
    REQUIRE(heard.WaitFor("end"));
    CHECK(heard.all() == Strings{"first", "second", "end"});
  }
}

TEST_CASE("S8: a bidi subscription sends its request first on each stream, and further messages when asked") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  Watch watch;
  auto hooks = watch.Hooks();
  hooks.on_write_done = [&](bool ok) { watch.heard.Add(ok ? "written" : "lost"); };
  EchoRequest request;
  request.set_text("hello");
  auto subscription = client.Subscribe(kBidi, request, std::move(hooks));
  REQUIRE(watch.heard.WaitFor("message pod", 1));
  REQUIRE(watch.heard.WaitFor("written", 1));
  CHECK(subscription.Write(request) == StreamStart::kStarted);
  REQUIRE(watch.heard.WaitFor("message pod", 2));
  REQUIRE(watch.heard.WaitFor("written", 2));
  server.echo().EndStreams(kShuttingDown);
  REQUIRE(watch.heard.WaitFor("message pod", 3));
  CHECK(watch.heard.Count("reopen") == 1);
  subscription.Cancel();
  REQUIRE(watch.heard.WaitFor("end"));
}

TEST_CASE("S10: a write where there is no subscription, or no more, is refused") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  Watch watch;
  using Bidi = decltype(client.Subscribe(kBidi, {}, watch.Hooks()));
  Bidi none;
  CHECK(none.Write({}) == StreamStart::kNotOpen);
  Bidi first = client.Subscribe(kBidi, {}, watch.Hooks());
  Bidi second = std::move(first);
  CHECK(first.Write({}) == StreamStart::kNotOpen);
  none = std::move(second);
  CHECK(second.Write({}) == StreamStart::kNotOpen);
  none.Cancel();
  REQUIRE(watch.heard.WaitFor("end"));
  CHECK(none.Write({}) == StreamStart::kNotOpen);
}

TEST_CASE("S8: it ends on any other status, with that status, its trailers and no reopening") {
  EchoServer server;
  for (const int code : {0, 3, 5, 13}) {
    CAPTURE(code);
    Client client = MakeClient({.address = server.address()});
    Watch watch;
    EchoRequest request;
    request.set_count(1);
    request.set_code(code);
    Subscription subscription = client.Subscribe(kDown, request, watch.Hooks());
    REQUIRE(watch.heard.WaitFor("end"));
    CHECK(watch.result.status.error_code() == code);
    CHECK(watch.result.reason == (code == 0 ? EndReason::kAnswered : EndReason::kStopped));
    CHECK(watch.heard.all() == Strings{"open", "message pod", "end"});
  }
}

TEST_CASE("S8: it goes on where Classify says retry, after UNAVAILABLE before the opening, and after CANCELLED by the server before it") {
  EchoServer server;
  for (const int code : {10, 14, 1}) {
    CAPTURE(code);
    auto time = std::make_shared<ManualTime>();
    Client client = MakeClient({.address = server.address(),
                                .classify =
                                    [](std::string_view method, const grpc::Status& status, const ServerMetadata& trailers) {
                                      if (status.error_code() == grpc::ABORTED) return Classification{Decision::kRetry, Outcome::kSuccess, {}};
                                      return DefaultClassify(method, status, trailers);
                                    },
                                .time = time});
    Watch watch;
    EchoRequest request;
    request.set_code(code);
    Subscription subscription = client.Subscribe(kDown, request, watch.Hooks());
    for (std::size_t attempt = 1; attempt <= 4; ++attempt) {
      REQUIRE(watch.heard.WaitFor("gap " + std::to_string(attempt)));
      const auto limit = std::chrono::steady_clock::now() + 30s;
      while (watch.heard.Count("reopen") < attempt && std::chrono::steady_clock::now() < limit) {
        if (time->WaitForTimer(time->Now() + 10s, 10ms)) time->AdvanceToNext();
      }
      REQUIRE(watch.heard.Count("reopen") >= attempt);
    }
    CHECK(client.circuit_state() == CircuitState::kClosed);
    subscription.Cancel();
    REQUIRE(watch.heard.WaitFor("end"));
    CHECK(watch.heard.Count("end") == 1);
  }
}

TEST_CASE("S8: a stream that lands on the old pod and ends there before its first message is no gap of its own") {
  EchoServer old_pod(test::EchoOptions{.pod = "old", .headers_at_once = true});
  EchoServer new_pod(test::EchoOptions{.pod = "new", .headers_at_once = true});
  auto router = *Router::Create({.targets = {old_pod.port()}});
  Client client = MakeClient({.address = router->address(), .backoff_base = 1ms});
  Watch watch;
  Subscription subscription = client.Subscribe(kDown, OneThenQuiet(), watch.Hooks());
  REQUIRE(watch.heard.WaitFor("message old"));
  old_pod.echo().EndStreams(kShuttingDown, true);  // Later ones as well, as they open.
  REQUIRE(watch.heard.WaitFor("reopen", 3));
  router->SetTargets({new_pod.port()});
  router->CutTarget(old_pod.port());
  REQUIRE(watch.heard.WaitFor("message new"));
  CHECK(watch.heard.Count("gap 0") == 1);
  CHECK(client.circuit_totals().failures == 0);
}

TEST_CASE("S8: a hook may end it in a gap, with the status of the stream") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  Watch watch;
  watch.decision = GapDecision::kEnd;
  Subscription subscription = client.Subscribe(kDown, OneThenQuiet(), watch.Hooks());
  REQUIRE(watch.heard.WaitFor("message pod"));
  server.echo().EndStreams(kShuttingDown);
  REQUIRE(watch.heard.WaitFor("end"));
  CHECK(watch.result.status.error_message() == "server is shutting down");
  CHECK(watch.heard.all() == Strings{"open", "message pod", "gap 0", "end"});
}

TEST_CASE("S8: give_up_after and the deadline end it while it waits") {
  for (const bool deadline : {false, true}) {
    CAPTURE(deadline);
    EchoServer server;
    auto time = std::make_shared<ManualTime>();
    Client client = MakeClient({.address = server.address(), .time = time});
    Watch watch;
    EchoRequest request;
    request.set_code(14);
    SubscriptionOptions options;
    if (deadline) {
      options.call.deadline = time->Now() + 3s;
    } else {
      options.give_up_after = 3s;
    }
    const TimePoint end = time->Now() + 3s;
    Subscription subscription = client.Subscribe(kDown, request, watch.Hooks(), options);
    while (time->Now() < end) {
      if (time->WaitForTimer(end, 100ms)) time->AdvanceToNext();
    }
    CHECK(time->Now() == end);
    REQUIRE(watch.heard.WaitFor("end"));
    CHECK(watch.result.status.error_code() == (deadline ? grpc::StatusCode::DEADLINE_EXCEEDED : grpc::StatusCode::UNAVAILABLE));
    CHECK(watch.result.reason == (deadline ? EndReason::kExpired : EndReason::kExhausted));
  }
}

TEST_CASE("S8: its deadline ends it behind a message that waits for the end of a pause") {
  // A stream that is ended before its second message has arrived is opened again: then there is no message to wait for.
  bool parked = false;
  for (int turn = 0; turn < 20 && !parked; ++turn) {
    EchoServer server;
    auto time = std::make_shared<ManualTime>();
    Client client = MakeClient({.address = server.address(), .time = time});
    Watch watch;
    std::atomic<bool> assigned{false};
    Subscription subscription;
    watch.on_message = [&](EchoResponse&) {
      while (!assigned) std::this_thread::yield();
      subscription.Pause();
    };
    EchoRequest request;
    request.set_count(2);
    request.set_delay_ms(-1);
    SubscriptionOptions options;
    options.call.deadline = time->Now() + 3s;
    subscription = client.Subscribe(kDown, request, watch.Hooks(), options);
    assigned = true;
    REQUIRE(watch.heard.WaitFor("message pod"));
    std::this_thread::sleep_for(turn * 5ms);
    server.echo().EndStreams(kShuttingDown);
    REQUIRE(server.echo().WaitUntil([](const auto& counts) { return counts.open_streams == 0 || counts.streams > 1; }));
    // The stream's own deadline goes with its end.
    REQUIRE(Eventually([&] { return time->timers() == 1 || watch.heard.Count("gap 0") == 1; }));
    parked = watch.heard.Count("gap 0") == 0;
    if (!parked) continue;
    time->Advance(3s - 1ns);
    CHECK(watch.heard.Count("end") == 0);
    time->Advance(1ns);
    REQUIRE(watch.heard.WaitFor("end"));
    CHECK(watch.result.status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
    CHECK(watch.result.reason == EndReason::kExpired);
    CHECK(watch.heard.Count("message pod") == 1);
  }
  CHECK(parked);
}

TEST_CASE("S8: while it is paused nothing is delivered; what waits is delivered in order when it goes on, across a reopening too") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  std::vector<int> sequence;
  std::atomic<int> inside{0};
  std::atomic<bool> overlapped{false};
  Watch watch;
  Subscription subscription;
  watch.on_message = [&](EchoResponse& message) {
    overlapped = overlapped || ++inside > 1;
    sequence.push_back(message.sequence());
    --inside;
  };
  EchoRequest request;
  request.set_count(1000);
  request.set_interval_ms(1);
  request.set_delay_ms(-1);
  subscription = client.Subscribe(kDown, request, watch.Hooks());
  REQUIRE(watch.heard.WaitFor("message pod", 3));
  subscription.Pause();
  std::this_thread::sleep_for(5ms);  // A delivery that had begun.
  const std::size_t paused_at = watch.heard.Count("message pod");
  std::this_thread::sleep_for(30ms);
  CHECK(watch.heard.Count("message pod") == paused_at);
  subscription.Resume();
  REQUIRE(watch.heard.WaitFor("message pod", paused_at + 20));
  // A stream that ends while a message waits.
  subscription.Pause();
  std::this_thread::sleep_for(20ms);
  server.echo().EndStreams(kShuttingDown);
  std::this_thread::sleep_for(20ms);
  CHECK(watch.heard.Count("reopen") == 0);
  subscription.Resume();
  REQUIRE(watch.heard.WaitFor("reopen"));
  REQUIRE(watch.heard.WaitFor("open", 2));
  subscription.Cancel();
  REQUIRE(watch.heard.WaitFor("end"));
  CHECK_FALSE(overlapped);
  // Each stream counts from 0, without a hole.
  for (std::size_t i = 1; i < sequence.size(); ++i) CHECK((sequence[i] == sequence[i - 1] + 1 || sequence[i] == 0));
}

TEST_CASE("S8: a Resume in on_end, or after it, hands over no message that waited when it was cancelled") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  // Several turns: the thread that a delivery would come on may be the one that runs on_end.
  for (int turn = 0; turn < 15; ++turn) {
    std::atomic<bool> ended{false};
    std::atomic<int> late{0};
    std::atomic<bool> assigned{false};
    Watch watch;
    Subscription subscription;
    watch.on_message = [&](EchoResponse&) {
      while (!assigned) std::this_thread::yield();
      subscription.Pause();
      late += ended;
    };
    auto hooks = watch.Hooks();
    hooks.on_end = [&, on_end = std::move(hooks.on_end)](const CallResult& result) {
      ended = true;
      subscription.Resume();
      std::this_thread::sleep_for(10ms);  // Another thread would hand it over meanwhile.
      on_end(result);
    };
    EchoRequest request;
    request.set_count(2);
    request.set_delay_ms(-1);
    subscription = client.Subscribe(kDown, request, std::move(hooks));
    assigned = true;
    REQUIRE(watch.heard.WaitFor("message pod"));
    std::this_thread::sleep_for(10ms);  // The second message comes and waits.
    subscription.Cancel();
    REQUIRE(watch.heard.WaitFor("end"));
    subscription.Pause();
    subscription.Resume();
    CHECK(late == 0);
    CHECK(watch.heard.Count("message pod") == 1);
    CHECK(watch.heard.all().back() == "end");
  }
  CHECK(client.CloseAndWait(std::chrono::steady_clock::now() + 30s));
}

TEST_CASE("S8: whoever resumes while another cancels, on_end is the last") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  for (int turn = 0; turn < 100; ++turn) {
    std::atomic<bool> ended{false};
    std::atomic<int> late{0};
    Watch watch;
    watch.on_message = [&](EchoResponse&) { late += ended; };
    auto hooks = watch.Hooks();
    hooks.on_end = [&, on_end = std::move(hooks.on_end)](const CallResult& result) {
      ended = true;
      on_end(result);
    };
    EchoRequest request;
    request.set_count(1000);
    request.set_delay_ms(-1);
    Subscription subscription = client.Subscribe(kDown, request, std::move(hooks));
    REQUIRE(watch.heard.WaitFor("message pod"));
    std::thread resumes([&] {
      while (watch.heard.Count("end") == 0) {
        subscription.Pause();
        std::this_thread::yield();
        subscription.Resume();
      }
    });
    std::thread cancels([&] { subscription.Cancel(); });
    if (turn % 2 == 0) server.echo().EndStreams(kShuttingDown);
    cancels.join();
    const bool over = watch.heard.WaitFor("end");
    resumes.join();
    REQUIRE(over);
    CHECK(late == 0);
    CHECK(watch.heard.all().back() == "end");
  }
}

TEST_CASE("L10: a detached subscription may have no end in time") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  const auto scope = CallScope::Create(TimePoint::max(), {});
  Watch watch;
  SubscriptionOptions options;
  options.call.parent = scope;
  options.call.detached = true;
  options.call.timeout = Duration::max();
  Subscription subscription = client.Subscribe(kDown, OneThenQuiet(), watch.Hooks(), std::move(options));
  REQUIRE(watch.heard.WaitFor("message pod"));
  scope->End(CallScope::Ending::kFinished);
  subscription.Cancel();
  REQUIRE(watch.heard.WaitFor("end"));
  CHECK(watch.result.reason == EndReason::kCancelled);
}

TEST_CASE("C6, C11: a Classify that fails ends a subscription with INTERNAL, also for an opening that reached nobody") {
  auto server = std::make_unique<EchoServer>();
  const std::string nowhere = server->address();
  server.reset();
  for (const bool throws : {true, false}) {
    CAPTURE(throws);
    Client client = MakeClient({.address = nowhere,
                                .classify = [throws](std::string_view, const grpc::Status&, const ServerMetadata&) -> Classification {
                                  if (throws) throw std::runtime_error("broken");
                                  return {Decision::kRetry, Outcome::kFailure, -1ns};
                                }});
    Watch watch;
    Subscription subscription = client.Subscribe(kDown, OneThenQuiet(), watch.Hooks());
    REQUIRE(watch.heard.WaitFor("end"));
    CHECK(watch.result.status.error_code() == grpc::StatusCode::INTERNAL);
    CHECK(watch.result.reason == EndReason::kStopped);
    CHECK(watch.heard.all() == Strings{"end"});
  }
}

TEST_CASE("U2, S8: the first opening after a stream that delivered takes no token, whatever Classify says of its end; later ones do") {
  EchoServer server(test::EchoOptions{.headers_at_once = true});
  for (const int messages : {1, 0}) {
    CAPTURE(messages);
    Client client = MakeClient({.address = server.address()});
    Watch watch;
    watch.decision = GapDecision::kEnd;
    EchoRequest request;
    request.set_count(messages);
    request.set_code(8);
    request.set_delay_ms(20);  // The headers come before the end.
    (*request.mutable_trailers())["grpc-retry-pushback-ms"] = "0";
    Subscription subscription = client.Subscribe(kDown, request, watch.Hooks());
    REQUIRE(watch.heard.WaitFor("end"));
    CHECK(watch.heard.Count("gap " + std::to_string(1 - messages)) == 1);
    CHECK(client.budget_tokens() == (messages == 1 ? 100 : 99));
  }
}

TEST_CASE("S8: pausing and resuming from many threads loses and repeats nothing") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  std::atomic<int> next{0};
  std::atomic<int> wrong{0};
  Watch watch;
  watch.on_message = [&](EchoResponse& message) { wrong += message.sequence() != next++; };
  EchoRequest request;
  request.set_count(300);
  Subscription subscription = client.Subscribe(kDown, request, watch.Hooks());
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 300; ++turn) {
        subscription.Pause();
        std::this_thread::yield();
        subscription.Resume();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  subscription.Resume();
  REQUIRE(watch.heard.WaitFor("end"));
  CHECK(watch.result.ok());
  CHECK(next == 300);
  CHECK(wrong == 0);
}

TEST_CASE("S8: it is cancelled in every state: opening, streaming, paused with a message, parked, waiting; once, promptly") {
  for (const std::string when : {"at once", "streaming", "paused", "parked", "waiting", "in a hook", "dropped"}) {
    CAPTURE(when);
    EchoServer server;
    auto time = std::make_shared<ManualTime>();
    Client client = MakeClient({.address = server.address(), .time = time});
    Watch watch;
    Subscription subscription;
    EchoRequest request;
    request.set_count(1000);
    request.set_interval_ms(1);
    if (when == "waiting") {
      request.set_count(0);
      request.set_code(14);
    }
    if (when == "in a hook") {
      watch.on_message = [&](EchoResponse&) {
        if (watch.heard.Count("message pod") == 2) subscription.Cancel();
      };
    }
    subscription = client.Subscribe(kDown, request, watch.Hooks());
    if (when == "streaming" || when == "paused" || when == "parked") REQUIRE(watch.heard.WaitFor("message pod"));
    if (when == "paused" || when == "parked") {
      subscription.Pause();
      std::this_thread::sleep_for(20ms);
    }
    if (when == "parked") {
      server.echo().EndStreams(kShuttingDown);
      std::this_thread::sleep_for(20ms);
    }
    if (when == "waiting") {
      REQUIRE(watch.heard.WaitFor("gap 1"));
      // The wait may be of no length; then it is opened again, and waits again.
      REQUIRE(time->WaitForTimer(time->Now() + 10s));
    }
    if (when == "dropped") {
      subscription = Subscription();
    } else if (when != "in a hook") {
      std::thread other([&] { subscription.Cancel(); });
      subscription.Cancel();
      other.join();
    }
    REQUIRE(watch.heard.WaitFor("end"));
    CHECK(watch.result.status.error_code() == grpc::StatusCode::CANCELLED);
    CHECK(client.CloseAndWait(std::chrono::steady_clock::now() + 30s));
    CHECK(watch.heard.Count("end") == 1);
    CHECK(watch.heard.all().back() == "end");
  }
}

TEST_CASE("L9: closing the client ends its subscriptions, in every state; a later one ends at once") {
  EchoServer server;
  auto time = std::make_shared<ManualTime>();
  Client client = MakeClient({.address = server.address(), .time = time});
  Watch streaming;
  Watch waiting;
  Watch late;
  EchoRequest failing;
  failing.set_code(14);
  Subscription first = client.Subscribe(kDown, OneThenQuiet(), streaming.Hooks());
  Subscription second = client.Subscribe(kDown, failing, waiting.Hooks());
  REQUIRE(streaming.heard.WaitFor("message pod"));
  REQUIRE(waiting.heard.WaitFor("gap 1"));
  CHECK(client.CloseAndWait(std::chrono::steady_clock::now() + 30s));
  CHECK(streaming.heard.Count("end") == 1);
  CHECK(waiting.heard.Count("end") == 1);
  Subscription third = client.Subscribe(kDown, failing, late.Hooks());
  REQUIRE(late.heard.WaitFor("end"));
  CHECK(late.result.status.error_code() == grpc::StatusCode::CANCELLED);
}

TEST_CASE("S8: what a hook throws ends it with CANCELLED") {
  EchoServer server;
  for (const std::string where : {"on_message", "before_reopen", "on_gap", "on_open", "on_end"}) {
    CAPTURE(where);
    Client client = MakeClient({.address = server.address()});
    Watch watch;
    auto hooks = watch.Hooks();
    const auto fail = [](auto&&...) { throw std::runtime_error("on purpose"); };
    if (where == "on_message") hooks.on_message = fail;
    if (where == "before_reopen") hooks.before_reopen = fail;
    if (where == "on_gap") hooks.on_gap = [](const Gap&) -> GapDecision { throw std::runtime_error("on purpose"); };
    if (where == "on_open") hooks.on_open = fail;
    if (where == "on_end") {
      hooks.on_end = [on_end = std::move(hooks.on_end)](const CallResult& result) {
        on_end(result);
        throw std::runtime_error("on purpose");
      };
    }
    Subscription subscription = client.Subscribe(kDown, OneThenQuiet(), std::move(hooks));
    if (where == "on_end") REQUIRE(watch.heard.WaitFor("message pod"));
    if (where == "before_reopen" || where == "on_gap") {
      REQUIRE(watch.heard.WaitFor("message pod"));
      server.echo().EndStreams(kShuttingDown);
    }
    if (where == "on_end") subscription.Cancel();
    REQUIRE(watch.heard.WaitFor("end"));
    CHECK(watch.result.status.error_code() == grpc::StatusCode::CANCELLED);
    if (where != "on_end") CHECK(watch.result.status.error_message() == where + " threw: on purpose");
    CHECK(client.CloseAndWait(std::chrono::steady_clock::now() + 30s));
  }
}

TEST_CASE("S6: five subscriptions that reopen while the breaker is half-open never keep a unary call out for longer than one probe") {
  EchoServer server(test::EchoOptions{.headers_at_once = true});
  auto time = std::make_shared<ManualTime>();
  ClientSettings settings{.address = server.address(), .time = time};
  settings.breaker.successes_to_close = 1000;  // It stays half-open for the whole of the test.
  Client client = MakeClient(std::move(settings));
  std::vector<Watch> watches(5);
  std::vector<Subscription> subscriptions;
  for (Watch& watch : watches) {
    subscriptions.push_back(client.Subscribe(kDown, OneThenQuiet(), watch.Hooks()));
    REQUIRE(watch.heard.WaitFor("message pod"));
  }
  const auto unary = PENSTOCK_METHOD(test::v1::Echo, Unary);
  for (int i = 0; i < 5; ++i) {
    EchoRequest failing;
    failing.set_code(14);
    failing.set_message(std::to_string(i));
    (void)client.CallAndWait(unary, failing, {.max_attempts = 1});
  }
  REQUIRE(client.circuit_state() == CircuitState::kOpen);
  server.echo().EndStreams(kShuttingDown);
  for (Watch& watch : watches) REQUIRE(watch.heard.WaitFor("reopen"));
  REQUIRE(time->WaitForTimers(5));
  time->Advance(10s);
  CHECK(client.circuit_state() == CircuitState::kHalfOpen);
  // While they reopen, each a probe, one call after another is made; one that is kept out is tried again at once.
  const auto until = std::chrono::steady_clock::now() + 30s;
  int answered = 0;
  const auto delivering = [&] {
    for (Watch& watch : watches) {
      if (watch.heard.Count("message pod") < 2) return false;
    }
    return true;
  };
  while ((answered < 20 || !delivering()) && std::chrono::steady_clock::now() < until) {
    answered += client.CallAndWait(unary, EchoRequest(), {.max_attempts = 1}).ok();
    time->Advance(50ms);
  }
  CHECK(answered >= 20);
  CHECK(delivering());
  // Five open subscriptions hold no slot.
  for (int i = 0; i < 20; ++i) CHECK(client.CallAndWait(unary, EchoRequest(), {.max_attempts = 1}).ok());
  CHECK(client.circuit_counts().timed_out == 0);
  CHECK(client.circuit_counts().failures == 0);
}

TEST_CASE("S8: a subscription to a dependency that is down waits for the breaker, and is back when the dependency is") {
  auto server = std::make_unique<EchoServer>(test::EchoOptions{.headers_at_once = true});
  const std::string address = server->address();
  ClientSettings settings{.address = address, .backoff_base = 5ms, .backoff_max = 50ms};
  settings.breaker.open_for = 200ms;
  settings.connection.reconnect_first = 10ms;
  settings.connection.reconnect_highest = 20ms;
  Client client = MakeClient(std::move(settings));
  std::vector<Watch> watches(8);
  std::vector<Subscription> subscriptions;
  for (Watch& watch : watches) subscriptions.push_back(client.Subscribe(kDown, OneThenQuiet(), watch.Hooks()));
  for (Watch& watch : watches) REQUIRE(watch.heard.WaitFor("message pod"));
  server.reset();
  const auto until = std::chrono::steady_clock::now() + 30s;
  while (client.circuit_totals().entered_open < 2 && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(1ms);
  CHECK(client.circuit_totals().entered_open >= 2);
  server = std::make_unique<EchoServer>(test::EchoServerOptions{.echo = {.headers_at_once = true}, .address = address});
  for (Watch& watch : watches) CHECK(watch.heard.WaitFor("message pod", 2));
  while (client.circuit_state() != CircuitState::kClosed && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(1ms);
  CHECK(client.circuit_state() == CircuitState::kClosed);
}
