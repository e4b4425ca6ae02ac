// What a server tells OpenTelemetry, what streams tell at both ends, and a trace over three hops.

#include <doctest/doctest.h>
#include <grpcpp/generic/generic_stub.h>

#include <future>
#include <optional>

#include "penstock/client/client.h"
#include "penstock/otel/telemetry.h"
#include "penstock/testing/telemetry.h"
#include "support/server_fixture.h"
#include "support/stream_reactors.h"

namespace penstock::test {
namespace {

using testing::RecordedPoint;
using testing::RecordedSpan;

std::shared_ptr<otel::Telemetry> TelemetryOn(const testing::Telemetry& recorded) {
  return otel::Telemetry::Create(
      {.tracer = recorded.tracer_provider(), .meter = recorded.meter_provider(), .logger = recorded.logger_provider()});
}

ServerSettings Observed(const testing::Telemetry& recorded) {
  ServerSettings settings = LocalSettings();
  settings.observers = {TelemetryOn(recorded)->ForServer()};
  return settings;
}

std::optional<Client> ClientTo(const std::string& address, std::shared_ptr<ClientObserver> observer = nullptr) {
  ClientSettings settings{.address = address, .max_attempts = 1, .observer = std::move(observer)};
  settings.plaintext = true;
  Result<Client> client = Client::Create(std::move(settings));
  REQUIRE(client.ok());
  return std::move(client).value();
}

// A stream that sends one message and ends with NOT_FOUND.
class Failing final : public ServerWriteReactor<EchoResponse> {
 public:
  Failing() { StartWrite(&message_); }

 private:
  void OnWriteDone(bool) override { Finish(grpc::Status(grpc::StatusCode::NOT_FOUND, "gone")); }
  EchoResponse message_;
};

// A server and a client that record apart, and streams between them.
struct StreamLab {
  testing::Telemetry at_client;
  testing::Telemetry at_server;
  const std::shared_ptr<otel::Telemetry> telemetry = TelemetryOn(at_client);
  GuardedEcho echo;
  std::unique_ptr<Server> server;
  std::optional<Client> client;
  DownReader reader;

  StreamLab() {
    ServerSettings settings = Observed(at_server);
    settings.filters = {[](ServerCall& call) {
      return call.client_metadata().contains("refuse") ? grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "refused")
                                                       : grpc::Status::OK;
    }};
    echo.on_down = [](grpc::CallbackServerContext* context,
                      const EchoRequest* request) -> grpc::ServerWriteReactor<EchoResponse>* {
      if (request->code() != 0) return GuardedEcho::StartIn<Failing>(context);
      static StreamEvents events;
      return GuardedEcho::StartIn<DownReactor>(context, events, *request, "pod");
    };
    server = MakeServer(std::move(settings), {&echo});
    client = ClientTo(AddressOf(*server), telemetry->ForClient());
  }

  void Open(int count, CallOptions options = {}, int code = 0) {
    EchoRequest request;
    request.set_count(count);
    request.set_code(code);
    CHECK(reader.StartRead(&reader.message) == StreamStart::kStarted);
    client->Open(PENSTOCK_METHOD(v1::Echo, Down), request, std::move(options), reader);
  }

  // Exactly one span at the client, with this status, and none that comes later; as many at the server.
  void Check(const std::string& status, std::optional<std::string> status_at_server) {
    reader.Wait();
    REQUIRE(at_client.Spans().size() == 1);
    const RecordedSpan span = at_client.Spans()[0];
    CHECK(span.name == "penstock.test.v1.Echo/Down");
    CHECK(span.attributes.at("rpc.response.status_code") == status);
    CHECK(span.error == (status != "OK"));
    CHECK(Eventually([&] { return server->counts().in_flight == 0; }));
    if (status_at_server) {
      CHECK(Eventually([&] { return !at_server.Spans().empty(); }));
      REQUIRE(at_server.Spans().size() == 1);
      const RecordedSpan served = at_server.Spans()[0];
      CHECK(served.attributes.at("rpc.response.status_code") == *status_at_server);
      CHECK(served.parent_span_id == span.span_id);
      CHECK(served.trace_id == span.trace_id);
    }
    client.reset();
    server.reset();
    CHECK(at_client.Spans().size() == 1);
    CHECK(at_server.Spans().size() <= 1);
    CHECK(at_client.Sum("penstock.retry.decisions") >= 1);
  }
};

}  // namespace

TEST_CASE("O3: the server continues the trace, and calls made for its call are children of its span") {
  testing::Telemetry recorded;
  const auto telemetry = TelemetryOn(recorded);
  std::string leaf_baggage;
  std::string leaf_state;
  GuardedEcho leaf_echo;
  leaf_echo.on_unary = [&](grpc::CallbackServerContext* context, const EchoRequest&, EchoResponse*) {
    for (const auto& [key, value] : context->client_metadata()) {
      if (key == "baggage") leaf_baggage.append(value.data(), value.size());
      if (key == "tracestate") leaf_state.append(value.data(), value.size());
    }
    return grpc::Status::OK;
  };
  ServerSettings settings = LocalSettings();
  settings.observers = {telemetry->ForServer()};
  const auto leaf = MakeServer(settings, {&leaf_echo});
  std::optional<Client> to_leaf = ClientTo(AddressOf(*leaf), telemetry->ForClient());

  GuardedEcho middle_echo;
  middle_echo.on_repeatable = [&](grpc::CallbackServerContext* context, const EchoRequest& request, EchoResponse*,
                                  Reply reply) {
    auto held = std::make_shared<Reply>(std::move(reply));
    to_leaf->Call(PENSTOCK_METHOD(v1::Echo, Unary), request, {.parent = ServerCall::Of(context)->Scope()},
                  [held](const CallResult& result, EchoResponse&) { held->Finish(result.status); });
  };
  const auto middle = MakeServer(settings, {&middle_echo});
  std::optional<Client> to_middle = ClientTo(AddressOf(*middle), telemetry->ForClient());

  const std::string traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  const std::string baggage = "a=b+c,d=%3D,e=x:y,f=%20;p=1";
  const auto scope =
      CallScope::Create(TimePoint::max(), {{"traceparent", traceparent}, {"tracestate", "a=1"}, {"baggage", baggage}});
  CHECK(to_middle->CallAndWait(PENSTOCK_METHOD(v1::Echo, Repeatable), EchoRequest(), {.parent = scope}).ok());

  CHECK(Eventually([&] { return recorded.Spans().size() == 4; }));
  std::map<std::string, RecordedSpan> spans;  // by kind and method
  for (const RecordedSpan& span : recorded.Spans()) spans[span.kind + " " + span.attributes.at("rpc.method")] = span;
  REQUIRE(spans.size() == 4);
  const std::string service = "penstock.test.v1.Echo/";
  for (const auto& [name, span] : spans) CHECK(span.trace_id == traceparent.substr(3, 32));
  CHECK(spans["client " + service + "Repeatable"].parent_span_id == traceparent.substr(36, 16));
  CHECK(spans["server " + service + "Repeatable"].parent_span_id == spans["client " + service + "Repeatable"].span_id);
  CHECK(spans["client " + service + "Unary"].parent_span_id == spans["server " + service + "Repeatable"].span_id);
  CHECK(spans["server " + service + "Unary"].parent_span_id == spans["client " + service + "Unary"].span_id);
  CHECK(leaf_baggage == baggage);
  CHECK(leaf_state == "a=1");
}

TEST_CASE("O3: trace and baggage pass a server and a client without telemetry, over three hops") {
  std::multimap<std::string, std::string> seen;
  GuardedEcho leaf_echo;
  leaf_echo.on_unary = [&](grpc::CallbackServerContext* context, const EchoRequest&, EchoResponse*) {
    for (const auto& [key, value] : context->client_metadata())
      seen.emplace(std::string(key.data(), key.size()), std::string(value.data(), value.size()));
    return grpc::Status::OK;
  };
  const auto leaf = MakeServer(LocalSettings(), {&leaf_echo});
  std::optional<Client> to_leaf = ClientTo(AddressOf(*leaf));
  GuardedEcho middle_echo;
  middle_echo.on_repeatable = [&](grpc::CallbackServerContext* context, const EchoRequest& request, EchoResponse*,
                                  Reply reply) {
    auto held = std::make_shared<Reply>(std::move(reply));
    to_leaf->Call(PENSTOCK_METHOD(v1::Echo, Unary), request, {.parent = ServerCall::Of(context)->Scope()},
                  [held](const CallResult& result, EchoResponse&) { held->Finish(result.status); });
  };
  const auto middle = MakeServer(LocalSettings(), {&middle_echo});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*middle)));

  const auto call = [&](const std::vector<std::pair<std::string, std::string>>& headers) {
    seen.clear();
    grpc::ClientContext context;
    SetLimit(context);
    for (const auto& [key, value] : headers) context.AddMetadata(key, value);
    EchoResponse response;
    CHECK(stub->Repeatable(&context, EchoRequest(), &response).ok());
  };
  const auto value = [&](const std::string& key) {
    const auto found = seen.find(key);
    return seen.count(key) == 1 ? found->second : std::string(seen.count(key) == 0 ? "(none)" : "(several)");
  };
  const std::string good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

  call({{"traceparent", good},
        {"tracestate", "a=1"},
        {"tracestate", "b=2"},
        {"baggage", "a=b+c,d=%3D"},
        {"baggage", "e=x:y"}});
  CHECK(value("traceparent") == good);
  CHECK(value("tracestate") == "a=1,b=2");
  CHECK(value("baggage") == "a=b+c,d=%3D,e=x:y");

  call({{"traceparent", "ff" + good.substr(2)}, {"tracestate", "a=1"}});
  CHECK(value("traceparent") == "(none)");
  CHECK(value("tracestate") == "(none)");
  call({{"traceparent", good}, {"traceparent", good}});
  CHECK(value("traceparent") == "(none)");
  call({{"traceparent", "01" + good.substr(2) + "-more"}});
  CHECK(value("traceparent") == good);

  std::string many;
  for (int i = 0; i < 181; ++i) many += (i == 0 ? "k" : ",k") + std::to_string(i) + "=v";
  call({{"baggage", many}});
  CHECK(value("baggage").ends_with("k63=v"));
  // Seven KiB of baggage, which gRPC still takes with everything else, pass whole.
  const std::string long_baggage = "a=" + std::string(7000, 'x');
  call({{"traceparent", good}, {"baggage", long_baggage}});
  CHECK(value("baggage") == long_baggage);
}

TEST_CASE("O2: a SERVER span is an error only for the server's faults") {
  testing::Telemetry recorded;
  GuardedEcho echo;
  const auto server = MakeServer(Observed(recorded), {&echo});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  const std::vector<std::pair<grpc::StatusCode, bool>> codes = {
      {grpc::StatusCode::OK, false},
      {grpc::StatusCode::CANCELLED, false},
      {grpc::StatusCode::UNKNOWN, true},
      {grpc::StatusCode::INVALID_ARGUMENT, false},
      {grpc::StatusCode::DEADLINE_EXCEEDED, true},
      {grpc::StatusCode::NOT_FOUND, false},
      {grpc::StatusCode::RESOURCE_EXHAUSTED, false},
      {grpc::StatusCode::UNIMPLEMENTED, true},
      {grpc::StatusCode::INTERNAL, true},
      {grpc::StatusCode::UNAVAILABLE, true},
      {grpc::StatusCode::DATA_LOSS, true},
      {grpc::StatusCode::UNAUTHENTICATED, false},
  };
  for (const auto& [code, error] : codes) {
    EchoRequest request;
    request.set_code(code);
    EchoResponse response;
    CallUnary(*stub, request, &response);
  }
  CHECK(Eventually([&] { return recorded.Spans().size() == codes.size(); }));
  std::map<std::string, bool> errors;
  for (const RecordedSpan& span : recorded.Spans()) {
    CHECK(span.kind == "server");
    CHECK(span.name == "penstock.test.v1.Echo/Unary");
    CHECK(span.parent_span_id == "");
    const std::string code = span.attributes.at("rpc.response.status_code");
    errors[code] = span.error;
    CHECK(span.attributes.contains("error.type") == span.error);
    if (span.error) CHECK(span.attributes.at("error.type") == code);
  }
  CHECK(errors == std::map<std::string, bool>{{"OK", false},
                                              {"CANCELLED", false},
                                              {"UNKNOWN", true},
                                              {"INVALID_ARGUMENT", false},
                                              {"DEADLINE_EXCEEDED", true},
                                              {"NOT_FOUND", false},
                                              {"RESOURCE_EXHAUSTED", false},
                                              {"UNIMPLEMENTED", true},
                                              {"INTERNAL", true},
                                              {"UNAVAILABLE", true},
                                              {"DATA_LOSS", true},
                                              {"UNAUTHENTICATED", false}});
}

TEST_CASE("V7: exceptions and refused calls are seen by tracing and metrics") {
  testing::Telemetry recorded;
  ServerSettings settings = Observed(recorded);
  settings.filters = {[](ServerCall& call) {
    return call.client_metadata().contains("refuse") ? grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "refused")
                                                     : grpc::Status::OK;
  }};
  GuardedEcho echo;
  echo.on_unary = [](grpc::CallbackServerContext*, const EchoRequest&, EchoResponse*) -> grpc::Status {
    throw std::runtime_error("oh");
  };
  LogKeeper log;
  const auto server = MakeServer(std::move(settings), {&echo});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  EchoResponse response;
  CHECK(CallUnary(*stub, EchoRequest(), &response).error_code() == grpc::StatusCode::INTERNAL);
  grpc::ClientContext context;
  SetLimit(context);
  context.AddMetadata("refuse", "1");
  CHECK(stub->Unary(&context, EchoRequest(), &response).error_code() == grpc::StatusCode::PERMISSION_DENIED);

  CHECK(Eventually([&] { return recorded.Spans().size() == 2; }));
  std::map<std::string, std::uint64_t> counts;
  for (const RecordedPoint& point : recorded.Points()) {
    CHECK(point.name == "rpc.server.call.duration");
    CHECK(point.unit == "s");
    const std::string code = point.attributes.at("rpc.response.status_code");
    // PERMISSION_DENIED is no error of the server's.
    CHECK(point.attributes.size() == (code == "INTERNAL" ? 4 : 3));
    CHECK(point.attributes.contains("error.type") == (code == "INTERNAL"));
    counts[code] += point.count;
  }
  CHECK(counts == std::map<std::string, std::uint64_t>{{"INTERNAL", 1}, {"PERMISSION_DENIED", 1}});
}

TEST_CASE("O2, V7: a method that no service has is one series and a span in its caller's trace, whatever its name") {
  testing::Telemetry recorded;
  GuardedEcho echo;
  const auto server = MakeServer(Observed(recorded), {&echo});
  grpc::GenericStub stub(ChannelTo(AddressOf(*server)));
  for (const char* method : {"/no.such.Service/A\xff", "/penstock.test.v1.Echo/B"}) {
    grpc::ClientContext context;
    SetLimit(context);
    context.AddMetadata("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    const grpc::Slice nothing("");
    const grpc::ByteBuffer request(&nothing, 1);
    grpc::ByteBuffer response;
    std::promise<grpc::StatusCode> code;
    stub.UnaryCall(&context, method, {}, &request, &response, [&](const grpc::Status& s) { code.set_value(s.error_code()); });
    CHECK(code.get_future().get() == grpc::StatusCode::UNIMPLEMENTED);
  }
  CHECK(Eventually([&] { return recorded.Spans().size() == 2; }));
  for (const RecordedSpan& span : recorded.Spans()) {
    CHECK(span.kind == "server");
    CHECK(span.name == "grpc");
    CHECK(span.trace_id == "0af7651916cd43dd8448eb211c80319c");
    CHECK(span.parent_span_id == "b7ad6b7169203331");
    CHECK(span.error);
    CHECK(span.attributes.at("rpc.method") == "_OTHER");
    CHECK(span.attributes.at("rpc.response.status_code") == "UNIMPLEMENTED");
    CHECK(span.attributes.at("error.type") == "UNIMPLEMENTED");
  }
  CHECK(recorded.Spans().front().attributes.at("rpc.method_original") == "no.such.Service/A?");  // what is exported is UTF-8
  const auto points = recorded.Points();
  REQUIRE(points.size() == 1);
  CHECK(points.front().attributes.at("rpc.method") == "_OTHER");
  CHECK(points.front().count == 2);
}

TEST_CASE("O2: a stream's span ends once: with OK") {
  StreamLab lab;
  lab.Open(3);
  lab.Check("OK", "OK");
}

TEST_CASE("O2: a stream's span ends once: with the server's error after a message") {
  StreamLab lab;
  lab.Open(0, {}, grpc::StatusCode::NOT_FOUND);
  lab.Check("NOT_FOUND", "NOT_FOUND");
}

TEST_CASE("O2: a stream's span ends once: refused before it opened") {
  StreamLab lab;
  CallOptions options;
  options.metadata = {{"refuse", "1"}};
  lab.Open(3, std::move(options));
  lab.Check("PERMISSION_DENIED", "PERMISSION_DENIED");
}

TEST_CASE("O2: a stream's span ends once: cancelled by its caller while open") {
  StreamLab lab;
  lab.Open(-1);
  CHECK(lab.reader.heard.WaitFor("read"));
  lab.reader.Cancel();
  lab.Check("CANCELLED", "CANCELLED");
}

TEST_CASE("O2: a stream's span ends once: cancelled as it opens") {
  StreamLab lab;
  lab.Open(-1);
  lab.reader.Cancel();
  lab.Check("CANCELLED", std::nullopt);
}

TEST_CASE("O2: a stream's span ends once: at its deadline") {
  StreamLab lab;
  lab.Open(-1, {.timeout = 100ms});
  lab.Check("DEADLINE_EXCEEDED", std::nullopt);
}

TEST_CASE("O2: a stream's span ends once: the server shuts down") {
  StreamLab lab;
  lab.Open(-1);
  CHECK(lab.reader.heard.WaitFor("read"));
  lab.server->Shutdown();
  lab.Check("UNAVAILABLE", "UNAVAILABLE");
}

TEST_CASE("O2: a stream's span ends once: the client is destroyed") {
  StreamLab lab;
  lab.Open(-1);
  CHECK(lab.reader.heard.WaitFor("read"));
  lab.client.reset();
  lab.Check("CANCELLED", "CANCELLED");
}

TEST_CASE("O2: a stream's span ends once: nobody listens") {
  StreamLab lab;
  lab.server.reset();
  lab.Open(-1);
  lab.reader.Wait();
  REQUIRE(lab.at_client.Spans().size() == 1);
  CHECK(lab.at_client.Spans()[0].attributes.at("rpc.response.status_code") == "UNAVAILABLE");
  lab.client.reset();
  CHECK(lab.at_client.Spans().size() == 1);
}

TEST_CASE("O4: a stream counts nothing before it ends, and is succeeded as it opens") {
  StreamLab lab;
  lab.Open(-1);
  CHECK(lab.reader.heard.WaitFor("read"));
  CHECK(lab.at_client.Sum("penstock.retry.decisions", {{"penstock.retry.decision", "succeeded"}}) == 1);
  CHECK(lab.at_client.Sum("penstock.circuit.calls") == 0);
  CHECK(lab.at_client.Sum("rpc.client.call.duration") == 0);
  lab.reader.Cancel();
  lab.reader.Wait();
  CHECK(lab.at_client.Sum("penstock.circuit.calls", {{"penstock.circuit.outcome", "ignored"}}) == 1);
}

}  // namespace penstock::test
