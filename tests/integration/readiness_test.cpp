// Whether a client has been connected, and what a server makes of it.

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <mutex>
#include <string>
#include <thread>

#include "penstock/client/client.h"
#include "penstock/runtime.h"
#include "penstock/testing/certificates.h"
#include "penstock/testing/manual_time.h"
#include "penstock/testing/router.h"
#include "support/client_calls.h"
#include "support/echo_service.h"

namespace penstock::test {
namespace {

TimePoint In(Duration length) { return SteadyClock().Now() + length; }

std::future<bool> Check(ReadinessMonitor& monitor, TimePoint deadline) {
  auto promise = std::make_shared<std::promise<bool>>();
  monitor.Check(deadline, [promise](bool ready) { promise->set_value(ready); });
  return promise->get_future();
}

bool Checked(ReadinessMonitor& monitor, TimePoint deadline = In(kLimit)) {
  std::future<bool> checked = Check(monitor, deadline);
  REQUIRE(checked.wait_for(kLimit + 10s) == std::future_status::ready);
  return checked.get();
}

std::unique_ptr<testing::Router> RouterTo(std::vector<std::uint16_t> targets) {
  auto router = testing::Router::Create({.targets = std::move(targets)});
  REQUIRE(router.ok());
  return *std::move(router);
}

bool Call(Client& client) { return client.CallAndWait(PENSTOCK_METHOD(v1::Echo, Unary), v1::EchoRequest()).ok(); }

}  // namespace

// First in its program, so that no call was made yet in the process.
TEST_CASE("R1: a check connects although nothing has been called yet in the process") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  const auto monitor = client.Connected();
  CHECK_FALSE(monitor->ready());
  const auto begin = std::chrono::steady_clock::now();
  CHECK(Checked(*monitor));
  const auto took = std::chrono::steady_clock::now() - begin;
  MESSAGE("connected after ", took / 1us, " us");
  CHECK(took < 3s);  // 5 s where nothing polls.
  CHECK(monitor->ready());
  CHECK(client.Connected() == monitor);
  CHECK(server.echo().counts().unary == 0);
  CHECK(client.circuit_totals().successes == 0);
}

TEST_CASE("R1, L2: creating a client dials nothing, and 100 checks open one connection") {
  EchoServer server;
  const auto router = RouterTo({server.port()});
  Client client = MakeClient({.address = router->address()});
  std::this_thread::sleep_for(50ms);
  CHECK_FALSE(client.Connected()->ready());
  CHECK(router->stats().accepted == 0);
  std::vector<std::future<bool>> checks;
  for (int n = 0; n < 100; ++n) checks.push_back(Check(*client.Connected(), In(kLimit)));
  for (auto& check : checks) CHECK(check.get());
  CHECK(router->stats().accepted == 1);
  CHECK(Call(client));
  CHECK(router->stats().accepted == 1);
}

TEST_CASE("R1: a first call makes it ready as well") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  const auto monitor = client.Connected();
  CHECK(Call(client));
  CHECK(monitor->ready());
}

TEST_CASE("R1: a client whose connection has gone idle stays ready, and connects again with its next call") {
  EchoServer server;
  const auto router = RouterTo({server.port()});
  ClientSettings settings{.address = router->address()};
  settings.channel_arguments = [](grpc::ChannelArguments& arguments) { arguments.SetInt(GRPC_ARG_CLIENT_IDLE_TIMEOUT_MS, 1'000); };
  Client client = MakeClient(std::move(settings));
  const auto monitor = client.Connected();
  CHECK(Checked(*monitor));
  CHECK(Call(client));
  REQUIRE(Eventually([&] { return router->connections().empty(); }));
  CHECK(monitor->ready());
  CHECK(Checked(*monitor, In(kLimit)));
  CHECK(Call(client));
  CHECK(monitor->ready());
  CHECK(router->stats().accepted == 2);
}

TEST_CASE("R1: it stays ready through an outage and an open breaker, until the client is closed") {
  auto server = std::make_unique<EchoServer>();
  Client client = MakeClient({.address = server->address(), .max_attempts = 1, .breaker = {.consecutive_failures = 1}});
  const auto monitor = client.Connected();
  CHECK(Checked(*monitor));
  server.reset();
  REQUIRE(Eventually([&] {
    Call(client);
    return client.circuit_state() == CircuitState::kOpen;
  }));
  CHECK(monitor->ready());
  CHECK(Checked(*monitor, In(-1s)));
  client.Close();
  CHECK_FALSE(monitor->ready());
  CHECK_FALSE(Checked(*monitor));
}

TEST_CASE("R1: an open breaker keeps no check from connecting") {
  EchoServer server;
  const auto router = RouterTo({});
  Client client = MakeClient(
      {.address = router->address(), .max_attempts = 1, .breaker = {.consecutive_failures = 1, .open_for = 1h}});
  CHECK_FALSE(Call(client));
  REQUIRE(client.circuit_state() == CircuitState::kOpen);
  auto check = Check(*client.Connected(), In(kLimit));
  CHECK(check.wait_for(300ms) == std::future_status::timeout);
  router->SetTargets({server.port()});
  CHECK(check.get());
  CHECK(client.circuit_state() == CircuitState::kOpen);
}

TEST_CASE("R1: a check ends with false at its deadline, on the client's own clock") {
  const auto router = RouterTo({});
  const auto time = std::make_shared<testing::ManualTime>();
  Client client = MakeClient({.address = router->address(), .time = time});
  const auto monitor = client.Connected();
  CHECK_FALSE(Checked(*monitor, time->Now()));
  auto check = Check(*monitor, time->Now() + 5s);
  auto later = Check(*monitor, time->Now() + 10s);
  time->Advance(5s - 1ns);
  CHECK(check.wait_for(20ms) == std::future_status::timeout);
  time->Advance(1ns);
  CHECK_FALSE(check.get());
  CHECK(later.wait_for(20ms) == std::future_status::timeout);
  time->Advance(5s);
  CHECK_FALSE(later.get());
}

TEST_CASE("R1: the first check that ends without a connection is told to the log, by the dependency's name, and no later one") {
  const auto router = RouterTo({});
  std::mutex mutex;
  std::string log;
  SetLogSink([&](LogSeverity, const std::string& line) {
    const std::lock_guard lock(mutex);
    log += line + "\n";
  });
  const auto lines = [&] {
    const std::lock_guard lock(mutex);
    return std::count(log.begin(), log.end(), '\n');
  };
  const auto time = std::make_shared<testing::ManualTime>();
  Client client = MakeClient({.address = router->address(), .time = time});
  for (int n = 0; n < 3; ++n) {
    auto check = Check(*client.Connected(), time->Now() + 1s);
    time->Advance(1s);
    CHECK_FALSE(check.get());
    REQUIRE(Eventually([&] { return lines() > 0; }));
  }
  client.Close();
  SetLogSink({});
  CHECK(lines() == 1);
  CHECK(log.find(router->address() + " was not connected") != std::string::npos);
}

TEST_CASE("R1: closing, or dropping, the client ends a check with false") {
  const auto router = RouterTo({});
  for (const bool close : {true, false}) {
    std::shared_ptr<ReadinessMonitor> monitor;
    std::future<bool> check;
    std::future<bool> endless;
    {
      Client client = MakeClient({.address = router->address()});
      monitor = client.Connected();
      check = Check(*monitor, In(1h));
      endless = Check(*monitor, TimePoint::max());
      if (close) client.Close();
    }
    REQUIRE(check.wait_for(kLimit) == std::future_status::ready);
    CHECK_FALSE(check.get());
    CHECK_FALSE(endless.get());
    CHECK_FALSE(monitor->ready());
    CHECK_FALSE(Checked(*monitor));
  }
}

TEST_CASE("R1: a connection whose handshake is held is not ready, nor is one whose TLS fails") {
  EchoServer server;
  const auto router = RouterTo({server.port()});
  router->HoldNew(true);
  Client client = MakeClient({.address = router->address()});
  auto check = Check(*client.Connected(), In(kLimit));
  REQUIRE(router->WaitUntil([](const auto& stats) { return stats.held > 0; }));
  CHECK(check.wait_for(100ms) == std::future_status::timeout);
  CHECK_FALSE(client.Connected()->ready());
  router->HoldNew(false);
  router->Release();
  CHECK(check.get());

  const testing::CertificateAuthority authority;
  const testing::CertificateAuthority other("other");
  const testing::Identity identity = authority.Issue();
  grpc::SslServerCredentialsOptions options;
  options.pem_key_cert_pairs.push_back({identity.key, identity.certificate});
  EchoServer secure(EchoServerOptions{.credentials = grpc::SslServerCredentials(options)});
  const auto ready = [&](const std::string& roots, Duration wait) {
    Result<Client> made = Client::Create({.address = secure.address(), .tls = Tls{.roots = roots}});
    REQUIRE(made.ok());
    return Checked(*made->Connected(), In(wait));
  };
  CHECK_FALSE(ready(other.certificate(), 300ms));
  CHECK(ready(authority.certificate(), kLimit));
}

TEST_CASE("R1: a check's function may check again, drop the client, or throw") {
  EchoServer server;
  auto client = std::make_unique<Client>(MakeClient({.address = server.address()}));
  const auto monitor = client->Connected();
  std::promise<bool> done;
  monitor->Check(In(kLimit), [&](bool) {
    monitor->Check(In(kLimit), [&](bool ready) {
      client.reset();
      done.set_value(ready);
      throw 7;
    });
  });
  CHECK(done.get_future().get());
  CHECK_FALSE(monitor->ready());
}

TEST_CASE("R1: checks, closing and connecting at once end every check once") {
  EchoServer server;
  for (int round = 0; round < 20; ++round) {
    auto client = std::make_unique<Client>(MakeClient({.address = server.address()}));
    const auto monitor = client->Connected();
    std::atomic<int> told{0};
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 3; ++thread) {
      threads.emplace_back([&] {
        for (int n = 0; n < 20; ++n) monitor->Check(In(std::chrono::microseconds(n * 100)), [&](bool) { ++told; });
      });
    }
    if (round % 2 == 0) client.reset();
    for (auto& thread : threads) thread.join();
    CHECK(Eventually([&] { return told == 60; }));
  }
}

}  // namespace penstock::test
