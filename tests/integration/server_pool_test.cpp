// Work off the callback threads.
#include <doctest/doctest.h>

#include <algorithm>

#include "grpc/health/v1/health.grpc.pb.h"
#include "support/server_fixture.h"

namespace penstock::test {
namespace {

using Steady = std::chrono::steady_clock;

TEST_CASE("V5: a full pool refuses with a pushback, and other calls are answered meanwhile") {
  GuardedEcho echo;
  std::atomic<bool> let_go{false};
  std::atomic<int> sleeping{0};
  WorkPool pool({.threads = 64, .max_waiting = 0});
  echo.on_idempotent = [&](auto* context, auto*, auto* response) {
    return GuardedEcho::HandleOnIn(pool, context, [&, response]() -> grpc::Status {
      ++sleeping;
      Eventually([&] { return let_go.load(); });
      if (sleeping > 1000) throw 1;
      response->set_text("slept");
      return grpc::Status::OK;
    });
  };
  auto server = MakeServer(LocalSettings(), {&echo});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  std::atomic<int> answered{0};
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<EchoResponse> responses(64);
  EchoRequest request;
  for (int i = 0; i < 64; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    SetLimit(*contexts.back());
    stub->async()->Idempotent(contexts.back().get(), &request, &responses[static_cast<std::size_t>(i)],
                              [&](const grpc::Status& status) { answered += status.ok(); });
  }
  REQUIRE(Eventually([&] { return sleeping == 64; }));
  EchoResponse response;
  const auto began = Steady::now();
  CHECK(CallUnary(*stub, request, &response).ok());
  CHECK(Steady::now() - began < 2s);  // blocked callbacks would take until let_go
  grpc::ClientContext context;
  SetLimit(context);
  CHECK(stub->Idempotent(&context, request, &response).error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  CHECK(context.GetServerTrailingMetadata().count("grpc-retry-pushback-ms") == 1);
  let_go = true;
  CHECK(Eventually([&] { return answered == 64; }));
  CHECK(Eventually([&] { return pool.pending() == 0; }));
}

// Throws at the n-th copy.
struct ThrowsAtCopy {
  explicit ThrowsAtCopy(int at) : left(std::make_shared<int>(at)) {}
  ThrowsAtCopy(const ThrowsAtCopy& other) : left(other.left) {
    if (--*left == 0) throw std::bad_alloc();
  }
  std::shared_ptr<int> left;
};

TEST_CASE("V6: work that cannot be given to the pool ends its call with INTERNAL and leaves nothing behind") {
  LogKeeper log;
  GuardedEcho echo;
  WorkPool pool({.threads = 1});
  std::atomic<int> at{0};
  std::atomic<int> ran{0};
  echo.on_idempotent = [&](auto* context, auto*, auto*) {
    return GuardedEcho::HandleOnIn(pool, context, [&ran, throws = ThrowsAtCopy(at)] {
      ++ran;
      return grpc::Status::OK;
    });
  };
  auto server = MakeServer(LocalSettings(), {&echo});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  int thrown = 0;
  // The first copy is the caller's own: it makes HandleOn's argument.
  for (at = 2; ran == 0 && at < 20; ++at) {
    grpc::ClientContext context;
    SetLimit(context);
    EchoResponse response;
    const grpc::Status status = stub->Idempotent(&context, EchoRequest(), &response);
    if (ran == 0) {
      ++thrown;
      CHECK(status.error_code() == grpc::StatusCode::INTERNAL);
    } else {
      CHECK(status.ok());
    }
  }
  CHECK(thrown > 0);
  CHECK(ran == 1);
  CHECK(server->counts().exceptions == static_cast<std::uint64_t>(thrown));
  server->Shutdown();
  CHECK(server->Wait() == 0);
}

// How long each of 20 health checks takes while 64 handlers sleep for 2 s on a pool, at most, in milliseconds.
double WorstHealthCheckBesideSleepers() {
  GuardedEcho echo;
  std::atomic<int> sleeping{0};
  WorkPool pool({.threads = 64, .max_waiting = 0});
  echo.on_idempotent = [&](auto* context, auto*, auto*) {
    return GuardedEcho::HandleOnIn(pool, context, [&] {
      ++sleeping;
      std::this_thread::sleep_for(2s);
      --sleeping;
      return grpc::Status::OK;
    });
  };
  auto settings = LocalSettings();
  settings.health_address = "127.0.0.1:0";
  auto server = MakeServer(settings, {&echo});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  std::atomic<int> answered{0};
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<EchoResponse> responses(64);
  EchoRequest request;
  for (int i = 0; i < 64; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    SetLimit(*contexts.back());
    stub->async()->Idempotent(contexts.back().get(), &request, &responses[static_cast<std::size_t>(i)],
                              [&](const grpc::Status& status) { answered += status.ok(); });
  }
  REQUIRE(Eventually([&] { return sleeping == 64; }));
  // As kubelet does: each probe on a connection of its own. Both ports.
  double worst = 0;
  for (int i = 0; i < 20; ++i) {
    const int port = i % 2 == 0 ? server->port() : server->health_port();
    auto health = grpc::health::v1::Health::NewStub(ChannelTo("127.0.0.1:" + std::to_string(port)));
    grpc::ClientContext context;
    SetLimit(context);
    grpc::health::v1::HealthCheckResponse response;
    const auto began = Steady::now();
    CHECK(health->Check(&context, {}, &response).ok());
    const std::chrono::duration<double, std::milli> took = Steady::now() - began;
    CHECK(response.status() == grpc::health::v1::HealthCheckResponse::SERVING);
    worst = std::max(worst, took.count());
  }
  CHECK(sleeping == 64);  // still: none of the checks waited for them
  CHECK(Eventually([&] { return answered == 64; }));
  return worst;
}

TEST_CASE("V5, V8: 64 handlers that sleep for 2 s leave health checks answered") {
  const double worst = WorstHealthCheckBesideSleepers();
  MESSAGE("the slowest of 20 health checks took " << worst << " ms");
  CHECK(worst < static_cast<double>(Bound(200ms).count()));
}

}  // namespace
}  // namespace penstock::test
