// Subscriptions against plain grpc++ servers behind a router, under the manual clock where time matters.
#include <doctest/doctest.h>

#include <thread>

#include "penstock/client/client.h"
#include "penstock/testing/manual_time.h"
#include "penstock/testing/router.h"
#include "support/echo_service.h"
#include "support/stream_reactors.h"

using namespace penstock;
using namespace std::chrono_literals;
using test::EchoRequest;
using test::EchoResponse;
using test::EchoServer;
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

  SubscriptionHooks<EchoRequest, EchoResponse> Hooks() {
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

TEST_CASE("S8: a bidi subscription sends its request first on each stream, and further messages when asked") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  Watch watch;
  std::atomic<int> written{0};
  auto hooks = watch.Hooks();
  hooks.on_write_done = [&](bool ok) { written += ok; };
  EchoRequest request;
  request.set_text("hello");
  auto subscription = client.Subscribe(kBidi, request, std::move(hooks));
  REQUIRE(watch.heard.WaitFor("message pod", 1));
  CHECK(subscription.Write(request) == StreamStart::kStarted);
  REQUIRE(watch.heard.WaitFor("message pod", 2));
  CHECK(written == 1);
  server.echo().EndStreams(kShuttingDown);
  REQUIRE(watch.heard.WaitFor("message pod", 3));
  CHECK(watch.heard.Count("reopen") == 1);
  subscription.Cancel();
  REQUIRE(watch.heard.WaitFor("end"));
}
