// Peers that mean no good, or do nothing, hold no server: each is bounded by drain, grace and a second, and none slows others.
#include <doctest/doctest.h>

#include <algorithm>

#include "grpc/health/v1/health.grpc.pb.h"
#include "penstock/testing/certificates.h"
#include "penstock/testing/raw_client.h"
#include "support/server_fixture.h"

namespace penstock::test {
namespace {

using Steady = std::chrono::steady_clock;
using testing::RawClient;
using Connection = std::unique_ptr<RawClient>;

Connection Connect(int port, testing::RawClientSettings settings = {}) {
  auto client = RawClient::Connect(static_cast<std::uint16_t>(port), settings);
  if (!client.ok()) FAIL(client.error().message());
  return *std::move(client);
}

constexpr std::string_view kHalfAPreface = "PRI * HTTP";

struct Hostile {
  const char* what;
  Connection (*connect)(int port, bool tls);
};

const Hostile kHostile[] = {
    // On a TLS server: no ClientHello ever comes.
    {"a silent connection", [](int port, bool) { return Connect(port); }},
    {"TLS, and then silence", [](int port, bool tls) { return Connect(port, {.tls = tls}); }},
    {"half a preface",
     [](int port, bool tls) {
       auto peer = Connect(port, {.tls = tls});
       CHECK(peer->Send(kHalfAPreface));
       return peer;
     }},
    {"SETTINGS, and no PING is ever acknowledged",
     [](int port, bool tls) {
       auto peer = Connect(port, {.tls = tls, .acknowledge = false});
       CHECK(peer->StartHttp2());
       return peer;
     }},
    {"another protocol",
     [](int port, bool tls) {
       auto peer = Connect(port, {.tls = tls});
       CHECK(peer->Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
       return peer;
     }},
    {"a client that never reads its endless stream",
     [](int port, bool tls) {
       auto peer = Connect(port, {.tls = tls, .receive_buffer = 4096, .acknowledge = false});
       EchoRequest endless;
       endless.set_count(10'000'000);
       CHECK(peer->StartHttp2());
       CHECK(peer->Request(1, "/penstock.test.v1.Echo/Down", {}, endless.SerializeAsString()));
       return peer;
     }},
};

// A server with these peers on it: others are answered, and it stops in time.
void LeaveWith(const std::vector<Hostile>& peers, bool tls) {
  CAPTURE(std::string(peers.front().what));
  CAPTURE(tls);
  GuardedEcho echo;
  const testing::CertificateAuthority authority;
  const testing::Identity identity = authority.Issue();
  auto settings = LocalSettings();
  settings.grace = 3s;
  if (tls) {
    settings.plaintext = false;
    settings.tls = Tls{.certificate = identity.certificate, .key = identity.key};
  }
  auto server = MakeServer(settings, {&echo});
  std::vector<Connection> connections;
  for (const Hostile& peer : peers) connections.push_back(peer.connect(server->port(), tls));
  {
    grpc::ChannelArguments arguments;
    arguments.SetInt("grpc.enable_http_proxy", 0);
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = authority.certificate();
    const auto credentials = tls ? grpc::SslCredentials(options) : grpc::InsecureChannelCredentials();
    auto stub = v1::Echo::NewStub(grpc::CreateCustomChannel("localhost:" + std::to_string(server->port()), credentials, arguments));
    auto slowest = 0ns;
    for (int i = 0; i < 100; ++i) {
      EchoResponse response;
      const auto began = Steady::now();
      CHECK(CallUnary(*stub, EchoRequest(), &response).ok());
      slowest = std::max<std::chrono::nanoseconds>(slowest, Steady::now() - began);
    }
    CHECK(slowest < Bound(100ms));
  }
  const auto began = Steady::now();
  server->Shutdown();
  CHECK(server->Wait() == 0);  // whoever did not read an answer was given it
  const auto took = Steady::now() - began;
  MESSAGE(std::string(peers.front().what) << std::string(peers.size() > 1 ? " and others" : "") << std::string(tls ? ", TLS" : "") << ": stopped after "
                             << std::chrono::duration<double>(took).count() << " s");
  CHECK(took < 4s + (FullRun() ? 0s : 2s));  // grace and a second; 20 s, or two minutes, without the bound
}

TEST_CASE("V10: silent peers, half a preface, no PING ACK, another protocol and a client that never reads, all at once") {
  const std::vector<Hostile> all(std::begin(kHostile), std::end(kHostile));
  LeaveWith(all, false);
  LeaveWith(all, true);
}

TEST_CASE("V10: each of them alone" * doctest::skip(!FullRun())) {
  for (const bool tls : {false, true}) {
    for (const Hostile& peer : kHostile) LeaveWith({peer}, tls);
  }
}

TEST_CASE("V10: 100 open Watches end in time, with the status of every stream") {
  GuardedEcho echo;
  auto settings = LocalSettings();
  settings.grace = 4s;
  auto server = MakeServer(settings, {&echo});
  auto stub = grpc::health::v1::Health::NewStub(ChannelTo(AddressOf(*server)));
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<grpc::health::v1::HealthCheckResponse>>> watches;
  for (int i = 0; i < 100; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    SetLimit(*contexts.back());
    watches.push_back(stub->Watch(contexts.back().get(), {}));
  }
  CHECK(Eventually([&] { return server->counts().in_flight == 100; }));
  const auto began = Steady::now();
  server->Shutdown();
  CHECK(server->Wait() == 0);
  CHECK(Steady::now() - began < 4s);  // the grace is not needed
  for (auto& watch : watches) {
    grpc::health::v1::HealthCheckResponse response;
    while (watch->Read(&response)) {
    }
    CHECK(watch->Finish().error_code() == grpc::StatusCode::UNAVAILABLE);
  }
}

}  // namespace
}  // namespace penstock::test
