#include <doctest/doctest.h>
#include <grpcpp/security/tls_certificate_provider.h>

#include "grpc/health/v1/health.grpc.pb.h"
#include "penstock/server/auth.h"
#include "penstock/testing/certificates.h"
#include "support/server_fixture.h"

namespace penstock::test {
namespace {

namespace health = grpc::health::v1;
using Serving = health::HealthCheckResponse;

// A dependency that is there when the test says so.
class Dependency final : public ReadinessMonitor {
 public:
  bool ready() const noexcept override { return ready_; }
  void Check(TimePoint, std::function<void(bool)> done) override {
    std::lock_guard lock(mutex_);
    ++checks;
    if (ready_) {
      done(true);
    } else {
      waiting_.push_back(std::move(done));
    }
  }
  void Turn(bool ready) {
    std::vector<std::function<void(bool)>> waiting;
    {
      std::lock_guard lock(mutex_);
      ready_ = ready;
      waiting.swap(waiting_);
    }
    for (auto& done : waiting) done(ready);
  }
  std::atomic<int> checks{0};

 private:
  std::mutex mutex_;
  std::atomic<bool> ready_{false};
  std::vector<std::function<void(bool)>> waiting_;
};

int Check(health::Health::Stub& stub, const std::string& service) {
  grpc::ClientContext context;
  SetLimit(context);
  health::HealthCheckRequest request;
  request.set_service(service);
  health::HealthCheckResponse response;
  const grpc::Status status = stub.Check(&context, request, &response);
  return status.ok() ? static_cast<int>(response.status()) : -static_cast<int>(status.error_code());
}

TEST_CASE("V8, R2: readiness follows the monitors, for the server and for one service; liveness does not; Watch hears of each change") {
  GuardedEcho echo;
  auto database = std::make_shared<Dependency>();
  auto ledger = std::make_shared<Dependency>();
  auto settings = LocalSettings();
  settings.readiness = {database};
  settings.service_readiness["penstock.test.v1.Echo"] = {ledger};
  // Health checks are not asked who they are, and pass every cap.
  settings.authenticator = BearerTokens([](std::string_view) { return std::nullopt; });
  settings.max_unary_calls = 1;
  settings.health_address = "127.0.0.1:0";
  auto server = MakeServer(settings, {&echo});
  REQUIRE(server->health_port() != 0);
  auto stub = health::Health::NewStub(ChannelTo(AddressOf(*server)));
  auto own_port = health::Health::NewStub(ChannelTo("127.0.0.1:" + std::to_string(server->health_port())));
  grpc::ClientContext context, unknown_context;
  SetLimit(context);
  SetLimit(unknown_context);
  auto watch = own_port->Watch(&context, health::HealthCheckRequest());
  Serving watched;
  REQUIRE(watch->Read(&watched));
  CHECK(watched.status() == Serving::NOT_SERVING);
  CHECK(Check(*stub, "") == Serving::NOT_SERVING);
  CHECK(Check(*stub, "liveness") == Serving::SERVING);
  CHECK(Check(*stub, "penstock.test.v1.Echo") == Serving::NOT_SERVING);
  CHECK(Check(*stub, "no.Such") == -grpc::StatusCode::NOT_FOUND);

  health::HealthCheckRequest unknown;
  unknown.set_service("no.Such");
  auto unknown_watch = stub->Watch(&unknown_context, unknown);
  health::HealthCheckResponse unknown_status;
  REQUIRE(unknown_watch->Read(&unknown_status));
  CHECK(unknown_status.status() == Serving::SERVICE_UNKNOWN);

  REQUIRE(Eventually([&] { return database->checks == 1 && ledger->checks == 1; }));
  database->Turn(true);
  REQUIRE(watch->Read(&watched));
  CHECK(watched.status() == Serving::SERVING);
  CHECK(Check(*stub, "readiness") == Serving::SERVING);
  CHECK(Check(*stub, "penstock.test.v1.Echo") == Serving::NOT_SERVING);
  ledger->Turn(false);  // a check that failed is made again
  REQUIRE(Eventually([&] { return ledger->checks == 2; }));
  ledger->Turn(true);
  CHECK(Eventually([&] { return Check(*own_port, "penstock.test.v1.Echo") == Serving::SERVING; }));

  CHECK_FALSE(server->SetServing("no.Such", false));
  CHECK_FALSE(server->SetServing("liveness", false));
  CHECK(server->SetServing("", false));
  REQUIRE(watch->Read(&watched));
  CHECK(watched.status() == Serving::NOT_SERVING);
  CHECK(Check(*stub, "penstock.test.v1.Echo") == Serving::NOT_SERVING);
  server->SetServing("", true);
  REQUIRE(watch->Read(&watched));
  CHECK(watched.status() == Serving::SERVING);
  server->SetServing("penstock.test.v1.Echo", false);
  CHECK(Check(*stub, "") == Serving::SERVING);
  CHECK(Check(*stub, "penstock.test.v1.Echo") == Serving::NOT_SERVING);

  server->Shutdown();
  while (watch->Read(&watched)) {
  }
  CHECK(watch->Finish().error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK_FALSE(unknown_watch->Read(&unknown_status));
  CHECK(unknown_watch->Finish().error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK(server->Wait() == 0);
}

struct CacheIsWarm final : penstock::ReadinessMonitor {
  bool ready() const noexcept override { return warm; }
  void Check(penstock::TimePoint, std::function<void(bool)> done) override { done(warm); }
  std::atomic<bool> warm{false};
};

TEST_CASE("R2: a monitor that answers inside its check, as in docs/readiness.md, is asked again, and Watch hears of it") {
  GuardedEcho echo;
  auto cache = std::make_shared<CacheIsWarm>();
  auto settings = LocalSettings();
  settings.readiness = {cache};
  auto server = MakeServer(settings, {&echo});
  auto stub = health::Health::NewStub(ChannelTo(AddressOf(*server)));
  grpc::ClientContext context;
  SetLimit(context);
  auto watch = stub->Watch(&context, health::HealthCheckRequest());
  Serving watched;
  REQUIRE(watch->Read(&watched));
  CHECK(watched.status() == Serving::NOT_SERVING);
  cache->warm = true;
  REQUIRE(watch->Read(&watched));
  CHECK(watched.status() == Serving::SERVING);
  context.TryCancel();
  CHECK_FALSE(watch->Read(&watched));
}

// --- T1, V1, V9, V11: settings --------------------------------------------------------------------------------------

std::string ErrorOf(ServerSettings settings, std::vector<AnyService*> services) {
  auto server = Server::Create(std::move(settings), std::move(services));
  return server.ok() ? "" : server.error().message();
}

TEST_CASE("T1, V1: every bad setting is named in one error") {
  GuardedEcho echo;
  ServerSettings settings;
  settings.address = "http://x:1";
  settings.drain = -1s;
  settings.grace = -1s;
  settings.handshake_window = 11s;
  settings.max_connection_age_grace = 1s;
  settings.handshake_timeout = 0s;
  settings.permitted_keepalive = 0s;
  settings.max_receive_bytes = 0;
  settings.max_streams_per_connection = 0;
  settings.max_unary_calls = 0;
  settings.max_streams = 0;
  settings.pushback = -1ms;
  settings.readiness = {nullptr};
  settings.health_address = "x";
  settings.observers = {nullptr};
  settings.filters.emplace_back();
  settings.service_readiness["no.Such"] = {};
  const std::string error = ErrorOf(settings, {&echo, &echo, nullptr});
  for (const char* field :
       {"address: ", "tls, plaintext: neither is set", "drain: -1000 ms; expected 0 ms to 86400000 ms", "grace: ", "handshake_window: ", "max_connection_age_grace: ", "handshake_timeout: ",
        "permitted_keepalive: ", "max_receive_bytes: ", "max_streams_per_connection: ", "max_unary_calls: ", "max_streams: 0; expected 1 to 2147483647, or unset",
        "pushback: ", "readiness: ", "health_address: ", "observers: ", "filters: ", "service_readiness: ", "services: null; expected services",
        "services: penstock.test.v1.Echo is given twice"}) {
    CAPTURE(field);
    CHECK((error.starts_with(field) || error.find(std::string("\n") + field) != std::string::npos));
  }
  settings = LocalSettings();
  settings.tls = Tls{};
  const std::string both = ErrorOf(settings, {&echo});
  CHECK(both.find("tls, plaintext: both are set; expected exactly one of the two\n") == 0);
  CHECK(both.find("\ntls.certificate: ") != std::string::npos);
}

TEST_CASE("V9: a connection age of 0 or less is refused, and the longest is taken") {
  GuardedEcho echo;
  auto settings = LocalSettings();
  for (const Duration age : {Duration(0), Duration(-1)}) {
    settings.max_connection_age = age;
    CHECK(ErrorOf(settings, {&echo}).starts_with("max_connection_age: "));
  }
  settings.max_connection_age = std::chrono::milliseconds(std::numeric_limits<int>::max());
  CHECK(ErrorOf(settings, {&echo}).empty());
}

TEST_CASE("V9: at the connection's age a stream ends with UNAVAILABLE after the grace, and calls go on") {
  GuardedEcho echo;
  auto settings = LocalSettings();
  settings.max_connection_age = 300ms;
  settings.max_connection_age_grace = 200ms;
  auto server = MakeServer(settings, {&echo});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  grpc::ClientContext context;
  SetLimit(context);
  auto reader = stub->Down(&context, EchoRequest());
  EchoResponse response;
  std::thread caller([&] {
    EchoResponse own;
    for (int i = 0; i < 20; ++i) {
      CHECK(CallUnary(*stub, EchoRequest(), &own).ok());
      std::this_thread::sleep_for(50ms);
    }
  });
  CHECK_FALSE(reader->Read(&response));
  CHECK(reader->Finish().error_code() == grpc::StatusCode::UNAVAILABLE);
  caller.join();
  CHECK(Eventually([&] { return echo.streams.done == 1; }));
}

TEST_CASE("V1: a message over the limit is refused, and the server serves on") {
  GuardedEcho echo;
  auto settings = LocalSettings();
  settings.max_receive_bytes = 1000;
  auto server = MakeServer(settings, {&echo});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  EchoRequest request;
  EchoResponse response;
  request.set_text(std::string(2000, 'x'));
  CHECK(CallUnary(*stub, request, &response).error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  request.set_text("small");
  CHECK(CallUnary(*stub, request, &response).ok());
}

TEST_CASE("V1: with as many calls as a connection may have, the next one waits at its client") {
  GuardedEcho echo;
  std::mutex mutex;
  std::vector<Reply> kept;
  echo.on_repeatable = [&](auto*, const auto&, auto*, Reply reply) {
    std::lock_guard lock(mutex);
    kept.push_back(std::move(reply));
  };
  const auto arrived = [&] {
    std::lock_guard lock(mutex);
    return kept.size();
  };
  auto settings = LocalSettings();
  settings.max_streams_per_connection = 1;
  auto server = MakeServer(settings, {&echo});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  EchoResponse before;
  CHECK(CallUnary(*stub, EchoRequest(), &before).ok());  // the client has read the server's SETTINGS
  std::vector<std::thread> callers;
  for (int i = 0; i < 2; ++i) {
    callers.emplace_back([&] {
      grpc::ClientContext context;
      SetLimit(context);
      EchoResponse response;
      CHECK(stub->Repeatable(&context, EchoRequest(), &response).ok());
    });
  }
  CHECK(Eventually([&] { return arrived() == 1; }));
  std::this_thread::sleep_for(100ms);
  CHECK(arrived() == 1);
  kept.front().Finish(grpc::Status::OK);
  CHECK(Eventually([&] { return arrived() == 2; }));
  kept.back().Finish(grpc::Status::OK);
  for (std::thread& caller : callers) caller.join();
}

// --- TLS ------------------------------------------------------------------------------------------------------------

std::unique_ptr<v1::Echo::Stub> TlsStub(int port, const std::string& roots, const testing::Identity* identity) {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = roots;
  if (identity != nullptr) {
    options.pem_cert_chain = identity->certificate;
    options.pem_private_key = identity->key;
  }
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt("grpc.enable_http_proxy", 0);
  return v1::Echo::NewStub(
      grpc::CreateCustomChannel("localhost:" + std::to_string(port), grpc::SslCredentials(options), arguments));
}

TEST_CASE("V1, V7: mTLS requires a client certificate, and its name is the caller's identity") {
  GuardedEcho echo;
  const testing::CertificateAuthority authority, stranger;
  const testing::Identity own = authority.Issue();
  const testing::Identity client = authority.Issue({.common_name = "wallet", .names = {"wallet.example"}, .addresses = {}});
  const testing::Identity strange = stranger.Issue();
  std::string subject;
  echo.on_unary = [&](auto* context, const auto&, auto*) {
    subject = ServerCall::Of(context)->identity().subject;
    return grpc::Status::OK;
  };
  auto settings = LocalSettings();
  settings.plaintext = false;
  settings.tls = Tls{.roots = authority.certificate(), .certificate = own.certificate, .key = own.key};
  settings.authenticator = MutualTlsIdentity([](const Identity& identity) { return identity.subject == "wallet.example"; });
  auto server = MakeServer(settings, {&echo});
  EchoResponse response;
  const grpc::Status status = CallUnary(*TlsStub(server->port(), authority.certificate(), &client), EchoRequest(), &response);
  CHECK_MESSAGE(status.ok(), status.error_message());
  CHECK(subject == "wallet.example");
  CHECK(CallUnary(*TlsStub(server->port(), authority.certificate(), nullptr), EchoRequest(), &response).error_code() ==
        grpc::StatusCode::UNAVAILABLE);
  CHECK(CallUnary(*TlsStub(server->port(), authority.certificate(), &strange), EchoRequest(), &response).error_code() ==
        grpc::StatusCode::UNAVAILABLE);
  const testing::Identity other = authority.Issue({.common_name = "other", .names = {"other.example"}, .addresses = {}});
  CHECK(CallUnary(*TlsStub(server->port(), authority.certificate(), &other), EchoRequest(), &response).error_code() ==
        grpc::StatusCode::PERMISSION_DENIED);
}

TEST_CASE("V11, T3: bad certificate material is refused at creation, with its field") {
  GuardedEcho echo;
  const testing::CertificateAuthority authority;
  const testing::Identity wrong = authority.IssueWithWrongKey();
  auto settings = LocalSettings();
  settings.plaintext = false;
  settings.tls = Tls{.certificate = wrong.certificate, .key = wrong.key};
  CHECK(ErrorOf(settings, {&echo}).find("tls.") != std::string::npos);
  settings.tls = Tls{.certificate = testing::MalformedCertificate(), .key = wrong.key};
  CHECK(ErrorOf(settings, {&echo}).find("tls.certificate") != std::string::npos);
  settings.tls = Tls{.certificate_file = "/no/such/file.pem", .key_file = "/no/such/key.pem"};
  CHECK(ErrorOf(settings, {&echo}).find("/no/such/file.pem") != std::string::npos);
}

TEST_CASE("V1: replaced certificate files take effect without a restart, and what does not fit leaves the good ones") {
  LogKeeper log;
  GuardedEcho echo;
  const testing::CertificateAuthority first, second;
  const testing::TemporaryFolder folder;
  const testing::Identity before = first.Issue(), after = second.Issue();
  auto settings = LocalSettings();
  settings.plaintext = false;
  settings.tls = Tls{.certificate_file = folder.Write("tls.crt", before.certificate), .key_file = folder.Write("tls.key", before.key)};
  auto server = MakeServer(settings, {&echo});
  EchoResponse response;
  const auto reaches = [&](const testing::CertificateAuthority& authority) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + 3s);
    return TlsStub(server->port(), authority.certificate(), nullptr)->Unary(&context, EchoRequest(), &response).ok();
  };
  CHECK(reaches(first));
  CHECK_FALSE(reaches(second));
  folder.Write("tls.crt", after.certificate);  // the key is still the old one: a replacement under way
  std::this_thread::sleep_for(1100ms);         // files are looked at once a second at most
  CHECK(reaches(first));
  folder.Write("tls.key", after.key);
  CHECK(Eventually([&] { return reaches(second); }));
  CHECK_FALSE(reaches(first));
}

// A monitor that tells the server something whenever it is asked.
class Teller final : public ReadinessMonitor {
 public:
  bool ready() const noexcept override {
    if (Server* const told = server; told != nullptr && asked++ < 10) {
      told->SetServing("penstock.test.v1.Echo", false);
      told->SetServing("penstock.test.v1.Echo", true);
    }
    return true;
  }
  void Check(TimePoint, std::function<void(bool)> done) override { done(true); }
  std::atomic<Server*> server{nullptr};
  mutable std::atomic<int> asked{0};
};

TEST_CASE("V8: a monitor may change what the server says while it is asked") {
  GuardedEcho echo;
  auto teller = std::make_shared<Teller>();
  auto settings = LocalSettings();
  settings.readiness = {teller};
  auto server = MakeServer(settings, {&echo});
  auto stub = health::Health::NewStub(ChannelTo(AddressOf(*server)));
  grpc::ClientContext context;
  SetLimit(context);
  health::HealthCheckRequest request;
  request.set_service("penstock.test.v1.Echo");
  auto watch = stub->Watch(&context, request);
  Serving watched;
  REQUIRE(watch->Read(&watched));
  teller->server = server.get();
  server->SetServing("", false);
  server->SetServing("", true);
  CHECK(Eventually([&] { return teller->asked > 10; }));
  CHECK(Eventually([&] { return Check(*stub, "penstock.test.v1.Echo") == Serving::SERVING; }));
  teller->server = nullptr;
}

TEST_CASE("V3, V8: servers with a health port that are made at once each count their own connections") {
  LogKeeper log;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int made = 0; made < 40; ++made) {
        GuardedEcho echo;
        auto settings = LocalSettings();
        settings.health_address = "127.0.0.1:0";
        MakeServer(std::move(settings), {&echo});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_FALSE(log.Has("cannot be counted"));
}

}  // namespace
}  // namespace penstock::test
