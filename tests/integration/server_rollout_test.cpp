#include <doctest/doctest.h>

#include <grpcpp/support/client_callback.h>

#include <deque>

#include "penstock/testing/frame_log.h"
#include "penstock/testing/router.h"
#include "support/plain_load.h"
#include "support/server_fixture.h"

namespace penstock::test {
namespace {

using testing::FrameLog;
using testing::Router;

struct Pod {
  explicit Pod(const std::string& name, ServerSettings settings = LocalSettings()) : echo(name) {
    server = MakeServer(std::move(settings), {&echo});
  }
  std::uint16_t port() const { return static_cast<std::uint16_t>(server->port()); }

  GuardedEcho echo;
  std::unique_ptr<Server> server;
};

std::unique_ptr<Router> MakeRouter(testing::RouterSettings settings) {
  auto router = Router::Create(std::move(settings));
  if (!router.ok()) FAIL(router.error().message());
  return *std::move(router);
}

// Replaces pods, one after the other, while calls run through the router; returns how many calls were made.
void RollOut(Duration delay, int rollouts, long least_calls, ShutdownOrder order = ShutdownOrder::kServeToTheEnd) {
  auto settings = LocalSettings();
  settings.shutdown_order = order;
  int made = 0;
  auto pod = std::make_unique<Pod>("pod-0", settings);
  auto router = MakeRouter({.targets = {pod->port()}, .delay = delay});
  PlainLoad load(router->address(), 64);
  while (made < rollouts || load.done() < least_calls) {
    CHECK(Eventually([&] { return pod->echo.unary_calls > 20; }));  // the load is on this pod
    auto next = std::make_unique<Pod>("pod-" + std::to_string(++made), settings);
    router->SetTargets({next->port()});
    const auto began = std::chrono::steady_clock::now();
    pod->server->Shutdown();
    CHECK(pod->server->Wait() == 0);
    CHECK(std::chrono::steady_clock::now() - began < 5s);
    pod = std::move(next);
  }
  load.Stop();
  MESSAGE(load.done() << " calls, " << made << " rollouts, " << load.failed() << " failed " << load.failures());
  if (order == ShutdownOrder::kServeToTheEnd) CHECK_MESSAGE(load.failed() == 0, load.failures());
}

TEST_CASE("V3: no call of 20,000 fails through rollouts at 64 outstanding, without delay and with 5 ms each way") {
  SUBCASE("no delay") { RollOut(0ms, 4, 20'000); }
  SUBCASE("5 ms each way") { RollOut(5ms, 3, 5'000); }
}

TEST_CASE("V3: the fallback order stops just as surely, and serves through the same interface") {
  RollOut(0ms, 2, 2'000, ShutdownOrder::kStopFirst);
}

// A stream that its client opens again the moment it ends with UNAVAILABLE.
class Reopener {
 public:
  virtual ~Reopener() = default;
  std::atomic<int> ends{0};
  std::atomic<int> odd_ends{0};
  std::string odd_end;
  // The pod that the present stream runs on.
  std::string pod() const {
    std::lock_guard lock(mutex_);
    return pod_;
  }
  virtual void Cancel() = 0;
  bool idle() const { return idle_; }

 protected:
  void Heard(const std::string& pod) {
    std::lock_guard lock(mutex_);
    pod_ = pod;
  }
  // Whether to open again.
  bool Ended(const grpc::Status& status) {
    ++ends;
    Heard("");
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE && status.error_message() == "server is shutting down") return true;
    if (!stopping_) {
      ++odd_ends;
      std::lock_guard lock(mutex_);
      odd_end = std::to_string(status.error_code()) + " " + status.error_message();
    }
    return !stopping_;
  }
  std::atomic<bool> stopping_{false};
  std::atomic<bool> idle_{false};
  mutable std::mutex mutex_;

 private:
  std::string pod_;
};

class DownReopener final : public Reopener, private grpc::ClientReadReactor<EchoResponse> {
 public:
  explicit DownReopener(v1::Echo::Stub& stub) : stub_(stub) {
    request_.set_count(-1);
    Open();
  }
  void Cancel() override {
    stopping_ = true;
    std::lock_guard lock(mutex_);
    context_->TryCancel();
  }

 private:
  void Open() {
    {
      std::lock_guard lock(mutex_);
      context_ = std::make_unique<grpc::ClientContext>();
      SetLimit(*context_);
      if (stopping_) context_->TryCancel();
    }
    stub_.async()->Down(context_.get(), &request_, this);
    StartRead(&response_);
    StartCall();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    Heard(response_.pod());
    StartRead(&response_);
  }
  void OnDone(const grpc::Status& status) override {
    if (Ended(status)) {
      Open();
    } else {
      idle_ = true;
    }
  }

  v1::Echo::Stub& stub_;
  std::unique_ptr<grpc::ClientContext> context_;
  EchoRequest request_;
  EchoResponse response_;
};

class BidiReopener final : public Reopener, private grpc::ClientBidiReactor<EchoRequest, EchoResponse> {
 public:
  explicit BidiReopener(v1::Echo::Stub& stub) : stub_(stub) { Open(); }
  void Cancel() override {
    stopping_ = true;
    std::lock_guard lock(mutex_);
    context_->TryCancel();
  }

 private:
  void Open() {
    {
      std::lock_guard lock(mutex_);
      context_ = std::make_unique<grpc::ClientContext>();
      SetLimit(*context_);
      if (stopping_) context_->TryCancel();
    }
    stub_.async()->Bidi(context_.get(), this);
    StartWrite(&request_);
    StartRead(&response_);
    StartCall();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    Heard(response_.pod());
    StartRead(&response_);
  }
  void OnDone(const grpc::Status& status) override {
    if (Ended(status)) {
      Open();
    } else {
      idle_ = true;
    }
  }

  v1::Echo::Stub& stub_;
  std::unique_ptr<grpc::ClientContext> context_;
  EchoRequest request_;
  EchoResponse response_;
};

// N streams on the old pod, over as many connections; the pods are swapped; every stream is opened again on the new one,
// and none on the old.
void ReopenStreams(int streams, bool bidi, ShutdownOrder order, bool hold_one) {
  CAPTURE(streams);
  CAPTURE(bidi);
  auto settings = LocalSettings();
  settings.shutdown_order = order;
  Pod old_pod("old", settings), new_pod("new", settings);
  auto log = std::make_shared<FrameLog>();
  auto router = MakeRouter({.targets = {old_pod.port()}, .frame_log = log});
  const int connections = streams < 8 ? streams : 8;
  std::vector<std::unique_ptr<v1::Echo::Stub>> stubs;
  for (int i = 0; i < connections; ++i) stubs.push_back(v1::Echo::NewStub(ChannelTo(router->address())));
  std::vector<std::unique_ptr<Reopener>> clients;
  const auto open_on = [&](v1::Echo::Stub& stub) {
    if (bidi) {
      clients.push_back(std::make_unique<BidiReopener>(stub));
    } else {
      clients.push_back(std::make_unique<DownReopener>(stub));
    }
  };
  for (int i = 0; i < streams; ++i) open_on(*stubs[static_cast<std::size_t>(i % connections)]);
  const auto all_on = [&](const std::string& pod) {
    return Eventually([&] {
      for (const auto& client : clients) {
        if (client->pod() != pod) return false;
      }
      return true;
    });
  };
  REQUIRE(all_on("old"));
  std::unique_ptr<v1::Echo::Stub> held_stub;
  if (hold_one) {
    // One more connection reaches the old pod and is stuck in its handshake as the shutdown begins.
    router->HoldNew(true);
    held_stub = v1::Echo::NewStub(ChannelTo(router->address()));
    open_on(*held_stub);
    REQUIRE(router->WaitUntil([](const auto& stats) { return stats.held == 1; }));
    router->HoldNew(false);
  }

  router->SetTargets({new_pod.port()});
  old_pod.server->Shutdown();
  if (hold_one) {
    REQUIRE(Eventually([&] { return old_pod.server->state() == ServerState::kLeaving; }));
    std::this_thread::sleep_for(100ms);  // within the handshake window of 500 ms
    router->Release();
  }
  CHECK(old_pod.server->Wait() == 0);
  REQUIRE(all_on("new"));
  for (const auto& client : clients) {
    CHECK_MESSAGE(client->odd_ends == 0, client->odd_end);
    CHECK(client->ends <= 1);
  }
  const int first_opened = streams + (hold_one ? 1 : 0);
  CHECK(old_pod.echo.streams.opened <= first_opened);
  CHECK(old_pod.echo.streams.opened >= streams);
  CHECK(new_pod.echo.streams.opened == first_opened);
  const testing::GoawayOrder goaways = log->goaway_order();
  CHECK(goaways.trailers_first == 0);
  CHECK(goaways.goaway_first >= static_cast<std::size_t>(connections));
  for (const auto& client : clients) client->Cancel();
  CHECK(Eventually([&] {
    for (const auto& client : clients) {
      if (!client->idle()) return false;
    }
    return true;
  }));
}

TEST_CASE("V4: streams that are opened again never land on the server that shuts down, and GOAWAY goes before trailers") {
  for (const bool bidi : {false, true}) {
    for (const int streams : {1, 8, 64}) ReopenStreams(streams, bidi, ShutdownOrder::kServeToTheEnd, false);
  }
}

TEST_CASE("V4: nor with a connection that is held in its handshake") {
  ReopenStreams(8, false, ShutdownOrder::kServeToTheEnd, true);
  ReopenStreams(8, true, ShutdownOrder::kServeToTheEnd, true);
}

TEST_CASE("V4: the fallback order opens none on the old server either") {
  for (const bool bidi : {false, true}) {
    for (const int streams : {1, 8, 64}) ReopenStreams(streams, bidi, ShutdownOrder::kStopFirst, false);
  }
}

}  // namespace
}  // namespace penstock::test
