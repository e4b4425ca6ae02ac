#include <doctest/doctest.h>
#include <grpcpp/alarm.h>
#include <signal.h>
#include <unistd.h>

#include "grpc/health/v1/health.grpc.pb.h"
#include "penstock/testing/manual_time.h"
#include "penstock/testing/router.h"
#include "support/server_fixture.h"

namespace penstock::test {
namespace {

namespace health = grpc::health::v1;
using Serving = health::HealthCheckResponse;
using Steady = std::chrono::steady_clock;

Serving::ServingStatus Check(health::Health::Stub& stub, const std::string& service) {
  grpc::ClientContext context;
  SetLimit(context);
  health::HealthCheckRequest request;
  request.set_service(service);
  health::HealthCheckResponse response;
  const grpc::Status status = stub.Check(&context, request, &response);
  return status.ok() ? response.status() : Serving::SERVICE_UNKNOWN;
}

// Runs a server on a thread of its own, from when it hears signals on.
class RunningServer {
 public:
  explicit RunningServer(Server& server) {
    const auto handler = [] {
      struct sigaction now {};
      sigaction(SIGTERM, nullptr, &now);
      return now.sa_handler;
    };
    const auto before = handler();
    thread_ = std::thread([&] { exit_code_ = server.Run(); });
    CHECK(Eventually([&] { return handler() != before; }));
  }
  int Join() {
    thread_.join();
    return exit_code_;
  }

 private:
  int exit_code_ = -100;
  std::thread thread_;
};

// One call of `Repeatable` on a thread of its own.
struct PendingCall {
  explicit PendingCall(const std::string& address)
      : stub(v1::Echo::NewStub(ChannelTo(address))), thread([this] {
          grpc::ClientContext context;
          SetLimit(context);
          EchoRequest request;
          EchoResponse response;
          status = stub->Repeatable(&context, request, &response);
          ended = true;
        }) {}
  ~PendingCall() { thread.join(); }

  std::unique_ptr<v1::Echo::Stub> stub;
  grpc::Status status;
  std::atomic<bool> ended{false};
  std::thread thread;
};

TEST_CASE("V2: SIGTERM turns readiness NOT_SERVING within 50 ms, calls are served through the drain, then it stops with 0") {
  GuardedEcho echo;
  auto time = std::make_shared<testing::ManualTime>();
  auto settings = LocalSettings();
  settings.drain = 5s;
  settings.time = time;
  auto server = MakeServer(settings, {&echo});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  auto health_stub = health::Health::NewStub(ChannelTo(AddressOf(*server)));
  for (const char* name : {"", "readiness", "liveness", "penstock.test.v1.Echo"}) {
    CAPTURE(name);
    CHECK(Check(*health_stub, name) == Serving::SERVING);
  }
  grpc::ClientContext watch_context;
  SetLimit(watch_context);
  auto watch = health_stub->Watch(&watch_context, health::HealthCheckRequest());
  Serving watched;
  REQUIRE(watch->Read(&watched));
  CHECK(watched.status() == Serving::SERVING);

  struct sigaction before {}, after {};
  sigaction(SIGTERM, nullptr, &before);
  RunningServer running(*server);
  const auto signalled = Steady::now();
  kill(getpid(), SIGTERM);
  REQUIRE(watch->Read(&watched));
  const auto heard = Steady::now() - signalled;
  CHECK(watched.status() == Serving::NOT_SERVING);
  CHECK(heard < Bound(50ms));
  MESSAGE("NOT_SERVING after " << std::chrono::duration<double, std::milli>(heard).count() << " ms");
  CHECK(Check(*health_stub, "") == Serving::NOT_SERVING);
  CHECK(Check(*health_stub, "readiness") == Serving::NOT_SERVING);
  CHECK(Check(*health_stub, "penstock.test.v1.Echo") == Serving::NOT_SERVING);
  CHECK(Check(*health_stub, "liveness") == Serving::SERVING);
  CHECK(server->state() == ServerState::kDraining);

  // The drain is 5 s of the server's time, which stands still: everything is served, new connections too.
  REQUIRE(time->WaitForTimer(time->Now() + 5s));
  time->Advance(4999ms);
  auto late = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  EchoRequest request;
  EchoResponse response;
  CHECK(CallUnary(*stub, request, &response).ok());
  CHECK(CallUnary(*late, request, &response).ok());
  CHECK(server->state() == ServerState::kDraining);

  time->Advance(1ms);
  CHECK(running.Join() == 0);
  CHECK_FALSE(watch->Read(&watched));
  CHECK(watch->Finish().error_code() == grpc::StatusCode::UNAVAILABLE);
  sigaction(SIGTERM, nullptr, &after);
  CHECK((after.sa_handler == before.sa_handler));
}

TEST_CASE("V2: a second signal ends the wait at once; what was in flight is cancelled, told, and makes the exit code 1") {
  LogKeeper log;
  GuardedEcho echo;
  Replies replies;
  echo.on_repeatable = [&](auto*, const auto&, auto*, Reply reply) { replies.Keep(std::move(reply)); };
  auto settings = LocalSettings();
  settings.drain = 60s;
  settings.grace = 60s;
  auto server = MakeServer(settings, {&echo});
  PendingCall call(AddressOf(*server));
  REQUIRE(Eventually([&] { return replies.size() == 1; }));
  RunningServer running(*server);
  kill(getpid(), SIGINT);
  CHECK(Eventually([&] { return server->state() == ServerState::kDraining; }));
  const auto second = Steady::now();
  kill(getpid(), SIGTERM);
  CHECK(running.Join() == 1);
  CHECK(Steady::now() - second < 5s);  // not 120
  CHECK(Eventually([&] { return call.ended.load(); }));
  CHECK_FALSE(call.status.ok());
  CHECK(log.Has("/penstock.test.v1.Echo/Repeatable (1)"));
  replies.FinishAll(grpc::Status::OK);  // late, and harmless
}

TEST_CASE("V2: Shutdown may be called from a handler, from a callback thread, twice; Wait refuses there") {
  GuardedEcho echo;
  std::unique_ptr<Server> server;
  std::atomic<int> waited{-100};
  LogKeeper log;
  echo.on_unary = [&](auto*, const auto&, auto*) {
    waited = server->Wait();
    server->Shutdown();
    detail::PostToCallbackThread([&] { server->Shutdown(); });
    return grpc::Status::OK;
  };
  server = MakeServer(LocalSettings(), {&echo});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  EchoResponse response;
  CHECK(CallUnary(*stub, EchoRequest(), &response).ok());
  CHECK(waited == -1);
  CHECK(server->Wait() == 0);
}

TEST_CASE("V2: servers may be shut down the moment they are made, and dropped while they serve") {
  for (int i = 0; i < 5; ++i) {
    GuardedEcho echo;
    auto server = MakeServer(LocalSettings(), {&echo});
    server->Shutdown();
    if (i % 2 == 0) CHECK(server->Wait() == 0);
  }
  GuardedEcho echo;
  auto server = MakeServer(LocalSettings(), {&echo});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  grpc::ClientContext context;
  SetLimit(context);
  auto stream = stub->Bidi(&context);
  EchoResponse response;
  CHECK(stream->Write(EchoRequest()));
  CHECK(stream->Read(&response));
  const auto began = Steady::now();
  server.reset();
  CHECK(Steady::now() - began < 3s);
  CHECK_FALSE(stream->Read(&response));
  CHECK(stream->Finish().error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK(echo.streams.done == 1);
}

TEST_CASE("V3: a call in flight is served to its end, however late in the grace") {
  GuardedEcho echo;
  Replies replies;
  echo.on_repeatable = [&](auto*, const auto&, auto*, Reply reply) { replies.Keep(std::move(reply)); };
  auto settings = LocalSettings();
  settings.grace = 60s;
  auto server = MakeServer(settings, {&echo});
  PendingCall call(AddressOf(*server));
  REQUIRE(Eventually([&] { return replies.size() == 1; }));
  server->Shutdown();
  CHECK(Eventually([&] { return server->state() == ServerState::kLeaving; }));
  std::this_thread::sleep_for(700ms);  // past the handshake window
  CHECK(server->state() == ServerState::kLeaving);
  CHECK_FALSE(call.ended);
  replies.FinishAll(grpc::Status::OK);
  CHECK(Eventually([&] { return call.ended.load(); }));
  CHECK(call.status.ok());
  CHECK(server->Wait() == 0);
}

// Takes no notice of anything until a test lets it go.
class DeafReactor final : public ServerUnaryReactor {
 public:
  DeafReactor(std::atomic<bool>& let_go, StreamEvents& events) : let_go_(let_go), events_(events) {
    ++events_.opened;
    Poll();
  }

 private:
  void Poll() {
    alarm_.Set(std::chrono::system_clock::now() + 5ms, [this](bool) {
      if (let_go_) {
        Finish(grpc::Status::OK);
      } else {
        Poll();
      }
    });
  }
  void OnCancelled() override { ++events_.cancelled; }
  void OnShutdown() override { ++events_.shut_down; }
  void OnDone() override { ++events_.done; }

  std::atomic<bool>& let_go_;
  StreamEvents& events_;
  grpc::Alarm alarm_;
};

TEST_CASE("V3, V5, V10: a handler that ignores shutdown and cancellation is told of both, and abandoned after grace and a second") {
  LogKeeper log;
  GuardedEcho echo;
  std::atomic<bool> let_go{false};
  echo.on_idempotent = [&](auto* context, auto*, auto*) {
    return GuardedEcho::StartIn<DeafReactor>(context, let_go, echo.streams);
  };
  auto settings = LocalSettings();
  settings.grace = 1s;
  auto server = MakeServer(settings, {&echo});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  grpc::Status status;
  std::thread caller([&] {
    grpc::ClientContext context;
    SetLimit(context);
    EchoResponse response;
    status = stub->Idempotent(&context, EchoRequest(), &response);
  });
  REQUIRE(Eventually([&] { return echo.streams.opened == 1; }));
  const auto began = Steady::now();
  server->Shutdown();
  CHECK(Eventually([&] { return echo.streams.shut_down == 1; }));
  CHECK(echo.streams.cancelled == 0);
  CHECK(server->Wait() == 1);
  const auto took = Steady::now() - began;
  MESSAGE("abandoned after " << std::chrono::duration<double>(took).count() << " s");
  CHECK(took >= 1s);
  CHECK(took < 3s);  // 2 s, and a second for a slow machine
  CHECK(echo.streams.cancelled == 1);
  CHECK(log.Has("never finished: /penstock.test.v1.Echo/Idempotent (1)"));
  caller.join();
  CHECK_FALSE(status.ok());
  let_go = true;  // the server is still behind it
  CHECK(Eventually([&] { return echo.streams.done == 1; }));
}

// A long poll: answers when it hears of the shutdown.
class LongPoll final : public ServerUnaryReactor {
 private:
  void OnShutdown() override { Finish(grpc::Status::OK); }
};

TEST_CASE("V3, V5: a reactor that opens after the others were told of the shutdown is told as it opens, unary ones too") {
  GuardedEcho echo;
  Replies replies;
  echo.on_repeatable = [&](auto*, const auto&, auto*, Reply reply) { replies.Keep(std::move(reply)); };
  echo.on_idempotent = [](auto* context, auto*, auto*) { return GuardedEcho::StartIn<LongPoll>(context); };
  auto settings = LocalSettings();
  settings.grace = 25s;
  settings.handshake_window = 0s;
  auto server = MakeServer(settings, {&echo});
  PendingCall slow(AddressOf(*server));  // keeps the server up
  REQUIRE(Eventually([&] { return replies.size() == 1; }));
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  grpc::ClientContext stream_context;
  SetLimit(stream_context);
  EchoResponse response;
  auto stream = stub->Down(&stream_context, EchoRequest());
  REQUIRE(Eventually([&] { return echo.streams.opened == 1; }));
  server->Shutdown();
  CHECK(stream->Finish().error_message() == "server is shutting down");  // the others are told

  // Whoever connects now is served until its GOAWAY comes, at the next tick.
  auto late = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + 10s);
  context.set_wait_for_ready(true);
  CHECK(late->Idempotent(&context, EchoRequest(), &response).ok());
  grpc::ClientContext late_context;
  late_context.set_deadline(std::chrono::system_clock::now() + 10s);
  late_context.set_wait_for_ready(true);
  const grpc::Status ended = late->Down(&late_context, EchoRequest())->Finish();
  CHECK(ended.error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK(ended.error_message() == "server is shutting down");
  CHECK(echo.streams.shut_down == 2);
  replies.FinishAll(grpc::Status::OK);
  CHECK(server->Wait() == 0);
}

TEST_CASE("X1: the grace runs by the server's time") {
  GuardedEcho echo;
  Replies replies;
  echo.on_repeatable = [&](auto*, const auto&, auto*, Reply reply) { replies.Keep(std::move(reply)); };
  auto time = std::make_shared<testing::ManualTime>();
  auto settings = LocalSettings();
  settings.grace = 1h;
  settings.time = time;
  auto server = MakeServer(settings, {&echo});
  PendingCall call(AddressOf(*server));
  REQUIRE(Eventually([&] { return replies.size() == 1; }));
  server->Shutdown();
  REQUIRE(time->WaitForTimer(time->Now() + 1h));
  time->Advance(1h);
  CHECK(Eventually([&] { return call.ended.load(); }));
  CHECK_FALSE(call.status.ok());
  replies.FinishAll(grpc::Status::OK);
  CHECK(server->Wait() == 1);
}

TEST_CASE("V3: where new connections keep arriving, the log says so and the grace bounds it") {
  LogKeeper log;
  GuardedEcho echo;
  Replies replies;
  echo.on_repeatable = [&](auto*, const auto&, auto*, Reply reply) { replies.Keep(std::move(reply)); };
  auto settings = LocalSettings();
  settings.grace = 3s;
  auto server = MakeServer(settings, {&echo});
  PendingCall slow(AddressOf(*server));  // keeps a connection, so that there is no moment without one
  REQUIRE(Eventually([&] { return replies.size() == 1; }));
  // The only replica: whoever is told to go away comes back.
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  std::atomic<bool> stop{false};
  std::thread caller([&] {
    EchoResponse response;
    while (!stop) {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + 1s);
      stub->Unary(&context, EchoRequest(), &response);
      std::this_thread::sleep_for(1ms);
    }
  });
  CHECK(Eventually([&] { return echo.unary_calls > 3; }));
  const auto began = Steady::now();
  server->Shutdown();
  CHECK(server->Wait() == 1);
  const auto took = Steady::now() - began;
  stop = true;
  caller.join();
  replies.FinishAll(grpc::Status::OK);
  CHECK(took >= 3s);
  CHECK(took < 5s);
  CHECK(log.Has("calls still arrive"));
}

TEST_CASE("V11: a second server on a taken port fails at its creation and names the address") {
  GuardedEcho echo, other;
  auto server = MakeServer(LocalSettings(), {&echo});
  auto settings = LocalSettings();
  settings.address = AddressOf(*server);
  auto second = Server::Create(settings, {&other});
  REQUIRE_FALSE(second.ok());
  CHECK(second.error().message().find(AddressOf(*server)) != std::string::npos);
  CHECK(second.error().message().find("in use") != std::string::npos);
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  EchoResponse response;
  CHECK(CallUnary(*stub, EchoRequest(), &response).ok());

  settings = LocalSettings();
  settings.health_address = AddressOf(*server);
  auto third = Server::Create(settings, {&other});
  REQUIRE_FALSE(third.ok());
  CHECK(third.error().message().find("health_address") != std::string::npos);
}

}  // namespace
}  // namespace penstock::test
