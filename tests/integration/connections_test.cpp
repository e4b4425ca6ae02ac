// What a client connects to, and how: balancing, names, restarts, proxies, TLS, sharing nothing.

#include <algorithm>
#include <doctest/doctest.h>
#include <grpcpp/generic/async_generic_service.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <thread>

#include "penstock/client/client.h"
#include "penstock/testing/certificates.h"
#include "penstock/testing/router.h"
#include "support/client_calls.h"
#include "support/echo_service.h"
#include "support/stub_dns.h"

namespace penstock::test {
namespace {

v1::EchoRequest Request() {
  v1::EchoRequest request;
  request.set_text("hello");
  return request;
}

WaitedCall<v1::EchoResponse> Call(Client& client, CallOptions options = {}) {
  return client.CallAndWait(PENSTOCK_METHOD(v1::Echo, Unary), Request(), std::move(options));
}

Client Made(ClientSettings settings) {
  Result<Client> client = Client::Create(std::move(settings));
  if (!client.ok()) FAIL(client.error().message());
  return *std::move(client);
}

// Three pods on one port, each with an address of its own.
struct ThreePods {
  ThreePods() {
    for (int attempt = 0; attempt < 20 && servers[2] == nullptr; ++attempt) {
      servers = {};
      servers[0] = Serve(0, 0);
      for (int place = 1; place < 3; ++place) servers[place] = Serve(place, servers[0]->port());
    }
    for (const auto& server : servers) REQUIRE(server != nullptr);
  }
  static std::string Host(int place) { return "127.0.0." + std::to_string(11 + place); }
  static std::unique_ptr<EchoServer> Serve(int place, int port) {
    return std::make_unique<EchoServer>(
        EchoServerOptions{.echo = {.pod = Host(place)}, .address = Host(place) + ":" + std::to_string(port)});
  }
  int port() const { return servers[0]->port(); }
  std::vector<std::string> addresses() const {
    std::vector<std::string> all;
    for (int place = 0; place < 3; ++place) all.push_back(Host(place) + ":" + std::to_string(port()));
    return all;
  }
  std::array<std::unique_ptr<EchoServer>, 3> servers;
};

// Which pods answered 30 calls, once all pods that can answer have.
std::map<std::string, int> ThirtyCalls(Client& client, std::size_t pods) {
  const auto warmed = [&] {
    std::map<std::string, int> seen;
    for (int call = 0; call < 6; ++call) {
      const auto waited = Call(client);
      if (waited.ok()) ++seen[waited.response.pod()];
    }
    return seen.size() == pods;
  };
  REQUIRE(Eventually(warmed));
  std::map<std::string, int> answered;
  for (int call = 0; call < 30; ++call) {
    const auto waited = Call(client);
    REQUIRE(waited.ok());
    ++answered[waited.response.pod()];
  }
  return answered;
}

}  // namespace

TEST_CASE("D1: pick_first keeps one connection, round_robin spreads calls over every address of a list") {
  const ThreePods pods;
  Client first = Made({.address = "", .addresses = pods.addresses(), .plaintext = true, .authority = "pods.test"});
  CHECK(ThirtyCalls(first, 1).begin()->second == 30);
  Client all = Made({.address = "",
                     .addresses = pods.addresses(),
                     .plaintext = true,
                     .connection = {.balancing = Balancing::kRoundRobin},
                     .authority = "pods.test"});
  for (const auto& [pod, calls] : ThirtyCalls(all, 3)) CHECK_MESSAGE(calls == 10, pod);
}

TEST_CASE("D1: a name with several addresses is balanced in the same way") {
  const ThreePods pods;
  const StubDns dns({ThreePods::Host(0), ThreePods::Host(1), ThreePods::Host(2)});
  const std::string address = "pods.test:" + std::to_string(pods.port());
  Client first = Made({.address = address, .plaintext = true, .connection = {.name_server = dns.address()}});
  CHECK(ThirtyCalls(first, 1).begin()->second == 30);
  Client all = Made({.address = address,
                     .plaintext = true,
                     .connection = {.balancing = Balancing::kRoundRobin, .name_server = dns.address()}});
  for (const auto& [pod, calls] : ThirtyCalls(all, 3)) CHECK_MESSAGE(calls == 10, pod);
}

TEST_CASE("D4: a client tells which backends its calls use, since when, and with what share") {
  const ThreePods pods;
  Client first = Made({.address = "", .addresses = pods.addresses(), .plaintext = true, .authority = "pods.test"});
  CHECK(first.connections().empty());
  Client all = Made({.address = "",
                     .addresses = pods.addresses(),
                     .plaintext = true,
                     .connection = {.balancing = Balancing::kRoundRobin},
                     .authority = "pods.test"});
  const TimePoint begin = SteadyClock().Now();
  ThirtyCalls(first, 1);
  ThirtyCalls(all, 3);
  for (int call = 0; call < 600; ++call) REQUIRE(Call(all).ok());
  REQUIRE(first.connections().size() == 1);
  CHECK(first.connections()[0].share == 1);
  CHECK(first.connections()[0].since >= begin);
  const std::vector<ClientConnection> seen = all.connections();
  REQUIRE(seen.size() == 3);
  std::vector<std::string> peers;
  double shares = 0;
  for (const ClientConnection& connection : seen) {
    peers.push_back(connection.peer);
    CHECK(connection.share > 0.2);
    shares += connection.share;
  }
  CHECK(shares == doctest::Approx(1));
  std::sort(peers.begin(), peers.end());
  std::vector<std::string> expected = pods.addresses();
  std::sort(expected.begin(), expected.end());
  CHECK(peers == expected);
}

TEST_CASE("D2: a backend that comes back at its address is found in about a second") {
  auto server = std::make_unique<EchoServer>();
  const std::string address = server->address();
  Client client =
      MakeClient({.address = address, .max_attempts = 1, .breaker = {.trip = [](const Counts&) { return false; }}});
  REQUIRE(Call(client).ok());
  for (const auto down : {300ms, 1500ms}) {
    server.reset();
    const auto until = std::chrono::steady_clock::now() + down;
    while (std::chrono::steady_clock::now() < until) {
      CHECK_FALSE(Call(client).ok());
      std::this_thread::sleep_for(10ms);
    }
    server = std::make_unique<EchoServer>(EchoServerOptions{.address = address});
    const auto back = std::chrono::steady_clock::now();
    REQUIRE(Eventually([&] { return Call(client).ok(); }));
    const auto took = std::chrono::steady_clock::now() - back;
    MESSAGE("down for ", down.count(), " ms, found after ", took / 1ms, " ms");
    // At most the highest wait and a fifth of it; the rest is for slow machines.
    CHECK(took < 5s);
  }
}

TEST_CASE("D2: a backend that is replaced behind its name is found in about a second") {
  ThreePods pods;
  StubDns dns({ThreePods::Host(0)});
  Client client = MakeClient({.address = "pods.test:" + std::to_string(pods.port()),
                              .max_attempts = 1,
                              .breaker = {.trip = [](const Counts&) { return false; }},
                              .connection = {.name_server = dns.address()}});
  REQUIRE(Eventually([&] { return Call(client).ok(); }));
  dns.Answer({ThreePods::Host(1)});
  pods.servers[0].reset();
  const auto gone = std::chrono::steady_clock::now();
  REQUIRE(Eventually([&] { return Call(client).ok(); }));
  const auto took = std::chrono::steady_clock::now() - gone;
  MESSAGE("found after ", took / 1ms, " ms and ", dns.questions(), " questions");
  CHECK(took < 5s);
}

TEST_CASE("L1, L2: clients of one address share nothing, and dial with their first call") {
  EchoServer server;
  auto router = testing::Router::Create({.targets = {server.port()}});
  REQUIRE(router.ok());
  Client one = MakeClient({.address = (*router)->address()});
  Client two = MakeClient({.address = (*router)->address()});
  CHECK((*router)->stats().accepted == 0);
  REQUIRE(Call(one).ok());
  CHECK((*router)->stats().accepted == 1);
  REQUIRE(Call(two).ok());
  CHECK((*router)->stats().accepted == 2);

  const auto connections = (*router)->connections();
  REQUIRE(connections.size() == 2);
  REQUIRE((*router)->CutConnection(connections[0].id));
  REQUIRE(Call(two).ok());
  CHECK((*router)->stats().accepted == 2);
  REQUIRE(Eventually([&] { return Call(one).ok(); }));
  CHECK((*router)->stats().accepted == 3);

  Client several = MakeClient({.address = (*router)->address(), .connection = {.channels = 3}});
  for (int call = 0; call < 6; ++call) REQUIRE(Call(several).ok());
  CHECK((*router)->stats().accepted == 6);
}

TEST_CASE("G5: proxy variables are ignored unless they are asked for") {
  EchoServer server;
  // Nothing listens there.
  const char* const names[] = {"http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY"};
  for (const char* name : names) ::setenv(name, "http://127.0.0.1:1", 1);
  Client client = MakeClient({.address = server.address()});
  CHECK(Call(client).ok());
  Client proxied =
      MakeClient({.address = server.address(), .timeout = 5s, .max_attempts = 1, .connection = {.use_proxy = true}});
  CHECK_FALSE(Call(proxied).ok());
  for (const char* name : names) ::unsetenv(name);
}

namespace {

// Notes what each call came with, and answers it with nothing.
struct NotingService final : grpc::CallbackGenericService {
  struct Reactor final : grpc::ServerGenericBidiReactor {
    grpc::ByteBuffer read;
    Reactor() { StartRead(&read); }
    void OnReadDone(bool) override { StartWriteAndFinish(&read, {}, grpc::Status::OK); }
    void OnDone() override { delete this; }
  };
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    const std::lock_guard lock(mutex);
    authority = context->host();
    identities = static_cast<int>(context->auth_context()->GetPeerIdentity().size());
    return new Reactor;
  }
  std::string Authority() {
    const std::lock_guard lock(mutex);
    return authority;
  }
  std::mutex mutex;
  std::string authority;
  int identities = 0;
};

struct NotingServer {
  explicit NotingServer(const std::shared_ptr<grpc::ServerCredentials>& credentials,
                        const std::string& address = "127.0.0.1:0") {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, credentials, &port);
    builder.RegisterCallbackGenericService(&service);
    server = builder.BuildAndStart();
    REQUIRE(server != nullptr);
  }
  ~NotingServer() { server->Shutdown(std::chrono::system_clock::now()); }
  NotingService service;
  int port = 0;
  std::unique_ptr<grpc::Server> server;
};

std::shared_ptr<grpc::ServerCredentials> ServerTls(const testing::Identity& identity, const std::string& roots = {}) {
  grpc::SslServerCredentialsOptions options(roots.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                                          : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = roots;
  options.pem_key_cert_pairs.push_back({identity.key, identity.certificate});
  return grpc::SslServerCredentials(options);
}

}  // namespace

TEST_CASE("L19, T3: TLS verifies the host of the address, which is the authority as given") {
  const testing::CertificateAuthority authority;
  NotingServer server(ServerTls(authority.Issue({.names = {"localhost"}, .addresses = {"127.0.0.1"}})));
  for (const std::string host : {"localhost", "127.0.0.1"}) {
    const std::string address = host + ":" + std::to_string(server.port);
    Client client = Made({.address = address, .tls = Tls{.roots = authority.certificate()}});
    const auto waited = Call(client);
    CHECK_MESSAGE(waited.ok(), waited.result.status.error_message());
    CHECK(server.service.Authority() == address);
  }
}

TEST_CASE("L19, T3: a server name override, or an authority, replaces the host that TLS verifies and what is sent") {
  const testing::CertificateAuthority authority;
  NotingServer server(ServerTls(authority.Issue({.names = {"ledger.test"}, .addresses = {}})));
  const std::string address = "127.0.0.1:" + std::to_string(server.port);
  Client plain = Made({.address = address, .tls = Tls{.roots = authority.certificate()}, .max_attempts = 1});
  CHECK(Call(plain).result.status.error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK(server.service.Authority().empty());

  Client overridden =
      Made({.address = address, .tls = Tls{.roots = authority.certificate(), .server_name_override = "ledger.test"}});
  CHECK(Call(overridden).ok());
  CHECK(server.service.Authority() == "ledger.test");
  Client named =
      Made({.address = address, .tls = Tls{.roots = authority.certificate()}, .authority = "ledger.test:9090"});
  CHECK(Call(named).ok());
  CHECK(server.service.Authority() == "ledger.test:9090");
  Client listed = Made({.address = "",
                        .addresses = {address},
                        .tls = Tls{.roots = authority.certificate()},
                        .authority = "ledger.test"});
  CHECK(Call(listed).ok());
  Client wrong = Made({.address = address,
                       .tls = Tls{.roots = authority.certificate(), .server_name_override = "other.test"},
                       .max_attempts = 1});
  CHECK_FALSE(Call(wrong).ok());
}

TEST_CASE("T3: mTLS shows the client's certificate, and roots of another authority are not trusted") {
  const testing::CertificateAuthority authority;
  const testing::CertificateAuthority other("other");
  const testing::TemporaryFolder folder;
  NotingServer server(ServerTls(authority.Issue(), authority.certificate()));
  const std::string address = "localhost:" + std::to_string(server.port);
  const testing::Identity identity = authority.Issue({.common_name = "wallet", .names = {"wallet"}, .addresses = {}});
  Client client = Made({.address = address,
                        .tls = Tls{.roots_file = folder.Write("ca", authority.certificate()),
                                   .certificate_file = folder.Write("certificate", identity.certificate),
                                   .key_file = folder.Write("key", identity.key)}});
  const auto waited = Call(client);
  CHECK_MESSAGE(waited.ok(), waited.result.status.error_message());
  CHECK(server.service.identities == 1);
  Client without = Made({.address = address, .tls = Tls{.roots = authority.certificate()}, .max_attempts = 1});
  CHECK_FALSE(Call(without).ok());
  Client distrusting = Made({.address = address, .tls = Tls{.roots = other.certificate()}, .max_attempts = 1});
  CHECK_FALSE(Call(distrusting).ok());
}

TEST_CASE("T1, T3: a client with malformed certificates is refused at its creation, with all that is wrong") {
  const testing::CertificateAuthority authority;
  const testing::Identity wrong = authority.IssueWithWrongKey();
  const auto error = [](ClientSettings settings) {
    const Result<Client> client = Client::Create(std::move(settings));
    REQUIRE_FALSE(client.ok());
    return client.error().message();
  };
  CHECK(error({.address = "x:1", .tls = Tls{.roots = testing::MalformedCertificate()}})
            .starts_with("tls.roots: is malformed"));
  CHECK(error({.address = "x:1", .tls = Tls{.certificate = wrong.certificate, .key = wrong.key}}) ==
        "tls.key: does not fit the certificate");
  const std::string all = error({.address = "x", .tls = Tls{.roots = "", .key_file = "/none"}, .timeout = 0s});
  for (const char* part : {"address: \"x\" has no port", "timeout: 0 ms", "tls.roots: is empty",
                           "tls.key_file /none: cannot be read", "tls.certificate: is missing"}) {
    CHECK_MESSAGE(all.find(part) != std::string::npos, all);
  }
}

TEST_CASE("T2, L19: a Unix socket is connected to, and sends the authority that it was given") {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/ledger.sock";
  NotingServer server(grpc::InsecureServerCredentials(), "unix:" + path);
  Client client = Made({.address = "", .unix_socket = path, .plaintext = true, .authority = "ledger"});
  CHECK(Call(client).ok());
  CHECK(server.service.Authority() == "ledger");
}

TEST_CASE("T2: an IPv6 address in brackets is connected to") {
  grpc::ServerBuilder builder;
  int port = 0;
  NotingService service;
  builder.AddListeningPort("[::1]:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    MESSAGE("no IPv6 here");
    return;
  }
  const std::string address = "[::1]:" + std::to_string(port);
  Client client = MakeClient({.address = address});
  CHECK(Call(client).ok());
  CHECK(service.Authority() == address);
  Client listed = Made({.address = "", .addresses = {address}, .plaintext = true, .authority = "ledger"});
  CHECK(Call(listed).ok());
  server->Shutdown(std::chrono::system_clock::now());
}

}  // namespace penstock::test
