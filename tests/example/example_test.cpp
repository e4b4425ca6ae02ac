// The wallet and the ledger as whole processes, replaced, killed and configured wrongly.

// A false alarm of g++ 12 in <regex> under a sanitizer.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#include <doctest/doctest.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "example/series.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "support/postgres.h"

namespace penstock::test {

TEST_CASE("S7, V4: no watch of the wallet ends while the ledger is replaced, on SQLite") {
  Setting setting;
  RollOut(setting, 8, 3, false);
  RollOut(setting, 64, 1, true);
}

TEST_CASE("S7, V4: no watch of the wallet ends while the ledger is replaced, on PostgreSQL") {
  Postgres postgres;
  Setting setting(postgres.connection());
  RollOut(setting, 8, 1, true);
  RollOut(setting, 64, 1, false);
}

TEST_CASE("S8: a ledger that is down ends a watch with the wallet's own status, and a payment with what is known") {
  Setting setting;
  Client caller = setting.Caller();
  Watcher watcher;
  ::wallet::v1::WatchBalanceRequest request;
  request.set_account("bob");
  caller.Open(PENSTOCK_METHOD(Wallet, WatchBalance), request, {}, watcher);
  REQUIRE(Eventually([&] { return watcher.version() == 1; }));
  setting.KillLedger();
  CHECK(Eventually([&] { return watcher.ended(); }));
  CHECK(watcher.status().error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK(watcher.status().error_message() == "the ledger can't be reached");
  CHECK(ReasonOf(watcher.status()) == Refusal::LEDGER_UNAVAILABLE);
  const auto paid = caller.CallAndWait(PENSTOCK_METHOD(Wallet, Pay), Payment("down", 1));
  CHECK(paid.result.status.error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK(caller.CloseAndWait(std::chrono::steady_clock::now() + 30s));
}

TEST_CASE("C9: the ledger's refusals reach an app in the wallet's words, with their reason") {
  Setting setting;
  Client caller = setting.Caller();
  const auto pay = [&](::wallet::v1::PayRequest payment) { return caller.CallAndWait(PENSTOCK_METHOD(Wallet, Pay), std::move(payment)); };
  const auto first = pay(Payment("a", 10));
  REQUIRE_MESSAGE(first.ok(), first.result.status.error_message());
  CHECK(first.response.balance() == 99990);
  CHECK_FALSE(first.response.repeated());
  CHECK(pay(Payment("a", 10)).response.repeated());
  CHECK(ReasonOf(pay(Payment("a", 11)).result.status) == Refusal::PAYMENT_ID_REUSED);
  CHECK(ReasonOf(pay(Payment("b", 1'000'000)).result.status) == Refusal::INSUFFICIENT_FUNDS);
  CHECK(ReasonOf(pay(Payment("c", -1)).result.status) == Refusal::BAD_REQUEST);
  auto unknown = Payment("d", 1);
  unknown.set_to("nobody");
  const auto refused = pay(unknown);
  CHECK(refused.result.status.error_code() == grpc::StatusCode::NOT_FOUND);
  CHECK(ReasonOf(refused.result.status) == Refusal::UNKNOWN_ACCOUNT);
}

TEST_CASE("C10: whatever is killed under load at whatever moment, the money adds up and no payment is doubled") {
  Setting setting;
  KillUnderLoad(setting, 6);
}

namespace {

using grpc::health::v1::HealthCheckResponse;

HealthCheckResponse::ServingStatus Health(int port, const std::string& service, std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials()) {
  auto stub = grpc::health::v1::Health::NewStub(grpc::CreateChannel("localhost:" + std::to_string(port), credentials));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + 10s);
  context.set_wait_for_ready(true);
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  HealthCheckResponse response;
  return stub->Check(&context, request, &response).ok() ? response.status() : HealthCheckResponse::UNKNOWN;
}

// Alive and not ready, asked again and again for a second and a half.
void CheckNeverReady(int port, const std::shared_ptr<grpc::ChannelCredentials>& credentials = grpc::InsecureChannelCredentials()) {
  CHECK(Health(port, "liveness", credentials) == HealthCheckResponse::SERVING);
  for (const auto until = std::chrono::steady_clock::now() + 1500ms; std::chrono::steady_clock::now() < until;) {
    REQUIRE(Health(port, "readiness", credentials) == HealthCheckResponse::NOT_SERVING);
    REQUIRE(Health(port, "", credentials) == HealthCheckResponse::NOT_SERVING);
  }
}

std::string ContentOf(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("R2: a wallet whose ledger has a wrong address never turns ready but is alive, and one that reaches it is ready") {
  Setting setting;
  CHECK(Eventually([&] { return Health(setting.wallet_port(), "readiness") == HealthCheckResponse::SERVING; }));

  setting.router().SetTargets({});  // refuses every connection
  const auto accepted = setting.router().stats().accepted;
  Program lost({WALLET_PROGRAM, "--plaintext", "--address", "127.0.0.1:0", "--ledger-address", setting.router().address(), "--drain-ms", "0"});
  const auto port = lost.WaitForNumber("serving on port ");
  REQUIRE(port.has_value());
  CheckNeverReady(*port);
  CHECK(setting.router().stats().accepted > accepted);  // it has tried
  CHECK(Health(setting.wallet_port(), "readiness") == HealthCheckResponse::SERVING);  // a latch
  lost.Signal(SIGTERM);
  CHECK(lost.WaitForExit() == 0);
}

TEST_CASE("R2, T3: with TLS as certificates.sh makes it payments pass; a wallet that trusts another authority never turns ready") {
  testing::TemporaryFolder folder;
  for (const char* authority : {"/right", "/wrong"}) {
    Program script({"/bin/bash", CERTIFICATES_SCRIPT, folder.path() + authority});
    REQUIRE_MESSAGE(script.WaitForExit() == 0, script.text());
  }
  const std::string right = folder.path() + "/right/";
  Program ledger({LEDGER_PROGRAM, "--address", "127.0.0.1:0", "--database", folder.path() + "/ledger.db", "--accounts", "alice=10,bob=0", "--certificate",
                  right + "ledger.pem", "--key", right + "ledger.key", "--clients-ca", right + "ca.pem", "--drain-ms", "0"});
  const auto ledger_port = ledger.WaitForNumber("serving on port ");
  REQUIRE_MESSAGE(ledger_port.has_value(), ledger.text());
  const auto wallet = [&](const std::string& ca) {
    return Program({WALLET_PROGRAM, "--address", "127.0.0.1:0", "--ledger-address", "localhost:" + std::to_string(*ledger_port), "--ca", ca,
                    "--certificate", right + "wallet.pem", "--key", right + "wallet.key", "--drain-ms", "0"});
  };
  const auto credentials = grpc::SslCredentials({.pem_root_certs = ContentOf(right + "ca.pem"), .pem_private_key = {}, .pem_cert_chain = {}});

  Program trusting = wallet(right + "ca.pem");
  const auto port = trusting.WaitForNumber("serving on port ");
  REQUIRE_MESSAGE(port.has_value(), trusting.text());
  CHECK(Eventually([&] { return Health(*port, "readiness", credentials) == HealthCheckResponse::SERVING; }));
  auto app = Client::Create({.address = "localhost:" + std::to_string(*port), .tls = Tls{.roots_file = right + "ca.pem"}});
  REQUIRE(app.ok());
  CHECK(app->CallAndWait(PENSTOCK_METHOD(Wallet, Pay), Payment("tls", 3)).response.balance() == 7);

  Program doubting = wallet(folder.path() + "/wrong/ca.pem");
  const auto other_port = doubting.WaitForNumber("serving on port ");
  REQUIRE_MESSAGE(other_port.has_value(), doubting.text());
  CheckNeverReady(*other_port, credentials);
}

TEST_CASE("T1: a program that is configured wrongly names every bad value at once and ends with 78") {
  const auto check = [](Program program, const std::vector<std::string>& expected) {
    CHECK(program.WaitForExit() == 78);
    CAPTURE(program.text());
    for (const std::string& text : expected) CHECK_MESSAGE(program.text().find(text) != std::string::npos, text);
    CHECK(program.text().find("serving") == std::string::npos);
  };
  check(Program({LEDGER_PROGRAM, "--address", "", "--drain-ms", "soon", "--accounts", "alice", "--certificate", "/nowhere/c.pem", "--telemetry", "/nowhere", "--database", "", "--typo"},
                {"LEDGER_PLAINTEXT=perhaps", "LEDGER_HEALTH_ADDRESS=x:http"}),
        {"--address (LEDGER_ADDRESS)", "--drain-ms (LEDGER_DRAIN_MS)", "--accounts (LEDGER_ACCOUNTS)", "--certificate (LEDGER_CERTIFICATE)",
         "--key (LEDGER_KEY)", "--telemetry (LEDGER_TELEMETRY)", "--typo", "--plaintext (LEDGER_PLAINTEXT)", "--database (LEDGER_DATABASE)",
         "--health-address (LEDGER_HEALTH_ADDRESS)"});
  check(Program({WALLET_PROGRAM, "--ledger-address", "http://ledger", "--ledger-timeout-ms", "0", "--ca", "/nowhere/ca.pem"},
                {"WALLET_WATCH_GIVE_UP_MS=1e9", "WALLET_FAULTS=maybe"}),
        {"--ledger-address (WALLET_LEDGER_ADDRESS)", "http://ledger", "--ledger-timeout-ms (WALLET_LEDGER_TIMEOUT_MS)", "--ca (WALLET_CA)",
         "--certificate (WALLET_CERTIFICATE)", "--watch-give-up-ms (WALLET_WATCH_GIVE_UP_MS)", "--faults (WALLET_FAULTS)"});
  check(Program({WALLET_PROGRAM, "--ledger-address", "ledger:9090"}), {"or --plaintext"});
}

TEST_CASE("O3: a payment is one trace from the app over the wallet to the ledger, in the files that --telemetry names") {
  testing::TemporaryFolder folder;
  for (const char* name : {"/ledger", "/wallet"}) std::filesystem::create_directory(folder.path() + name);
  Program ledger({LEDGER_PROGRAM, "--plaintext", "--address", "127.0.0.1:0", "--database", folder.path() + "/ledger.db", "--accounts", "alice=10,bob=0",
                  "--drain-ms", "0", "--telemetry", folder.path() + "/ledger"});
  const auto ledger_port = ledger.WaitForNumber("serving on port ");
  REQUIRE_MESSAGE(ledger_port.has_value(), ledger.text());
  Program wallet({WALLET_PROGRAM, "--plaintext", "--address", "127.0.0.1:0", "--ledger-address", "localhost:" + std::to_string(*ledger_port), "--drain-ms", "0",
                  "--telemetry", folder.path() + "/wallet"});
  const auto port = wallet.WaitForNumber("serving on port ");
  if (!port && wallet.text().find("built without OpenTelemetry") != std::string::npos) return;
  REQUIRE_MESSAGE(port.has_value(), wallet.text());
  {
    auto app = Client::Create({.address = "localhost:" + std::to_string(*port), .plaintext = true});
    REQUIRE(app.ok());
    CallOptions options;
    options.metadata = {{"traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}};
    CHECK(app->CallAndWait(PENSTOCK_METHOD(Wallet, Pay), Payment("traced", 3), options).ok());
  }
  for (Program* program : {&wallet, &ledger}) {
    program->Signal(SIGTERM);
    CHECK(program->WaitForExit() == 0);
  }
  // By kind and name: the span's own id and its parent's.
  std::map<std::string, std::pair<std::string, std::string>> spans;
  const std::regex span(R"(name\s*: (\S+)\s+trace_id\s*: 0af7651916cd43dd8448eb211c80319c\s+span_id\s*: (\w+)\s+tracestate\s*:[^\n]*\s+parent_span_id: (\w+)[^{}]*span kind\s*: (\w+))");
  for (const char* program : {"/wallet", "/ledger"}) {
    const std::string text = ContentOf(folder.path() + program + "/traces.txt");
    for (std::sregex_iterator found(text.begin(), text.end(), span), end; found != end; ++found) spans[(*found)[4].str() + " " + (*found)[1].str()] = {(*found)[2], (*found)[3]};
  }
  REQUIRE(spans.size() == 3);
  CHECK(spans["Server wallet.v1.Wallet/Pay"].second == "b7ad6b7169203331");
  CHECK(spans["Client ledger.v1.Ledger/Transfer"].second == spans["Server wallet.v1.Wallet/Pay"].first);
  CHECK(spans["Server ledger.v1.Ledger/Transfer"].second == spans["Client ledger.v1.Ledger/Transfer"].first);
  CHECK(ContentOf(folder.path() + "/wallet/metrics.txt").find("penstock.retry.decisions") != std::string::npos);
  CHECK(ContentOf(folder.path() + "/ledger/metrics.txt").find("rpc.server.call.duration") != std::string::npos);
}

TEST_CASE("O1: --telemetry otlp brings spans and metrics to a collector, and one that is away keeps no program from ending") {
  // Any collector: it takes whatever comes, and notes it.
  class Collector final : public grpc::CallbackGenericService {
   public:
    std::map<std::string, std::string> all() const {
      std::lock_guard lock(mutex_);
      return all_;
    }

   private:
    class Taking final : public grpc::ServerGenericBidiReactor {
     public:
      Taking(Collector& collector, std::string method) : collector_(collector), method_(std::move(method)) { StartRead(&request_); }
      void OnReadDone(bool ok) override {
        if (!ok) return Finish(grpc::Status::CANCELLED);
        std::vector<grpc::Slice> slices;
        (void)request_.Dump(&slices);
        {
          std::lock_guard lock(collector_.mutex_);
          for (const grpc::Slice& slice : slices) collector_.all_[method_].append(reinterpret_cast<const char*>(slice.begin()), slice.size());
        }
        response_ = grpc::ByteBuffer(&empty_, 1);
        StartWriteAndFinish(&response_, {}, grpc::Status::OK);
      }
      void OnDone() override { delete this; }

     private:
      Collector& collector_;
      const std::string method_;
      const grpc::Slice empty_;
      grpc::ByteBuffer request_;
      grpc::ByteBuffer response_;
    };
    grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override { return new Taking(*this, context->method()); }

    mutable std::mutex mutex_;
    std::map<std::string, std::string> all_;
  } collector;
  int collector_port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &collector_port);
  builder.RegisterCallbackGenericService(&collector);
  auto server = builder.BuildAndStart();
  REQUIRE(server != nullptr);

  Setting setting;
  const auto start = [&](int port) {
    return Program({WALLET_PROGRAM, "--plaintext", "--address", "127.0.0.1:0", "--ledger-address", setting.router().address(), "--drain-ms", "0", "--telemetry", "otlp"},
                   {"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:" + std::to_string(port)});
  };
  const auto pay_and_end = [](Program& wallet, int port) {
    auto app = Client::Create({.address = "localhost:" + std::to_string(port), .plaintext = true});
    REQUIRE(app.ok());
    CHECK(app->CallAndWait(PENSTOCK_METHOD(Wallet, Pay), Payment("collected", 3)).ok());
    app->Close();
    wallet.Signal(SIGTERM);
    CHECK(wallet.WaitForExit() == 0);
  };
  Program observed = start(collector_port);
  const auto port = observed.WaitForNumber("serving on port ");
  if (!port && observed.text().find("built without OpenTelemetry") != std::string::npos) return;
  REQUIRE_MESSAGE(port.has_value(), observed.text());
  pay_and_end(observed, *port);
  const auto all = collector.all();
  REQUIRE(all.contains("/opentelemetry.proto.collector.trace.v1.TraceService/Export"));
  REQUIRE(all.contains("/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"));
  for (const char* text : {"wallet.v1.Wallet/Pay", "ledger.v1.Ledger/Transfer"}) {
    CHECK(all.at("/opentelemetry.proto.collector.trace.v1.TraceService/Export").find(text) != std::string::npos);
  }
  CHECK(all.at("/opentelemetry.proto.collector.metrics.v1.MetricsService/Export").find("penstock.circuit.state") != std::string::npos);
  server->Shutdown(std::chrono::system_clock::now());
  server->Wait();

  Program unobserved = start(collector_port);  // where nobody listens any more
  const auto other_port = unobserved.WaitForNumber("serving on port ");
  REQUIRE_MESSAGE(other_port.has_value(), unobserved.text());
  pay_and_end(unobserved, *other_port);
}

}  // namespace penstock::test
