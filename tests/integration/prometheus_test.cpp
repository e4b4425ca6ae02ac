// What Prometheus would scrape.

#include "penstock/prometheus/exporter.h"

#include <doctest/doctest.h>
#include <prometheus/text_serializer.h>

#include <atomic>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "penstock/client/client.h"
#include "penstock/testing/manual_time.h"
#include "prometheus/durations.h"
#include "support/server_fixture.h"

namespace penstock::test {
namespace {

// The number of a line of the text format: its name and labels as they are written there.
double Value(const prometheus::Exporter& exporter, const std::string& series) {
  const std::string text = ::prometheus::TextSerializer().Serialize(exporter.Collect());
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(series + " ")) return std::stod(line.substr(series.size() + 1));
  }
  return -1;
}

}  // namespace

TEST_CASE("O4: Prometheus reads the same instruments, with underscores") {
  const auto exporter = prometheus::Exporter::Create();
  GuardedEcho echo;
  ServerSettings server_settings = LocalSettings();
  server_settings.observers = {exporter->ForServer()};
  const auto server = MakeServer(std::move(server_settings), {&echo});
  auto time = std::make_shared<testing::ManualTime>();
  ClientSettings settings{
      .address = AddressOf(*server), .max_attempts = 1, .observer = exporter->ForClient(), .time = time};
  settings.plaintext = true;
  settings.breaker.consecutive_failures = 2;
  settings.breaker.open_for = 10s;
  Result<Client> client = Client::Create(std::move(settings));
  REQUIRE(client.ok());
  const auto call = [&](grpc::StatusCode code) {
    EchoRequest request;
    request.set_code(code);
    return client->CallAndWait(PENSTOCK_METHOD(v1::Echo, Unary), request);
  };
  call(grpc::StatusCode::OK);
  call(grpc::StatusCode::UNAVAILABLE);
  call(grpc::StatusCode::UNAVAILABLE);
  call(grpc::StatusCode::OK);

  const std::string peer = "server_address=\"127.0.0.1\",server_port=\"" + std::to_string(server->port()) + "\"";
  const auto value = [&](const std::string& series) { return Value(*exporter, series); };
  CHECK(value("penstock_circuit_state{" + peer + ",penstock_circuit_state=\"open\"}") == 1);
  CHECK(value("penstock_circuit_state{" + peer + ",penstock_circuit_state=\"closed\"}") == 0);
  CHECK(value("penstock_circuit_transitions_total{" + peer + ",penstock_circuit_state=\"open\"}") == 1);
  CHECK(value("penstock_circuit_calls_total{" + peer + ",penstock_circuit_outcome=\"success\"}") == 1);
  CHECK(value("penstock_circuit_calls_total{" + peer + ",penstock_circuit_outcome=\"failure\"}") == 2);
  CHECK(value("penstock_circuit_calls_total{" + peer + ",penstock_circuit_outcome=\"rejected\"}") == 1);
  CHECK(value("penstock_retry_decisions_total{" + peer + ",penstock_retry_decision=\"exhausted\"}") == 2);
  CHECK(value("penstock_retry_decisions_total{" + peer + ",penstock_retry_decision=\"stopped\"}") == 1);
  const std::string method =
      "rpc_system_name=\"grpc\",rpc_method=\"penstock.test.v1.Echo/Unary\",rpc_response_status_code=";
  CHECK(value("rpc_client_call_duration_seconds_count{" + method + "\"OK\"," + peer + "}") == 1);
  CHECK(value("rpc_client_call_duration_seconds_count{" + method + "\"UNAVAILABLE\",error_type=\"UNAVAILABLE\"," + peer + "}") == 2);
  CHECK(value("rpc_client_call_duration_seconds_bucket{" + method + "\"OK\"," + peer + ",le=\"+Inf\"}") == 1);
  CHECK(value("rpc_client_call_duration_seconds_sum{" + method + "\"OK\"," + peer + "}") > 0);
  CHECK(Eventually([&] { return value("rpc_server_call_duration_seconds_count{" + method + "\"UNAVAILABLE\",error_type=\"UNAVAILABLE\"}") == 2; }));

  time->Advance(10s);
  CHECK(value("penstock_circuit_state{" + peer + ",penstock_circuit_state=\"half-open\"}") == 1);
}

TEST_CASE("O4: clients that come and go while Prometheus scrapes leave exact totals") {
  const auto exporter = prometheus::Exporter::Create();
  struct View final : ClientView {
    const std::string& address() const noexcept override { return address_; }
    CircuitState state() const noexcept override { return CircuitState::kClosed; }
    CircuitTotals totals() const noexcept override { return {.successes = 1}; }
    std::string address_ = "ledger:9090";
  };
  std::atomic<bool> stop{false};
  std::thread scraper([&] {
    while (!stop) exporter->Collect();
  });
  for (int i = 0; i < 2000; ++i) {
    const auto observer = exporter->ForClient();
    observer->OnCreated(std::make_shared<View>());
    OutgoingMetadata metadata;
    observer->OnAttempt({.method = "/a/b", .attempt = 1, .stream = false, .parent = nullptr}, metadata)
        ->End({.status = grpc::Status::OK, .outcome = Outcome::kSuccess});
    observer->OnEnded();
  }
  stop = true;
  scraper.join();
  const std::string peer = "server_address=\"ledger\",server_port=\"9090\"";
  CHECK(Value(*exporter, "penstock_circuit_calls_total{" + peer + ",penstock_circuit_outcome=\"success\"}") == 2000);
  CHECK(Value(*exporter,
              "rpc_client_call_duration_seconds_count{rpc_system_name=\"grpc\",rpc_method=\"a/b\","
              "rpc_response_status_code=\"OK\"," +
                  peer + "}") == 2000);
}

TEST_CASE("O4: of whatever addresses and peers there are, 1,000 and 256 are told apart, and the rest is counted together") {
  struct View final : ClientView {
    View(std::string address, int peers) : address_(std::move(address)), peers_(peers) {}
    const std::string& address() const noexcept override { return address_; }
    CircuitState state() const noexcept override { return CircuitState::kClosed; }
    CircuitTotals totals() const noexcept override { return {.successes = 1}; }
    std::vector<ClientConnection> connections() const override {
      std::vector<ClientConnection> connections;
      for (int i = 0; i < peers_; ++i) connections.push_back({.peer = "10.0.0.1:" + std::to_string(1000 + i), .since = {}, .share = 0});
      return connections;
    }
    const std::string address_;
    const int peers_;
  };
  const auto exporter = prometheus::Exporter::Create();
  std::vector<std::shared_ptr<ClientObserver>> observers;
  for (int i = 0; i < 1500; ++i) {
    observers.push_back(exporter->ForClient());
    observers.back()->OnCreated(std::make_shared<View>("ledger" + std::to_string(i) + ":9090", i == 0 ? 400 : 0));
    OutgoingMetadata metadata;
    observers.back()
        ->OnAttempt({.method = "/a/b", .attempt = 1, .stream = false, .parent = nullptr}, metadata)
        ->End({.status = grpc::Status::OK, .outcome = Outcome::kSuccess});
  }
  std::map<std::string, std::set<std::string>> addresses;  // by metric
  std::map<std::string, double> sums;                      // likewise
  std::set<std::string> peers;
  for (const auto& family : exporter->Collect()) {
    for (const auto& metric : family.metric) {
      sums[family.name] += metric.counter.value + metric.gauge.value;
      std::string peer;
      for (const auto& label : metric.label) {
        if (label.name == "server_address") addresses[family.name].insert(label.value);
        if (label.name.starts_with("network_peer")) peer += label.value + " ";
      }
      if (!peer.empty()) peers.insert(peer);
    }
  }
  for (const char* name : {"penstock_circuit_state", "penstock_circuit_transitions_total", "penstock_circuit_calls_total",
                           "penstock_retry_decisions_total", "rpc_client_call_duration_seconds"}) {
    CAPTURE(name);
    CHECK(addresses[name].size() == 1001);
    CHECK(addresses[name].contains("_OTHER"));
  }
  CHECK(peers.size() == 257);
  CHECK(sums["penstock_circuit_state"] == 1500);
  CHECK(sums["penstock_circuit_calls_total"] == 1500);
  CHECK(sums["penstock_client_connections"] == 400);
  for (const auto& observer : observers) observer->OnEnded();
}

TEST_CASE("O4: a scrape has a bounded number of series, whatever methods are called") {
  const auto exporter = prometheus::Exporter::Create();
  struct View final : ClientView {
    const std::string& address() const noexcept override { return address_; }
    CircuitState state() const noexcept override { return CircuitState::kClosed; }
    CircuitTotals totals() const noexcept override { return {}; }
    std::string address_ = "/run/ledger.sock";
  };
  const auto observer = exporter->ForClient();
  observer->OnCreated(std::make_shared<View>());
  for (int i = 0; i < 20'000; ++i) {
    OutgoingMetadata metadata;
    observer
        ->OnAttempt({.method = "/a/m" + std::to_string(i), .attempt = 1, .stream = false, .parent = nullptr}, metadata)
        ->End({.status = grpc::Status(static_cast<grpc::StatusCode>(i % 40), ""), .outcome = Outcome::kSuccess});
  }
  std::size_t series = 0;
  for (const auto& family : exporter->Collect()) series += family.metric.size();
  CHECK(series < 2100);
  observer->OnEnded();
}

TEST_CASE("O4: durations beyond 2,000 series are put together by code, a server's without an address") {
  for (const bool of_client : {true, false}) {
    prometheus::detail::Durations durations;
    const auto record = [&](int method) {
      durations.Record("a/m" + std::to_string(method), grpc::StatusCode::OK, of_client ? detail::ServerName{"ledger", 9090} : detail::ServerName{}, 1ms);
    };
    for (int i = 0; i < 2500; ++i) record(i);
    record(0);
    record(2400);
    ::prometheus::MetricFamily family;
    durations.CollectInto(family);
    std::map<std::string, std::pair<std::uint64_t, std::string>> by_method;  // how many, and the address
    for (const auto& metric : family.metric) {
      std::string method, address;
      for (const auto& label : metric.label) {
        if (label.name == "rpc_method") method = label.value;
        if (label.name == "server_address") address = label.value;
        if (label.name == "server_port") CHECK(method != "_OTHER");
      }
      by_method[method] = {metric.histogram.sample_count, address};
    }
    CHECK(by_method.size() == 2001);
    CHECK(by_method["a/m0"] == std::pair<std::uint64_t, std::string>(2, of_client ? "ledger" : ""));
    CHECK(by_method["_OTHER"] == std::pair<std::uint64_t, std::string>(501, of_client ? "_OTHER" : ""));
  }
}

}  // namespace penstock::test
