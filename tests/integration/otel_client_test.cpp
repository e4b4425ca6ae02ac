// What a client tells OpenTelemetry, against real servers, recorded in memory.

#include <doctest/doctest.h>
#include <opentelemetry/logs/provider.h>
#include <opentelemetry/metrics/provider.h>
#include <opentelemetry/sdk/logs/batch_log_record_processor.h>
#include <opentelemetry/sdk/logs/exporter.h>
#include <opentelemetry/sdk/logs/logger_provider.h>
#include <opentelemetry/sdk/logs/read_write_log_record.h>
#include <opentelemetry/trace/provider.h>
#include <opentelemetry/trace/scope.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "client/client_state.h"
#include "otel/utf8.h"
#include "penstock/client/client.h"
#include "penstock/otel/buckets.h"
#include "penstock/otel/telemetry.h"
#include "penstock/runtime.h"
#include "penstock/testing/manual_time.h"
#include "penstock/testing/raw_peer.h"
#include "penstock/testing/telemetry.h"
#include "support/client_calls.h"
#include "support/echo_service.h"

namespace penstock::test {

using testing::RecordedAttributes;
using testing::RecordedLog;
using testing::RecordedPoint;
using testing::RecordedSpan;

namespace {

const std::string kTraceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

std::shared_ptr<otel::Telemetry> TelemetryOn(const testing::Telemetry& recorded) {
  return otel::Telemetry::Create(
      {.tracer = recorded.tracer_provider(), .meter = recorded.meter_provider(), .logger = recorded.logger_provider()});
}

v1::EchoRequest Request(grpc::StatusCode code = grpc::StatusCode::OK, std::string message = "") {
  v1::EchoRequest request;
  request.set_code(code);
  request.set_message(std::move(message));
  return request;
}

// The metadata of every call that reached a server.
class Seen {
 public:
  EchoOptions options() {
    return {.on_call = [this](const EchoCall& call) {
      std::lock_guard lock(mutex_);
      calls_.push_back(call.metadata);
    }};
  }
  std::vector<std::string> Values(const std::string& key) const {
    std::lock_guard lock(mutex_);
    std::vector<std::string> values;
    for (const auto& call : calls_) {
      const auto [first, last] = call.equal_range(key);
      for (auto header = first; header != last; ++header) values.push_back(header->second);
    }
    return values;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::multimap<std::string, std::string>> calls_;
};

std::pair<std::string, std::string> HostAndPort(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  return {address.substr(0, colon), address.substr(colon + 1)};
}

WaitedCall<v1::EchoResponse> Call(Client& client, v1::EchoRequest request, CallOptions options = {}) {
  return client.CallAndWait(PENSTOCK_METHOD(v1::Echo, Unary), std::move(request), std::move(options));
}

// An address at which nobody listens.
std::string DeadAddress() {
  EchoServer gone;
  return gone.address();
}

}  // namespace

TEST_CASE("O2: a unary call is a CLIENT span, child of the call's parent, with the conventions' attributes") {
  testing::Telemetry recorded;
  EchoServer server;
  Client client = MakeClient({.address = server.address(), .observer = TelemetryOn(recorded)->ForClient()});
  const auto scope = CallScope::Create(TimePoint::max(), {{"traceparent", kTraceparent}});
  CHECK(Call(client, Request(), {.parent = scope}).ok());

  REQUIRE(recorded.Spans().size() == 1);
  const RecordedSpan span = recorded.Spans()[0];
  const auto [host, port] = HostAndPort(server.address());
  CHECK(span.name == "penstock.test.v1.Echo/Unary");
  CHECK(span.kind == "client");
  CHECK(span.trace_id == kTraceparent.substr(3, 32));
  CHECK(span.parent_span_id == kTraceparent.substr(36, 16));
  CHECK_FALSE(span.error);
  CHECK(span.attributes == RecordedAttributes{{"rpc.system.name", "grpc"},
                                              {"rpc.method", "penstock.test.v1.Echo/Unary"},
                                              {"rpc.response.status_code", "OK"},
                                              {"server.address", host},
                                              {"server.port", port}});
}

TEST_CASE("O2: each attempt is a span of its own, siblings under the call's parent; every code but OK is an error") {
  testing::Telemetry recorded;
  EchoServer server;
  Client client = MakeClient({.address = server.address(),
                              .backoff_base = 1ms,
                              .backoff_max = 2ms,
                              .observer = TelemetryOn(recorded)->ForClient()});
  const auto scope = CallScope::Create(TimePoint::max(), {{"traceparent", kTraceparent}});
  CHECK(Call(client, Request(grpc::StatusCode::UNAVAILABLE, "away"), {.parent = scope}).result.attempts == 3);
  CHECK_FALSE(Call(client, Request(grpc::StatusCode::NOT_FOUND), {.parent = scope}).ok());

  const std::vector<RecordedSpan> spans = recorded.Spans();
  REQUIRE(spans.size() == 4);
  std::set<std::string> ids;
  for (const RecordedSpan& span : spans) {
    CHECK(span.parent_span_id == kTraceparent.substr(36, 16));
    CHECK(span.error);
    ids.insert(span.span_id);
  }
  CHECK(ids.size() == 4);
  CHECK(spans[0].attributes.at("rpc.response.status_code") == "UNAVAILABLE");
  CHECK(spans[0].attributes.at("error.type") == "UNAVAILABLE");
  CHECK(spans[0].error_message == "away");
  CHECK(spans[3].attributes.at("rpc.response.status_code") == "NOT_FOUND");
  CHECK(spans[3].attributes.at("error.type") == "NOT_FOUND");
}

TEST_CASE("O2, O5: what is no UTF-8 in a peer's status or an error's text is not exported, since receivers refuse the whole export") {
  testing::Telemetry recorded;
  auto peer = testing::RawPeer::Create(
      {.answer = [](const testing::RawRequest&) { return testing::RawScript::Fail(grpc::StatusCode::NOT_FOUND, "no%FF account \xc3%A9"); }});
  REQUIRE(peer.ok());
  const auto observer = TelemetryOn(recorded)->ForClient();
  Client client = MakeClient({.address = (*peer)->address(), .observer = observer});
  CHECK(Call(client, Request()).result.status.error_message() == "no\xff account \xc3\xa9");
  REQUIRE(recorded.Spans().size() == 1);
  CHECK(recorded.Spans()[0].error_message == "no? account \xc3\xa9");

  observer->OnError("broken \xe2\x82");
  // The cut falls into a character.
  observer->OnError(std::string(1023, 'a') + "\xc3\xa9");
  REQUIRE(recorded.Logs().size() == 2);
  CHECK(recorded.Logs()[0].body == "broken ??");
  CHECK(recorded.Logs()[1].body == std::string(1023, 'a') + "?");
}

TEST_CASE("O2: bytes that are no UTF-8 are replaced one by one, characters stay") {
  const std::pair<std::string, std::string> texts[] = {
      {"", ""},
      {"plain", "plain"},
      {"\xc2\x80 \xdf\xbf \xe0\xa0\x80 \xed\x9f\xbf \xee\x80\x80 \xef\xbf\xbf", "\xc2\x80 \xdf\xbf \xe0\xa0\x80 \xed\x9f\xbf \xee\x80\x80 \xef\xbf\xbf"},
      {"\xf0\x90\x80\x80 \xf4\x8f\xbf\xbf", "\xf0\x90\x80\x80 \xf4\x8f\xbf\xbf"},
      {"\x80 \xbf \xff \xfe", "? ? ? ?"},
      {"\xc0\x80 \xc1\xbf", "?? ??"},                          // longer than need be
      {"\xe0\x9f\xbf \xf0\x8f\xbf\xbf", "??? ????"},           // likewise
      {"\xed\xa0\x80", "???"},                                  // half of a pair
      {"\xf4\x90\x80\x80 \xf5\x80\x80\x80", "???? ????"},      // beyond U+10FFFF
      {"\xc3", "?"},
      {"\xc3z", "?z"},
      {"\xe2\x82\xc3\xa9", "??\xc3\xa9"},
      {"\xf0\x9f\x98", "???"},
  };
  for (const auto& [text, good] : texts) {
    CAPTURE(good);
    CHECK(otel::detail::Utf8(text) == good);
  }
}

TEST_CASE("O2: a call that the breaker rejects has a span of its own, with the rejection's message") {
  testing::Telemetry recorded;
  EchoServer server;
  ClientSettings settings{
      .address = server.address(), .max_attempts = 1, .observer = TelemetryOn(recorded)->ForClient()};
  settings.breaker.consecutive_failures = 1;
  Client client = MakeClient(std::move(settings));
  Call(client, Request(grpc::StatusCode::UNAVAILABLE));
  const auto scope = CallScope::Create(TimePoint::max(), {{"traceparent", kTraceparent}});
  CHECK(Call(client, Request(), {.parent = scope}).result.reason == EndReason::kRejected);

  REQUIRE(recorded.Spans().size() == 2);
  const RecordedSpan rejected = recorded.Spans()[1];
  CHECK(rejected.name == "penstock.test.v1.Echo/Unary");
  CHECK(rejected.parent_span_id == kTraceparent.substr(36, 16));
  CHECK(rejected.error);
  CHECK(rejected.error_message.find("circuit open") != std::string::npos);
  CHECK(rejected.attributes.at("rpc.response.status_code") == "UNAVAILABLE");
  CHECK(rejected.attributes.at("server.port") == HostAndPort(server.address()).second);
  CHECK(recorded.Sum("penstock.circuit.calls", {{"penstock.circuit.outcome", "rejected"}}) == 1);
  CHECK(recorded.Sum("penstock.retry.decisions", {{"penstock.retry.decision", "stopped"}}) == 1);
}

TEST_CASE("O3: each attempt carries the context of its own span, and the parent's baggage and trace state") {
  testing::Telemetry recorded;
  Seen seen;
  EchoServer server(seen.options());
  Client client = MakeClient({.address = server.address(),
                              .backoff_base = 1ms,
                              .backoff_max = 2ms,
                              .observer = TelemetryOn(recorded)->ForClient()});
  const auto scope = CallScope::Create(
      TimePoint::max(), {{"traceparent", kTraceparent}, {"tracestate", "a=1,b=2"}, {"baggage", "x=b+c,y=%3D:"}});
  Call(client, Request(grpc::StatusCode::UNAVAILABLE), {.parent = scope});

  const std::vector<RecordedSpan> spans = recorded.Spans();
  REQUIRE(spans.size() == 3);
  std::vector<std::string> expected;
  for (const RecordedSpan& span : spans) expected.push_back("00-" + span.trace_id + "-" + span.span_id + "-01");
  CHECK(seen.Values("traceparent") == expected);
  CHECK(seen.Values("tracestate") == std::vector<std::string>(3, "a=1,b=2"));
  CHECK(seen.Values("baggage") == std::vector<std::string>(3, "x=b+c,y=%3D:"));
}

TEST_CASE("L10: without telemetry the parent's trace and baggage are relayed as they are") {
  Seen seen;
  EchoServer server(seen.options());
  Client client = MakeClient({.address = server.address()});
  const auto scope = CallScope::Create(TimePoint::max(), {{"traceparent", kTraceparent}, {"baggage", "x=b+c"}});
  CHECK(Call(client, Request(), {.parent = scope}).ok());
  CHECK(seen.Values("traceparent") == std::vector<std::string>{kTraceparent});
  CHECK(seen.Values("baggage") == std::vector<std::string>{"x=b+c"});
}

TEST_CASE("O1: nothing is read from OpenTelemetry's globals and nothing goes to them") {
  testing::Telemetry global;
  opentelemetry::trace::Provider::SetTracerProvider(global.tracer_provider());
  opentelemetry::metrics::Provider::SetMeterProvider(global.meter_provider());
  opentelemetry::logs::Provider::SetLoggerProvider(global.logger_provider());
  testing::Telemetry recorded;
  Seen seen;
  {
    EchoServer server(seen.options());
    ClientSettings settings{
        .address = server.address(), .max_attempts = 1, .observer = TelemetryOn(recorded)->ForClient()};
    settings.breaker.consecutive_failures = 1;
    Client client = MakeClient(std::move(settings));
    // A span that is active on this thread is none of the call's business: its parent is said.
    auto active = global.tracer_provider()->GetTracer("test")->StartSpan("active");
    opentelemetry::trace::Scope active_scope(active);
    Call(client, Request());
    Call(client, Request(grpc::StatusCode::UNAVAILABLE));
    active->End();
  }
  opentelemetry::trace::Provider::SetTracerProvider({});
  opentelemetry::metrics::Provider::SetMeterProvider({});
  opentelemetry::logs::Provider::SetLoggerProvider({});
  CHECK(global.Spans().size() == 1);
  CHECK(global.Points().empty());
  CHECK(global.Logs().empty());
  REQUIRE(recorded.Spans().size() == 2);
  CHECK(recorded.Spans()[0].parent_span_id == "");
  REQUIRE(recorded.Logs().size() == 1);
  CHECK(recorded.Logs()[0].trace_id == recorded.Spans()[1].trace_id);
}

TEST_CASE("O2: calls on a guarded channel have spans too, and send their context") {
  testing::Telemetry recorded;
  Seen seen;
  EchoServer server(seen.options());
  ClientSettings settings{.address = server.address(), .observer = TelemetryOn(recorded)->ForClient()};
  settings.breaker.consecutive_failures = 1;
  Client client = MakeClient(std::move(settings));
  auto stub = v1::Echo::NewStub(client.GuardedChannel());
  const auto call = [&](grpc::StatusCode code) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kLimit);
    context.AddMetadata("traceparent", kTraceparent);
    v1::EchoResponse response;
    return stub->Unary(&context, Request(code), &response);
  };
  CHECK(call(grpc::StatusCode::OK).ok());
  CHECK_FALSE(call(grpc::StatusCode::UNAVAILABLE).ok());
  CHECK_FALSE(call(grpc::StatusCode::OK).ok());  // rejected
  const std::vector<RecordedSpan> spans = recorded.Spans();
  REQUIRE(spans.size() == 3);
  std::vector<std::string> sent;
  for (const RecordedSpan& span : spans) {
    CHECK(span.name == "penstock.test.v1.Echo/Unary");
    CHECK(span.trace_id == kTraceparent.substr(3, 32));
    CHECK(span.parent_span_id == kTraceparent.substr(36, 16));
    if (sent.size() < 2) sent.push_back("00-" + span.trace_id + "-" + span.span_id + "-01");
  }
  CHECK(seen.Values("traceparent") == sent);
  CHECK(spans[2].error_message.find("circuit open") != std::string::npos);
  REQUIRE(recorded.Logs().size() == 1);
  CHECK(recorded.Logs()[0].span_id == spans[1].span_id);
}

TEST_CASE("O2: a call that is turned away has a span below the call's own trace headers, as an attempt has") {
  testing::Telemetry recorded;
  EchoServer server;
  ClientSettings settings{.address = server.address(), .observer = TelemetryOn(recorded)->ForClient()};
  settings.breaker.consecutive_failures = 1;
  Client client = MakeClient(std::move(settings));
  const auto scope = CallScope::Create(TimePoint::max(), {{"traceparent", "00-11111111111111111111111111111111-2222222222222222-01"}});
  const auto call = [&](grpc::StatusCode code) {
    return Call(client, Request(code), {.parent = scope, .max_attempts = 1, .metadata = {{"traceparent", kTraceparent}}});
  };
  CHECK_FALSE(call(grpc::StatusCode::UNAVAILABLE).ok());
  CHECK_FALSE(call(grpc::StatusCode::OK).ok());  // rejected
  const std::vector<RecordedSpan> spans = recorded.Spans();
  REQUIRE(spans.size() == 2);
  for (const RecordedSpan& span : spans) {
    CHECK(span.trace_id == kTraceparent.substr(3, 32));
    CHECK(span.parent_span_id == kTraceparent.substr(36, 16));
  }
  CHECK(spans[1].error_message.find("circuit open") != std::string::npos);
}

TEST_CASE("O3: calls for a span of the program's own are its children") {
  testing::Telemetry recorded;
  EchoServer server;
  Client client = MakeClient({.address = server.address(), .observer = TelemetryOn(recorded)->ForClient()});
  auto job = recorded.tracer_provider()->GetTracer("test")->StartSpan("job");
  CHECK(Call(client, Request(), {.parent = otel::ScopeFor(job->GetContext())}).ok());
  job->End();
  REQUIRE(recorded.Spans().size() == 2);
  CHECK(recorded.Spans()[0].parent_span_id == recorded.Spans()[1].span_id);
  CHECK(recorded.Spans()[0].trace_id == recorded.Spans()[1].trace_id);
}

TEST_CASE("O4: the duration is recorded once an attempt, in seconds, in buckets of seconds") {
  testing::Telemetry recorded;
  otel::AddDurationBuckets(recorded.sdk_meter_provider());
  EchoServer server;
  Client client = MakeClient({.address = server.address(),
                              .backoff_base = 1ms,
                              .backoff_max = 2ms,
                              .observer = TelemetryOn(recorded)->ForClient()});
  v1::EchoRequest slow = Request();
  slow.set_delay_ms(20);
  Call(client, slow);
  Call(client, Request(grpc::StatusCode::UNAVAILABLE));

  const auto [host, port] = HostAndPort(server.address());
  int ok = 0;
  int unavailable = 0;
  for (const RecordedPoint& point : recorded.Points()) {
    if (point.name != "rpc.client.call.duration") continue;
    CHECK(point.unit == "s");
    CHECK(point.boundaries == otel::DurationBuckets());
    CHECK(point.attributes.at("rpc.system.name") == "grpc");
    CHECK(point.attributes.at("rpc.method") == "penstock.test.v1.Echo/Unary");
    CHECK(point.attributes.at("server.address") == host);
    CHECK(point.attributes.at("server.port") == port);
    if (point.attributes.at("rpc.response.status_code") == "OK") {
      ok += static_cast<int>(point.count);
      CHECK(point.attributes.size() == 5);
      CHECK(point.value >= 0.02);
      CHECK(point.value < 30);
    } else {
      unavailable += static_cast<int>(point.count);
      CHECK(point.attributes.size() == 6);
      CHECK(point.attributes.at("error.type") == "UNAVAILABLE");
    }
  }
  CHECK(ok == 1);
  CHECK(unavailable == 3);
}

TEST_CASE(
    "O4: states, transitions, calls and decisions are read at collection, with the names and attributes of the rule") {
  testing::Telemetry recorded;
  auto time = std::make_shared<testing::ManualTime>();
  EchoServer server;
  ClientSettings settings{
      .address = server.address(), .max_attempts = 1, .observer = TelemetryOn(recorded)->ForClient(), .time = time};
  settings.breaker.consecutive_failures = 2;
  settings.breaker.open_for = 10s;
  Client client = MakeClient(std::move(settings));
  const auto state = [&](const std::string& name) {
    return recorded.Sum("penstock.circuit.state", {{"penstock.circuit.state", name}});
  };
  const auto entered = [&](const std::string& name) {
    return recorded.Sum("penstock.circuit.transitions", {{"penstock.circuit.state", name}});
  };
  CHECK(state("closed") == 1);
  CHECK(state("open") == 0);
  CHECK(entered("open") == 0);

  Call(client, Request());
  Call(client, Request(grpc::StatusCode::UNAVAILABLE));
  Call(client, Request(grpc::StatusCode::UNAVAILABLE));
  Call(client, Request());  // rejected
  CHECK(state("closed") == 0);
  CHECK(state("open") == 1);
  CHECK(entered("open") == 1);
  time->Advance(10s);
  // Half-open shows with no call made; the change comes with the next one.
  CHECK(state("half-open") == 1);
  CHECK(entered("half-open") == 0);
  Call(client, Request());
  CHECK(entered("half-open") == 1);

  const auto calls = [&](const std::string& outcome) {
    return recorded.Sum("penstock.circuit.calls", {{"penstock.circuit.outcome", outcome}});
  };
  CHECK(calls("success") == 2);
  CHECK(calls("failure") == 2);
  CHECK(calls("ignored") == 0);
  CHECK(calls("rejected") == 1);
  const auto decisions = [&](const std::string& decision) {
    return recorded.Sum("penstock.retry.decisions", {{"penstock.retry.decision", decision}});
  };
  CHECK(decisions("succeeded") == 2);
  CHECK(decisions("exhausted") == 2);
  CHECK(decisions("stopped") == 1);
  CHECK(decisions("retried") == 0);

  const auto [host, port] = HostAndPort(server.address());
  for (const RecordedPoint& point : recorded.Points()) {
    if (!point.name.starts_with("penstock.") || point.name == "penstock.client.connections") continue;
    CAPTURE(point.name);
    CHECK(point.attributes.size() == 3);
    CHECK(point.attributes.at("server.address") == host);
    CHECK(point.attributes.at("server.port") == port);
  }
}

TEST_CASE("O4: two clients of one address add up, with one Telemetry or with two for the same provider") {
  testing::Telemetry recorded;
  EchoServer server;
  auto telemetry = TelemetryOn(recorded);
  ClientSettings fragile{.address = server.address(), .max_attempts = 1, .observer = telemetry->ForClient()};
  fragile.breaker.consecutive_failures = 1;
  Client opened = MakeClient(std::move(fragile));
  Client same = MakeClient({.address = server.address(), .observer = telemetry->ForClient()});
  Client other = MakeClient({.address = server.address(), .observer = TelemetryOn(recorded)->ForClient()});
  Call(opened, Request(grpc::StatusCode::UNAVAILABLE));
  Call(same, Request());
  Call(other, Request());
  CHECK(recorded.Sum("penstock.circuit.state", {{"penstock.circuit.state", "closed"}}) == 2);
  CHECK(recorded.Sum("penstock.circuit.state", {{"penstock.circuit.state", "open"}}) == 1);
  CHECK(recorded.Sum("penstock.circuit.calls", {{"penstock.circuit.outcome", "success"}}) == 2);
}

TEST_CASE("O4: of two clients with one observer the first is counted, the log says so, and the last takes all of it along") {
  std::atomic<int> told{0};
  SetLogSink([&](LogSeverity, const std::string& line) { told += line.find("ForClient()") != std::string::npos; });
  testing::Telemetry recorded;
  EchoServer server;
  EchoServer second_server;
  const auto telemetry = TelemetryOn(recorded);
  std::weak_ptr<ClientObserver> held;
  {
    ClientSettings settings{.address = server.address(), .observer = telemetry->ForClient()};
    held = settings.observer;
    std::optional<Client> first = MakeClient(settings);
    settings.address = second_server.address();
    Client second = MakeClient(std::move(settings));
    CHECK(told == 1);
    CHECK(Call(*first, Request()).ok());
    CHECK(Call(second, Request()).ok());
    CHECK(recorded.Sum("penstock.circuit.state", {{"server.port", HostAndPort(server.address()).second}}) == 1);
    CHECK(recorded.Sum("penstock.circuit.state") == 1);
    CHECK(first->CloseAndWait(std::chrono::steady_clock::now() + kLimit));
    first.reset();
    CHECK(Call(second, Request()).ok());
    CHECK(recorded.Sum("penstock.circuit.calls", {{"penstock.circuit.outcome", "success"}}) == 1);
  }
  CHECK(Eventually([&] { return held.expired(); }));
  CHECK(Eventually([&] { return recorded.Sum("penstock.circuit.state") == 0; }));
  SetLogSink({});
}

TEST_CASE("O4: what a client has counted stays when it goes, and its last state is in the next export") {
  testing::Telemetry recorded;
  auto telemetry = TelemetryOn(recorded);
  EchoServer server;
  {
    ClientSettings settings{.address = server.address(), .max_attempts = 1, .observer = telemetry->ForClient()};
    settings.breaker.consecutive_failures = 1;
    Client client = MakeClient(std::move(settings));
    Call(client, Request());
    Call(client, Request(grpc::StatusCode::UNAVAILABLE));
    CHECK(client.CloseAndWait(std::chrono::steady_clock::now() + kLimit));
  }
  // The client's state ends with its last call, on that call's thread.
  const auto open_now = [&] { return recorded.Sum("penstock.circuit.state", {{"penstock.circuit.state", "open"}}); };
  CHECK(open_now() == 1);
  CHECK(Eventually([&] { return open_now() == 0; }));
  CHECK(recorded.Sum("penstock.circuit.state") == 0);
  CHECK(recorded.Sum("penstock.circuit.calls", {{"penstock.circuit.outcome", "success"}}) == 1);
  CHECK(recorded.Sum("penstock.circuit.transitions", {{"penstock.circuit.state", "open"}}) == 1);

  // Another client of that address goes on counting from there.
  Client next = MakeClient({.address = server.address(), .observer = telemetry->ForClient()});
  Call(next, Request());
  CHECK(recorded.Sum("penstock.circuit.calls", {{"penstock.circuit.outcome", "success"}}) == 2);
  CHECK(recorded.Sum("penstock.circuit.state", {{"penstock.circuit.state", "closed"}}) == 1);
}

TEST_CASE("D4: the connections that calls use are counted by peer") {
  testing::Telemetry recorded;
  auto telemetry = TelemetryOn(recorded);
  auto first = std::make_unique<EchoServer>();
  EchoServer second;
  Client client = MakeClient({.addresses = {first->address(), second.address()},
                              .connection = {.balancing = Balancing::kRoundRobin},
                              .authority = "ledger",
                              .observer = telemetry->ForClient()});
  const auto [host, first_port] = HostAndPort(first->address());
  const std::string second_port = HostAndPort(second.address()).second;
  const auto connections = [&](const std::string& port) {
    return recorded.Sum("penstock.client.connections",
                        {{"network.peer.address", "127.0.0.1"}, {"network.peer.port", port}});
  };
  CHECK(Eventually([&] {
    Call(client, Request());
    return connections(first_port) == 1 && connections(second_port) == 1;
  }));
  // Half of the calls each, about.
  for (int i = 0; i < 200; ++i) Call(client, Request());
  const auto seen = client.connections();
  REQUIRE(seen.size() == 2);
  CHECK(seen[0].share > 0.2);
  CHECK(seen[1].share > 0.2);
  CHECK(seen[0].share + seen[1].share == doctest::Approx(1));
}

TEST_CASE("O5: one log record for each change of the breaker's state, in the trace of the call that made it") {
  testing::Telemetry recorded;
  auto time = std::make_shared<testing::ManualTime>();
  EchoServer server;
  ClientSettings settings{
      .address = server.address(), .max_attempts = 1, .observer = TelemetryOn(recorded)->ForClient(), .time = time};
  settings.breaker.consecutive_failures = 2;
  settings.breaker.successes_to_close = 1;
  settings.breaker.open_for = 10s;
  Client client = MakeClient(std::move(settings));
  Call(client, Request());
  Call(client, Request(grpc::StatusCode::UNAVAILABLE));
  Call(client, Request(grpc::StatusCode::UNAVAILABLE));
  time->Advance(10s);
  const auto scope = CallScope::Create(TimePoint::max(), {{"traceparent", kTraceparent}});
  Call(client, Request(), {.parent = scope});

  const std::vector<RecordedLog> logs = recorded.Logs();
  const std::vector<RecordedSpan> spans = recorded.Spans();
  REQUIRE(logs.size() == 3);
  REQUIRE(spans.size() == 4);
  const auto [host, port] = HostAndPort(server.address());
  CHECK(logs[0].body == "circuit breaker open");
  CHECK(logs[0].severity == "WARN");
  CHECK(logs[0].attributes == RecordedAttributes{{"server.address", host},
                                                 {"server.port", port},
                                                 {"penstock.circuit.previous_state", "closed"},
                                                 {"penstock.circuit.successes", "1"},
                                                 {"penstock.circuit.failures", "2"},
                                                 {"penstock.circuit.consecutive_successes", "0"},
                                                 {"penstock.circuit.consecutive_failures", "2"},
                                                 {"penstock.circuit.timed_out", "0"}});
  CHECK(logs[0].trace_id == spans[2].trace_id);
  CHECK(logs[0].span_id == spans[2].span_id);
  CHECK(logs[1].body == "circuit breaker half-open");
  CHECK(logs[1].attributes.at("penstock.circuit.previous_state") == "open");
  CHECK(logs[1].trace_id == kTraceparent.substr(3, 32));
  CHECK(logs[1].span_id == kTraceparent.substr(36, 16));
  CHECK(logs[2].body == "circuit breaker closed");
  CHECK(logs[2].attributes.at("penstock.circuit.previous_state") == "half-open");
  CHECK(logs[2].span_id == spans[3].span_id);
}

TEST_CASE("O5: what a log record says is still there when it is exported after its client has gone") {
  // Copies what it gets, as an exporter does, when a batch is due.
  struct Exporter final : opentelemetry::sdk::logs::LogRecordExporter {
    explicit Exporter(std::vector<std::string>& texts) : texts(texts) {}
    std::unique_ptr<opentelemetry::sdk::logs::Recordable> MakeRecordable() noexcept override {
      return std::make_unique<opentelemetry::sdk::logs::ReadWriteLogRecord>();
    }
    opentelemetry::sdk::common::ExportResult Export(
        const opentelemetry::nostd::span<std::unique_ptr<opentelemetry::sdk::logs::Recordable>>& records) noexcept override {
      for (const auto& record : records) {
        const auto& read = static_cast<const opentelemetry::sdk::logs::ReadWriteLogRecord&>(*record);
        const auto& address = read.GetAttributes().at("server.address");
        texts.emplace_back(opentelemetry::nostd::get<opentelemetry::nostd::string_view>(read.GetBody()));
        texts.emplace_back(opentelemetry::nostd::get<opentelemetry::nostd::string_view>(address));
      }
      return opentelemetry::sdk::common::ExportResult::kSuccess;
    }
    bool ForceFlush(std::chrono::microseconds) noexcept override { return true; }
    bool Shutdown(std::chrono::microseconds) noexcept override { return true; }
    std::vector<std::string>& texts;
  };
  std::vector<std::string> texts;
  auto provider = std::make_shared<opentelemetry::sdk::logs::LoggerProvider>(
      std::make_unique<opentelemetry::sdk::logs::BatchLogRecordProcessor>(std::make_unique<Exporter>(texts), 100, std::chrono::hours(1), 100));
  std::string host;
  {
    EchoServer server;
    host = HostAndPort(server.address()).first;
    const auto telemetry = otel::Telemetry::Create({.logger = opentelemetry::nostd::shared_ptr<opentelemetry::logs::LoggerProvider>(provider)});
    ClientSettings settings{.address = server.address(), .max_attempts = 1, .observer = telemetry->ForClient()};
    settings.breaker.consecutive_failures = 1;
    settings.classify = [](std::string_view, const grpc::Status& status, const ServerMetadata&) -> Classification {
      if (status.ok()) throw std::runtime_error("a text that is longer than what a string holds within itself");
      return {Decision::kStop, Outcome::kFailure, {}};
    };
    Client client = MakeClient(std::move(settings));
    Call(client, Request());
    Call(client, Request(grpc::StatusCode::UNAVAILABLE));
    CHECK(client.CloseAndWait(std::chrono::steady_clock::now() + kLimit));
  }
  provider->ForceFlush();
  REQUIRE(texts.size() == 4);
  CHECK(texts[0].find("a text that is longer than what a string holds within itself") != std::string::npos);
  CHECK(texts[1] == host);
  CHECK(texts[2] == "circuit breaker open");
  CHECK(texts[3] == host);
}

TEST_CASE("O5: a Classify that throws is logged, and nothing else is") {
  testing::Telemetry recorded;
  EchoServer server;
  Client client = MakeClient(
      {.address = server.address(),
       .classify = [](std::string_view, const grpc::Status& status, const ServerMetadata& trailers) -> Classification {
         if (!status.ok()) throw std::runtime_error("no idea");
         return DefaultClassify("", status, trailers);
       },
       .observer = TelemetryOn(recorded)->ForClient()});
  Call(client, Request());
  Call(client, Request(grpc::StatusCode::NOT_FOUND));
  REQUIRE(recorded.Logs().size() == 1);
  CHECK(recorded.Logs()[0].severity == "ERROR");
  CHECK(recorded.Logs()[0].body.find("no idea") != std::string::npos);
}

TEST_CASE("C8: a code outside 0 to 16 is UNKNOWN in spans and metrics") {
  testing::Telemetry recorded;
  EchoServer server;
  Client client = MakeClient({.address = server.address(), .observer = TelemetryOn(recorded)->ForClient()});
  Call(client, Request(static_cast<grpc::StatusCode>(99)));
  REQUIRE(recorded.Spans().size() == 1);
  CHECK(recorded.Spans()[0].attributes.at("rpc.response.status_code") == "UNKNOWN");
}

TEST_CASE("O4: whatever methods are called, the label of the method has at most 1,001 values") {
  testing::Telemetry recorded;
  const auto observer = TelemetryOn(recorded)->ForClient();
  struct View final : ClientView {
    const std::string& address() const noexcept override { return address_; }
    CircuitState state() const noexcept override { return CircuitState::kClosed; }
    CircuitTotals totals() const noexcept override { return {}; }
    std::string address_ = "ledger:9090";
  };
  observer->OnCreated(std::make_shared<View>());
  for (int i = 0; i < 3000; ++i) {
    const std::string method = "/made.up/Method" + std::to_string(i);
    OutgoingMetadata metadata;
    observer->OnAttempt({.method = method, .attempt = 1, .stream = false, .parent = nullptr}, metadata)
        ->End({.status = grpc::Status::OK, .outcome = Outcome::kSuccess});
  }
  std::set<std::string> methods;
  std::uint64_t recorded_calls = 0;
  for (const RecordedPoint& point : recorded.Points()) {
    if (point.name != "rpc.client.call.duration") continue;
    methods.insert(point.attributes.at("rpc.method"));
    recorded_calls += point.count;
  }
  observer->OnEnded();
  CHECK(methods.size() == 1001);
  CHECK(methods.contains("_OTHER"));
  CHECK(recorded_calls == 3000);
}

TEST_CASE("O4: clients that come and go 10,000 times while a thread collects leave exact totals") {
  testing::Telemetry recorded;
  auto telemetry = TelemetryOn(recorded);
  struct View final : ClientView {
    const std::string& address() const noexcept override { return address_; }
    CircuitState state() const noexcept override { return CircuitState::kOpen; }
    CircuitTotals totals() const noexcept override { return {.successes = 1, .entered_open = 1}; }
    std::string address_ = "ledger:9090";
  };
  std::atomic<bool> stop{false};
  std::thread collector([&] {
    while (!stop) recorded.Points();
  });
  std::vector<std::thread> creators;
  for (int thread = 0; thread < 2; ++thread) {
    creators.emplace_back([&] {
      for (int i = 0; i < 5000; ++i) {
        const auto observer = telemetry->ForClient();
        observer->OnCreated(std::make_shared<View>());
        observer->OnDecision("/a/b", RetryDecision::kRetried);
        observer->OnClosed();
        observer->OnEnded();
      }
    });
  }
  for (auto& creator : creators) creator.join();
  stop = true;
  collector.join();
  CHECK(recorded.Sum("penstock.circuit.calls", {{"penstock.circuit.outcome", "success"}}) == 10'000);
  CHECK(recorded.Sum("penstock.retry.decisions", {{"penstock.retry.decision", "retried"}}) == 10'000);
  recorded.Points();
  CHECK(recorded.Sum("penstock.circuit.state") == 0);
}

TEST_CASE("O4: real clients with calls in flight come and go while a thread collects") {
  testing::Telemetry recorded;
  auto telemetry = TelemetryOn(recorded);
  EchoServer server;
  std::atomic<bool> stop{false};
  std::thread collector([&] {
    while (!stop) recorded.Points();
  });
  std::vector<Ending> endings;
  for (int i = 0; i < 50; ++i) {
    Client client = MakeClient({.address = server.address(), .observer = telemetry->ForClient()});
    v1::EchoRequest endless;
    endless.set_delay_ms(-1);
    client.Call(PENSTOCK_METHOD(v1::Echo, Unary), endless, {}, endings.emplace_back().Completion());
  }
  for (const Ending& ending : endings) CHECK(ending.Wait().status.error_code() == grpc::StatusCode::CANCELLED);
  stop = true;
  collector.join();
  CHECK(Eventually([&] { return recorded.Sum("penstock.circuit.state") == 0; }));
  CHECK(recorded.Spans().size() == 50);
}

TEST_CASE("O1: providers that are shut down and gone before the client leave its calls unharmed") {
  auto recorded = std::make_unique<testing::Telemetry>();
  otel::AddDurationBuckets(recorded->sdk_meter_provider());  // what a view holds is the provider's
  EchoServer server;
  ClientSettings settings{
      .address = server.address(), .max_attempts = 1, .observer = TelemetryOn(*recorded)->ForClient()};
  settings.breaker.consecutive_failures = 1;
  std::optional<Client> client = MakeClient(std::move(settings));
  CHECK(Call(*client, Request()).ok());
  recorded->Shutdown();
  recorded.reset();
  CHECK(Call(*client, Request()).ok());
  Call(*client, Request(grpc::StatusCode::UNAVAILABLE));
  CHECK(Call(*client, Request()).result.reason == EndReason::kRejected);
  client.reset();
}

TEST_CASE("O6: providers that are null record nothing and cost no allocation for an attempt") {
  const auto observer = otel::Telemetry::Create({})->ForClient();
  OutgoingMetadata metadata;
  CHECK(observer->OnAttempt({.method = "/a/b", .attempt = 1, .stream = false, .parent = nullptr}, metadata) == nullptr);
  CHECK(metadata.pairs().empty());
  EchoServer server;
  Client client = MakeClient({.address = server.address(), .observer = observer});
  CHECK(Call(client, Request()).ok());
}

TEST_CASE("O4: a connect that fails counts as the attempt it was") {
  testing::Telemetry recorded;
  Client client =
      MakeClient({.address = DeadAddress(), .max_attempts = 1, .observer = TelemetryOn(recorded)->ForClient()});
  CHECK_FALSE(Call(client, Request()).ok());
  CHECK(recorded.Sum("penstock.circuit.calls", {{"penstock.circuit.outcome", "failure"}}) == 1);
  REQUIRE(recorded.Spans().size() == 1);
  CHECK(recorded.Spans()[0].attributes.at("rpc.response.status_code") == "UNAVAILABLE");
}

TEST_CASE("X3: recorded telemetry may be read and shut down by several threads at once") {
  for (int round = 0; round < 20; ++round) {
    testing::Telemetry recorded;
    std::atomic<bool> stop{false};
    std::vector<std::thread> readers;
    for (int reader = 0; reader < 2; ++reader) {
      readers.emplace_back([&] {
        while (!stop) {
          recorded.Points();
          recorded.Spans();
          (void)recorded.tracer_provider();
        }
      });
    }
    recorded.tracer_provider()->GetTracer("test")->StartSpan("span")->End();
    recorded.Shutdown();
    stop = true;
    for (std::thread& reader : readers) reader.join();
    CHECK(recorded.Spans().size() == 1);
  }
}

// The last: the texts of errors that a process keeps are used up after it.
TEST_CASE("O5: a thousand and more different errors leave the records of breakers what they say") {
  testing::Telemetry recorded;
  const auto observer = TelemetryOn(recorded)->ForClient();
  struct View final : ClientView {
    const std::string& address() const noexcept override { return address_; }
    CircuitState state() const noexcept override { return CircuitState::kClosed; }
    CircuitTotals totals() const noexcept override { return {}; }
    std::string address_ = "an-address-that-no-other-case-has:9090";
  };
  for (int i = 0; i < 1100; ++i) observer->OnError("error " + std::to_string(i));
  observer->OnCreated(std::make_shared<View>());
  observer->OnError("another error");
  observer->OnTransition({.from = CircuitState::kHalfOpen, .to = CircuitState::kClosed, .counts = {}}, {});
  observer->OnEnded();
  const std::vector<RecordedLog> logs = recorded.Logs();
  REQUIRE(logs.size() == 1102);
  CHECK(logs[0].body == "error 0");
  CHECK(logs[1100].body.find("too many") != std::string::npos);
  CHECK(logs[1100].attributes.at("server.address") == "an-address-that-no-other-case-has");
  CHECK(logs[1101].body == "circuit breaker closed");
  CHECK(logs[1101].attributes.at("penstock.circuit.previous_state") == "half-open");
  CHECK(logs[1101].attributes.at("server.address") == "an-address-that-no-other-case-has");
  CHECK(logs[1101].attributes.at("server.port") == "9090");
}

}  // namespace penstock::test
