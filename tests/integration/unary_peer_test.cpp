// Unary calls against a peer that answers with whatever HTTP/2 it likes: every pushback, every code, and every way to go away
// in the middle. Nothing here may abort, hang, leak or lose a completion.

#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <vector>

#include "penstock/client/client.h"
#include "penstock/testing/manual_time.h"
#include "penstock/testing/raw_peer.h"
#include "support/client_calls.h"
#include "support/echo_requests.h"

namespace penstock::test {
namespace {

using testing::ManualTime;
using testing::RawHeaders;
using testing::RawPeer;
using testing::RawRequest;
using testing::RawScript;

std::string Reply() {
  v1::EchoResponse response;
  response.set_text("answered");
  return response.SerializeAsString();
}

// Answers the first request with the script, the others with OK.
std::unique_ptr<RawPeer> FirstAnswers(RawScript script) {
  auto peer = RawPeer::Create({.answer = [script](const RawRequest& request) {
    return request.number == 1 ? script : RawScript::Ok(Reply());
  }});
  if (!peer.ok()) FAIL(peer.error().message());
  return *std::move(peer);
}

bool NeverTrips(const Counts& /*counts*/) { return false; }

}  // namespace

TEST_CASE("C4, G4: the pushback in every form that a peer can send") {
  struct Case {
    std::vector<std::string> values;
    std::optional<Duration> retried_after;  // Nothing: stopped.
  };
  const std::vector<Case> cases = {
      {{"0"}, 0ms},
      {{"500"}, 500ms},
      {{"007"}, 7ms},
      {{"5000"}, 5s},
      {{"5001"}, {}},  // C5: over backoff_max.
      {{"-1"}, {}},
      {{"abc"}, {}},
      {{""}, {}},
      {{"1.5"}, {}},
      {{"0x10"}, {}},
      {{"2147483648"}, {}},
      {{"9223372036854775807"}, {}},
      {{"9223372036854775808"}, {}},
      {{"12345678901234567890"}, {}},
      // C-core reads these as 5 before anybody else can see them, and of two it keeps the last.
      {{"+5"}, 5ms},
      {{" 5"}, 5ms},
      {{"9000", "5"}, 5ms},
      {{"5", "9000"}, {}},
  };
  for (const Case& tried : cases) {
    CAPTURE(tried.values.front());
    RawHeaders trailers;
    for (const std::string& value : tried.values) trailers.emplace_back("grpc-retry-pushback-ms", value);
    const auto peer = FirstAnswers(RawScript::Fail(grpc::UNAVAILABLE, "later", trailers));
    auto time = std::make_shared<ManualTime>();
    Client client = MakeClient({.address = peer->address(), .timeout = 60s, .backoff_base = 1ns, .backoff_max = 5s, .time = time});
    Ending ending;
    client.Call(kRepeatable, Request(""), {}, ending.Completion());
    if (tried.retried_after && *tried.retried_after > 1ns) {
      REQUIRE(time->WaitForTimers(2));
      CHECK(time->NextDue() == time->Now() + *tried.retried_after);
      time->AdvanceToNext();
    } else if (tried.retried_after) {
      // The backoff may have drawn a nanosecond.
      REQUIRE(Eventually([&] { return time->Advance(1ns), ending.ended(); }));
    }
    const CallResult& result = ending.Wait();
    CHECK(result.ok() == tried.retried_after.has_value());
    CHECK(result.attempts == (tried.retried_after ? 2 : 1));
    if (!result.ok()) {
      CHECK(result.status.error_message() == "later");
      CHECK(result.reason == EndReason::kStopped);
    }
    CHECK(client.circuit_totals().failures == 1);
  }
}

TEST_CASE("C4: RESOURCE_EXHAUSTED is retried with a pushback, and OK stays a success with any") {
  const auto peer = FirstAnswers(RawScript::Fail(grpc::RESOURCE_EXHAUSTED, "later", {{"grpc-retry-pushback-ms", "1"}}));
  Client client = MakeClient({.address = peer->address()});
  const auto waited = client.CallAndWait(kUnary, Request(""));
  CHECK(waited.ok());
  CHECK(waited.result.attempts == 2);
  peer->SetAnswer([](const RawRequest&) { return RawScript::Ok(Reply(), {{"grpc-retry-pushback-ms", "-1"}}); });
  CHECK(client.CallAndWait(kUnary, Request("")).result.attempts == 1);
  CHECK(client.circuit_totals().successes == 2);
}

TEST_CASE("C3, C8: every code that a server can send, and those that it cannot") {
  struct Case {
    const char* sent;
    grpc::StatusCode code;
    std::uint32_t attempts;
    Outcome outcome;
  };
  const auto expected = [](int code) {
    const bool failure = code == grpc::UNAVAILABLE || code == grpc::RESOURCE_EXHAUSTED || code == grpc::DEADLINE_EXCEEDED;
    if (failure) return Outcome::kFailure;
    return code == grpc::CANCELLED ? Outcome::kIgnored : Outcome::kSuccess;
  };
  std::vector<std::string> texts;
  for (int code = 0; code <= 17; ++code) texts.push_back(std::to_string(code));
  for (const char* odd : {"99", "-1", "2147483648", "abc", ""}) texts.emplace_back(odd);
  for (const std::string& text : texts) {
    for (const bool alone : {false, true}) {
      CAPTURE(text);
      CAPTURE(alone);
      const bool known = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos && std::stol(text) <= 16;
      const int code = known ? std::stoi(text) : grpc::UNKNOWN;
      RawScript script = RawScript().AwaitEnd();
      if (alone) {
        script.TrailersOnly(text, "as asked");
      } else {
        script.Headers();
        if (code == grpc::OK) script.Message(Reply());
        script.Status(text, "as asked");
      }
      const auto peer = RawPeer::Create({.answer = [script](const RawRequest&) { return script; }});
      REQUIRE(peer.ok());
      Client client = MakeClient({.address = (*peer)->address(), .backoff_base = 1ns});
      const auto waited = client.CallAndWait(kUnary, Request(""), {.timeout = 20s});
      CHECK(waited.result.status.error_code() == code);
      CHECK(waited.result.attempts == (code == grpc::UNAVAILABLE ? 3 : 1));
      const CircuitTotals totals = client.circuit_totals();
      CHECK((totals.failures > 0) == (expected(code) == Outcome::kFailure));
      CHECK((totals.successes > 0) == (expected(code) == Outcome::kSuccess));
      if (code != grpc::OK && known) CHECK(waited.result.status.error_message() == "as asked");
    }
  }
}

TEST_CASE("C8, L17: a code outside 0 to 16 is UNKNOWN for code that uses a guarded channel as well") {
  const auto peer = FirstAnswers(RawScript().AwaitEnd().Headers().Trailers({{"grpc-status", "99"}, {"grpc-message", "odd"}}));
  Client client = MakeClient({.address = peer->address()});
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + 20s);
  v1::EchoResponse response;
  const grpc::Status status = v1::Echo::NewStub(client.GuardedChannel())->Unary(&context, Request(""), &response);
  CHECK(status.error_code() == grpc::UNKNOWN);
  CHECK(status.error_message() == "odd");
  CHECK(client.circuit_totals().successes == 1);
}

TEST_CASE("C8: a stream that ends without a status is no success") {
  bool transparent_retries = false;
  RawScript script = RawScript().AwaitEnd().Headers();
  SUBCASE("trailers without grpc-status") { script.Trailers({{"other", "x"}}); }
  SUBCASE("no trailers") { script.Data("", true); }
  SUBCASE("no trailers, with gRPC's retries") {
    transparent_retries = true;
    script.Data("", true);
  }
  SUBCASE("a message and no trailers, with gRPC's retries") {
    transparent_retries = true;
    script.Data(testing::GrpcMessage(Reply()), true);
  }
  const auto peer = FirstAnswers(script);
  Client client = MakeClient({.address = peer->address(), .max_attempts = 1, .transparent_retries = transparent_retries});
  const auto waited = client.CallAndWait(kUnary, Request(""), {.timeout = 20s});
  CHECK_FALSE(waited.ok());
  CHECK(waited.result.attempts == 1);
}

// With gRPC's own retries on, libgrpc 1.51.1 asserts that trailers have a grpc-status and aborts the process: why they are off
// by default (docs/adr/0008).
TEST_CASE("C8, L7: a client with default settings survives trailers without a status") {
  const auto peer = FirstAnswers(RawScript().AwaitEnd().Headers().Trailers({{"other", "x"}}));
  Client client = MakeClient({.address = peer->address(), .max_attempts = 1});
  CHECK_FALSE(client.CallAndWait(kUnary, Request(""), {.timeout = 20s}).ok());
}

TEST_CASE("L7: a GOAWAY that does not cover the call is retried by gRPC, or where that is off, by the client") {
  const RawScript uncovered = RawScript().Goaway(0).Close();
  SUBCASE("by gRPC, also for a method that must run once") {
    const auto peer = FirstAnswers(uncovered);
    Client client = MakeClient({.address = peer->address(), .transparent_retries = true});
    const auto waited = client.CallAndWait(kOnceOnly, Request(""), {.timeout = 20s});
    CHECK(waited.ok());
    CHECK(waited.result.attempts == 1);
    CHECK(client.circuit_totals().failures == 0);
  }
  SUBCASE("by the client") {
    const auto peer = FirstAnswers(uncovered);
    Client client = MakeClient({.address = peer->address(), .backoff_base = 1ns});
    const auto waited = client.CallAndWait(kRepeatable, Request(""), {.timeout = 20s});
    CHECK(waited.ok());
    CHECK(waited.result.attempts == 2);
    CHECK(client.circuit_totals().failures == 0);
  }
}

TEST_CASE("L7: a GOAWAY that covers the call does not end it") {
  const auto peer = FirstAnswers(
      RawScript().Goaway(RawScript::kThisStream).AwaitEnd().Headers().Message(Reply()).Status(grpc::OK).Close());
  Client client = MakeClient({.address = peer->address()});
  const auto waited = client.CallAndWait(kOnceOnly, Request(""), {.timeout = 20s});
  CHECK(waited.ok());
  CHECK(waited.response.text() == "answered");
  CHECK(waited.result.attempts == 1);
  CHECK(client.CallAndWait(kOnceOnly, Request(""), {.timeout = 20s}).ok());
}

TEST_CASE("C9, L14: what ends a call in the middle is retried for a method that may run twice, and not for one that must not") {
  struct Case {
    std::string what;
    RawScript script;
  };
  const std::string half = testing::GrpcMessage(Reply()).substr(0, 8);
  const std::vector<Case> cases = {
      {"REFUSED_STREAM", RawScript().AwaitEnd().Reset(testing::kHttp2RefusedStream)},
      {"closed after the request's headers", RawScript().Close()},
      {"reset after the request's headers", RawScript().ResetConnection()},
      {"closed after the answer's headers", RawScript().AwaitEnd().Headers().Close()},
      {"closed in mid-message", RawScript().AwaitEnd().Headers().Data(half).Close()},
      {"reset in mid-message", RawScript().AwaitEnd().Headers().Data(half).ResetConnection()},
      {"an unavailable server", RawScript::Fail(grpc::UNAVAILABLE)},
  };
  for (const Case& tried : cases) {
    CAPTURE(tried.what);
    for (const bool repeatable : {true, false}) {
      const auto peer = FirstAnswers(tried.script);
      // Enough attempts for the connection to be back.
      Client client = MakeClient({.address = peer->address(), .max_attempts = 20, .breaker = {.trip = NeverTrips}});
      const auto waited = repeatable ? client.CallAndWait(kRepeatable, Request(""), {.timeout = 20s})
                                     : client.CallAndWait(kOnceOnly, Request(""), {.timeout = 20s});
      CHECK(waited.ok() == repeatable);
      if (repeatable) {
        CHECK(waited.response.text() == "answered");
        CHECK(waited.result.attempts >= 2);
      } else {
        CHECK(waited.result.status.error_code() == grpc::UNAVAILABLE);
        CHECK(waited.result.attempts == 1);
        CHECK(waited.result.reached != Reached::kNotSent);
        CHECK(waited.result.reason == EndReason::kStopped);
      }
    }
  }
}

TEST_CASE("G2, G6: answers that are no answers end the call, and the client goes on") {
  struct Case {
    std::string what;
    RawScript script;
  };
  const std::vector<Case> cases = {
      {"a status message of 9,000 bytes", RawScript().AwaitEnd().Headers().Status(grpc::NOT_FOUND, std::string(9'000, 'x'))},
      {"3,000 newlines", RawScript().AwaitEnd().Headers().Status(
                             grpc::NOT_FOUND, [] { std::string text; for (int i = 0; i < 3'000; ++i) text += "%0A"; return text; }())},
      {"a bad escape", RawScript().AwaitEnd().TrailersOnly(grpc::NOT_FOUND, "%zz%")},
      {"no HTTP/2", RawScript().Bytes("HTTP/1.1 400 Bad Request\r\n\r\n").Close()},
      {"RST_STREAM with INTERNAL_ERROR", RawScript().Reset(testing::kHttp2InternalError)},
      {"RST_STREAM with CANCEL", RawScript().Reset(testing::kHttp2Cancel)},
      {"RST_STREAM with ENHANCE_YOUR_CALM", RawScript().Reset(testing::kHttp2EnhanceYourCalm)},
      {"bad base64 in a -bin trailer", RawScript::Fail(grpc::NOT_FOUND, "", {{"x-bin", "!!!"}})},
      {"a message longer than what follows", RawScript().AwaitEnd().Headers().Data(std::string("\0\0\0\0\x7f", 5) + "x").Status(grpc::OK)},
      {"two messages", RawScript().AwaitEnd().Headers().Message(Reply()).Message(Reply()).Status(grpc::OK)},
      {"a message that is no protobuf", RawScript().AwaitEnd().Headers().Message("\xff\xff\xff").Status(grpc::OK)},
      {"OK without a message", RawScript().AwaitEnd().Headers().Status(grpc::OK)},
      {"an unknown compression", RawScript().AwaitEnd().Headers({{"grpc-encoding", "brand-new"}}).Data(std::string("\1\0\0\0\1x", 6)).Status(grpc::OK)},
      {"a GOAWAY with an error", RawScript().Goaway(0, testing::kHttp2EnhanceYourCalm, "too_many_pings").Close()},
  };
  for (const Case& tried : cases) {
    CAPTURE(tried.what);
    const auto peer = FirstAnswers(tried.script);
    Client client = MakeClient({.address = peer->address(), .max_attempts = 1, .breaker = {.trip = NeverTrips}});
    const auto waited = client.CallAndWait(kUnary, Request(""), {.timeout = tried.what == "two messages" ? 500ms : 20s});
    CHECK(waited.result.status.error_code() >= grpc::OK);
    CHECK(waited.result.status.error_code() <= grpc::UNAUTHENTICATED);
    // gRPC tells a call's end only once its messages are read, and a unary call reads one.
    CHECK((waited.result.reason == EndReason::kExpired) == (tried.what == "two messages"));
    // A call that follows at once may still go to the connection that is being closed, and share its end.
    CHECK(Eventually([&] { return client.CallAndWait(kUnary, Request(""), {.timeout = 20s, .wait_for_ready = true}).ok(); }));
    CHECK(client.CloseAndWait(std::chrono::steady_clock::now() + kLimit));
  }
}

TEST_CASE("L3: a peer that never answers, or stops in the middle, costs the timeout and no more") {
  const std::string half = testing::GrpcMessage(Reply()).substr(0, 8);
  for (const RawScript& script : {RawScript(), RawScript().AwaitEnd().Headers(), RawScript().AwaitEnd().Headers().Data(half)}) {
    const auto peer = FirstAnswers(script);
    auto time = std::make_shared<ManualTime>();
    Client client = MakeClient({.address = peer->address(), .time = time});
    Ending ending;
    client.Call(kUnary, Request(""), {}, ending.Completion());
    REQUIRE(peer->WaitUntil([](const testing::RawPeerStats& stats) { return stats.ended_requests == 1; }));
    time->Advance(10s);
    CHECK(ending.Wait().status.error_code() == grpc::DEADLINE_EXCEEDED);
    CHECK(peer->WaitUntil([](const testing::RawPeerStats& stats) { return stats.resets == 1; }));
  }
}

TEST_CASE("C3: the signature of a call that a server killed at its shutdown: repeated for a method that may run twice, for one token") {
  const auto killed = RawScript().AwaitEnd().TrailersOnly(grpc::CANCELLED, "CANCELLED");
  const auto attempts = [&](auto method, RawScript script, int failing) {
    auto peer = RawPeer::Create({.answer = [script, failing](const RawRequest& request) {
      return static_cast<int>(request.number) <= failing ? script : RawScript::Ok(Reply());
    }});
    REQUIRE(peer.ok());
    Client client = MakeClient({.address = (*peer)->address()});
    const auto waited = client.CallAndWait(method, Request(""), {.timeout = 20s});
    CHECK(client.circuit_totals().failures == 0);
    CHECK(client.budget_tokens() == doctest::Approx(waited.result.attempts == 1 ? 100 : waited.ok() ? 99.1 : 99));
    return std::pair(waited.result.status.error_code(), waited.result.attempts);
  };
  using Ends = std::pair<grpc::StatusCode, std::uint32_t>;
  CHECK(attempts(kRepeatable, killed, 1) == Ends(grpc::OK, 2));
  CHECK(attempts(kRepeatable, killed, 2) == Ends(grpc::OK, 3));
  CHECK(attempts(kRepeatable, killed, 3) == Ends(grpc::CANCELLED, 3));
  CHECK(attempts(kUnary, killed, 1) == Ends(grpc::CANCELLED, 1));
  CHECK(attempts(kOnceOnly, killed, 1) == Ends(grpc::CANCELLED, 1));
  // A handler's own CANCELLED is none.
  CHECK(attempts(kRepeatable, RawScript::Fail(grpc::CANCELLED), 1) == Ends(grpc::CANCELLED, 1));
  CHECK(attempts(kRepeatable, RawScript::Fail(grpc::CANCELLED, "CANCELLED", {{"who", "me"}}), 1) == Ends(grpc::CANCELLED, 1));
}

}  // namespace penstock::test
