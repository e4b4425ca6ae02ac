// Streams against a peer that does with HTTP/2 what no gRPC server does. Nothing here may abort, hang, leak or lose an end.
// One row is missing: a connection that is reset after the request and before the first answer, which gRPC 1.51.1 itself now and
// then does not tell the stream (docs/connections.md).

#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <vector>

#include "penstock/client/client.h"
#include "penstock/testing/raw_peer.h"
#include "support/client_calls.h"
#include "support/echo_requests.h"
#include "support/stream_reactors.h"
#include "support/stub_dns.h"

namespace penstock::test {
namespace {

using testing::RawPeer;
using testing::RawPeerStats;
using testing::RawRequest;
using testing::RawScript;

constexpr auto kDown = PENSTOCK_METHOD(v1::Echo, Down);
constexpr auto kUp = PENSTOCK_METHOD(v1::Echo, Up);

std::string Reply(std::string text = "answered") {
  v1::EchoResponse response;
  response.set_text(std::move(text));
  return response.SerializeAsString();
}

// Streams get the script, unary calls an answer.
std::unique_ptr<RawPeer> StreamsGet(RawScript script) {
  auto peer = RawPeer::Create({.answer = [script](const RawRequest& request) {
    return request.path().ends_with("/Unary") ? RawScript::Ok(Reply()) : script;
  }});
  if (!peer.ok()) FAIL(peer.error().message());
  return *std::move(peer);
}

const CallResult& ReadAll(Client& client, DownReader& reader, CallOptions options = {}) {
  (void)reader.StartRead(&reader.message);
  client.Open(kDown, Request(""), std::move(options), reader);
  return reader.Wait();
}

// One end, the last of all, and the client goes on.
void CheckEnded(Client& client, const Heard& heard) {
  CHECK(heard.Count("done") == 1);
  CHECK(heard.Count("read:no") == 1);
  CHECK(heard.all().back() == "done");
  CHECK(Eventually([&] { return client.CallAndWait(kUnary, Request(""), {.timeout = 20s, .wait_for_ready = true}).ok(); }));
  CHECK(client.CloseAndWait(std::chrono::steady_clock::now() + kLimit));
}

}  // namespace

TEST_CASE("S3: a server that ends before its headers: one end, neutral where it says UNAVAILABLE, and no second attempt") {
  struct Case {
    std::string what;
    RawScript script;
    std::optional<grpc::StatusCode> code;  // Nothing: gRPC's choice.
  };
  const std::vector<Case> cases = {
      {"closed", RawScript().Close(), grpc::UNAVAILABLE},
      {"closed once the request is there", RawScript().AwaitEnd().Close(), grpc::UNAVAILABLE},
      {"REFUSED_STREAM", RawScript().AwaitEnd().Reset(testing::kHttp2RefusedStream), grpc::UNAVAILABLE},
      {"CANCEL", RawScript().AwaitEnd().Reset(testing::kHttp2Cancel), grpc::CANCELLED},
      {"INTERNAL_ERROR", RawScript().AwaitEnd().Reset(testing::kHttp2InternalError), {}},
      {"a GOAWAY that does not cover it", RawScript().Goaway(0).Close(), grpc::UNAVAILABLE},
      {"trailers with UNAVAILABLE", RawScript().AwaitEnd().TrailersOnly(grpc::UNAVAILABLE), grpc::UNAVAILABLE},
      {"trailers with a code that is none", RawScript().AwaitEnd().TrailersOnly("99"), grpc::UNKNOWN},
      {"no HTTP/2", RawScript().Bytes("HTTP/1.1 400 Bad Request\r\n\r\n").Close(), {}},
  };
  for (const Case& tried : cases) {
    CAPTURE(tried.what);
    const auto peer = StreamsGet(tried.script);
    Client client = MakeClient({.address = peer->address()});
    DownReader reader;
    const CallResult& result = ReadAll(client, reader);
    CHECK_FALSE(result.ok());
    CHECK(result.status.error_code() <= grpc::UNAUTHENTICATED);
    CHECK(result.attempts == 1);
    CHECK(result.reached != Reached::kNotSent);
    CHECK(reader.heard.all() == std::vector<std::string>{"read:no", "done"});
    CHECK(client.circuit_totals().failures == 0);
    if (tried.code) CHECK(result.status.error_code() == *tried.code);
    const bool neutral = result.status.error_code() == grpc::UNAVAILABLE || result.status.error_code() == grpc::CANCELLED;
    CHECK(client.circuit_totals().ignored == (neutral ? 1 : 0));
    CheckEnded(client, reader.heard);
  }
}

TEST_CASE("S10: what a server sends after the end changes nothing") {
  const RawScript ended = RawScript().AwaitEnd().Headers().Message(Reply()).Status(grpc::OK);
  for (const RawScript& script : {RawScript(ended).Message(Reply("late")), RawScript(ended).Headers(), RawScript(ended).Status(grpc::INTERNAL),
                                  RawScript(ended).Reset(testing::kHttp2InternalError)}) {
    const auto peer = StreamsGet(script);
    Client client = MakeClient({.address = peer->address()});
    DownReader reader;
    CHECK(ReadAll(client, reader).ok());
    CHECK(reader.heard.all() == std::vector<std::string>{"opened", "read", "read:no", "done"});
    CHECK(reader.message.text() == "answered");
    CHECK(client.circuit_totals().successes >= 1);
    CheckEnded(client, reader.heard);
  }
}

TEST_CASE("S1: a server that never sends: nothing is heard until the stream is cancelled or its deadline ends it") {
  for (const bool headers : {false, true}) {
    const auto peer = StreamsGet(headers ? RawScript().Headers() : RawScript());
    Client client = MakeClient({.address = peer->address()});
    DownReader waiting;
    CHECK(ReadAll(client, waiting, {.deadline = SteadyClock().Now() + 200ms}).reason == EndReason::kExpired);
    if (!headers) CHECK(waiting.heard.Count("opened") == 0);
    DownReader cancelled;
    (void)cancelled.StartRead(&cancelled.message);
    client.Open(kDown, Request(""), {}, cancelled);
    REQUIRE(peer->WaitUntil([](const RawPeerStats& stats) { return stats.requests == 2; }));
    if (headers) REQUIRE(cancelled.heard.WaitFor("opened"));
    cancelled.Cancel();
    CHECK(cancelled.Wait().status.error_code() == grpc::CANCELLED);
    CHECK(peer->WaitUntil([](const RawPeerStats& stats) { return stats.resets == 2; }));
    CheckEnded(client, cancelled.heard);
  }
}

TEST_CASE("S9: a message that comes byte by byte is delivered when it is whole, and keeps nobody else waiting") {
  RawScript script = RawScript().AwaitEnd().Headers();
  const std::string message = testing::GrpcMessage(Reply());
  for (const char byte : message.substr(0, message.size() - 1)) script.Wait(10ms).Data(std::string(1, byte));
  script.AwaitSignal().Data(message.substr(message.size() - 1)).Status(grpc::OK);
  const auto peer = StreamsGet(script);
  Client client = MakeClient({.address = peer->address()});
  DownReader slow;
  (void)slow.StartRead(&slow.message);
  client.Open(kDown, Request(""), {}, slow);
  REQUIRE(slow.heard.WaitFor("opened"));
  CHECK(client.CallAndWait(kUnary, Request("")).ok());
  CHECK(slow.heard.Count("read") == 0);
  DownReader expiring;
  CHECK(ReadAll(client, expiring, {.deadline = SteadyClock().Now() + 200ms}).reason == EndReason::kExpired);
  CHECK(expiring.heard.Count("read") == 0);
  peer->Signal();
  CHECK(slow.Wait().ok());
  CHECK(slow.message.text() == "answered");
  CheckEnded(client, slow.heard);
}

TEST_CASE("C7: a message over the limit ends the stream with RESOURCE_EXHAUSTED; one that only says so waits for its bytes") {
  const auto peer = StreamsGet(RawScript().AwaitEnd().Headers().Message(Reply(std::string(2'000, 'x'))).Status(grpc::OK));
  Client client = MakeClient({.address = peer->address(), .max_receive_bytes = 1'000});
  for (int stream = 0; stream < 5; ++stream) {
    DownReader reader;
    CHECK(ReadAll(client, reader).status.error_code() == grpc::RESOURCE_EXHAUSTED);
    CHECK(reader.heard.Count("read") == 0);
    CHECK(reader.heard.Count("done") == 1);
  }
  CHECK(client.circuit_totals().failures == 0);
  CHECK(client.circuit_totals().ignored == 5);
  const std::string a_gibibyte("\0\x40\0\0\0", 5);
  peer->SetAnswer([a_gibibyte](const RawRequest&) { return RawScript().AwaitEnd().Headers().Data(a_gibibyte + "x"); });
  DownReader reader;
  CHECK(ReadAll(client, reader, {.deadline = SteadyClock().Now() + 200ms}).reason == EndReason::kExpired);
}

TEST_CASE("S10: a client stream whose server answers twice, or ends with OK and no answer, ends with INTERNAL") {
  struct Case {
    RawScript script;
    const char* message;
  };
  const std::vector<Case> cases = {
      {RawScript().AwaitEnd().Headers().Message(Reply()).Message(Reply()).Status(grpc::OK),
       "the server sent more than one response to a client stream"},
      {RawScript().AwaitEnd().Headers().Status(grpc::OK), "the server ended a client stream with OK and no response"},
  };
  for (const Case& tried : cases) {
    const auto peer = StreamsGet(tried.script);
    Client client = MakeClient({.address = peer->address()});
    UpWriter writer;
    (void)writer.StartWriteLast(&writer.request);
    client.Open(kUp, {}, &writer.response, writer);
    CHECK(writer.Wait().status.error_code() == grpc::INTERNAL);
    CHECK(writer.result.status.error_message() == tried.message);
    CHECK(writer.heard.Count("done") == 1);
    CHECK(client.CloseAndWait(std::chrono::steady_clock::now() + kLimit));
  }
}

TEST_CASE("S3: a server that answers before the client has written ends the writes and the stream") {
  const auto peer = StreamsGet(RawScript().Headers().Message(Reply()).Status(grpc::OK));
  Client client = MakeClient({.address = peer->address()});
  UpWriter writer;
  client.Open(kUp, {}, &writer.response, writer);
  CHECK(writer.Wait().ok());
  CHECK(writer.response.text() == "answered");
  CHECK(writer.StartWrite(&writer.request) == StreamStart::kEnded);
}

TEST_CASE("S2: a name that does not resolve is not sent: the opening is tried again, and a stream of it never opens") {
  const StubDns dns({});
  Client client = MakeClient({.address = "nowhere.test:1",
                              .backoff_base = 1ms,
                              .backoff_max = 5ms,
                              .breaker = {.trip = [](const Counts&) { return false; }},
                              .connection = {.name_server = dns.address()}});
  DownReader reader;
  const CallResult& result = ReadAll(client, reader);
  CHECK(result.status.error_code() == grpc::UNAVAILABLE);
  CHECK(result.reached == Reached::kNotSent);
  CHECK(result.reason == EndReason::kExhausted);
  CHECK(result.attempts == 3);
  CHECK(reader.heard.all() == std::vector<std::string>{"read:no", "done"});
}

}  // namespace penstock::test
