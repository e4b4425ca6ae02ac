// Streams against plain grpc++ servers: each row of the table of ends (facts: stream callbacks), what it counts, and misuse.
#include <doctest/doctest.h>

#include <grpcpp/generic/async_generic_service.h>

#include <array>
#include <atomic>
#include <memory>
#include <thread>

#include "penstock/client/client.h"
#include "penstock/testing/manual_time.h"
#include "penstock/testing/router.h"
#include "support/echo_service.h"
#include "support/stream_reactors.h"

using namespace penstock;
using namespace std::chrono_literals;
using test::BidiTalker;
using test::DownReader;
using test::EchoRequest;
using test::EchoServer;
using test::UpWriter;
using Strings = std::vector<std::string>;

namespace {

constexpr auto kDown = PENSTOCK_METHOD(test::v1::Echo, Down);
constexpr auto kUp = PENSTOCK_METHOD(test::v1::Echo, Up);
constexpr auto kBidi = PENSTOCK_METHOD(test::v1::Echo, Bidi);

Client MakeClient(const std::string& address, std::function<void(ClientSettings&)> change = [](ClientSettings&) {}) {
  ClientSettings settings{.address = address};
  settings.plaintext = true;
  settings.backoff_base = 1ms;
  settings.backoff_max = 50ms;
  change(settings);
  Result<Client> client = Client::Create(std::move(settings));
  REQUIRE(client.ok());
  return std::move(client).value();
}

EchoRequest EndWith(int code, int messages = 0) {
  EchoRequest request;
  request.set_count(messages);
  request.set_code(code);
  return request;
}

EchoRequest Quiet(int messages = 0) {
  EchoRequest request;
  request.set_count(messages);
  request.set_delay_ms(-1);
  return request;
}

// An address that refuses connections.
std::string Nowhere() { return EchoServer().address(); }

EchoRequest Count(int count) {
  EchoRequest request;
  request.set_count(count);
  request.set_text("x");
  return request;
}

}  // namespace

TEST_CASE("S1: a server stream opens, delivers in order and ends with OK, which counts one success") {
  EchoServer server;
  Client client = MakeClient(server.address());
  DownReader reader;
  CHECK(reader.StartRead(&reader.message) == StreamStart::kStarted);
  client.Open(kDown, Count(3), {}, reader);
  const CallResult& result = reader.Wait();
  CHECK(result.ok());
  CHECK(result.reason == EndReason::kAnswered);
  CHECK(result.reached == Reached::kResponded);
  CHECK(result.attempts == 1);
  CHECK(reader.heard.all() == Strings{"opened", "read", "read", "read", "read:no", "done"});
  CHECK(client.circuit_totals().successes == 1);
}

TEST_CASE("S1: a client stream takes writes and gives its one response") {
  EchoServer server;
  Client client = MakeClient(server.address());
  UpWriter writer;
  int written = 0;
  writer.on_write = [&] {
    if (++written < 3) {
      CHECK(writer.StartWrite(&writer.request) == StreamStart::kStarted);
    } else {
      CHECK(writer.StartWritesDone() == StreamStart::kStarted);
    }
  };
  CHECK(writer.StartWrite(&writer.request) == StreamStart::kStarted);
  client.Open(kUp, {}, &writer.response, writer);
  CHECK(writer.Wait().ok());
  CHECK(writer.heard.Count("write") == 3);
  CHECK(writer.heard.Count("half") == 1);
  CHECK(writer.response.sequence() == 3);
  CHECK(client.circuit_totals().successes == 1);
}

TEST_CASE("S1: a bidi stream talks in turns, started from inside and from outside its reactions") {
  EchoServer server;
  Client client = MakeClient(server.address());
  BidiTalker talker;
  talker.request.set_text("hello");
  talker.on_read = [] {};
  CHECK(talker.StartWrite(&talker.request) == StreamStart::kStarted);
  client.Open(kBidi, {}, talker);
  for (std::size_t turn = 1; turn <= 5; ++turn) {
    CHECK(talker.heard.WaitFor("write", turn));
    CHECK(talker.StartRead(&talker.message) == StreamStart::kStarted);
    CHECK(talker.heard.WaitFor("read", turn));
    CHECK(talker.message.text() == "hello");
    talker.message.Clear();
    if (turn < 5) CHECK(talker.StartWrite(&talker.request) == StreamStart::kStarted);
  }
  CHECK(talker.StartWritesDone() == StreamStart::kStarted);
  CHECK(talker.Wait().ok());
  CHECK(talker.heard.Count("half") == 1);
}

// The table of ends: how a stream ended, what is told, what it counts.

namespace {

struct Ended {
  bool opened;
  int code;
  EndReason reason;
  Reached reached;
  std::uint32_t attempts;
  std::array<std::uint64_t, 3> counted;  // successes, failures, ignored

  friend bool operator==(const Ended&, const Ended&) = default;
};

doctest::String toString(const Ended& ended) {
  return doctest::String((std::string(ended.opened ? "opened" : "not opened") + ", code " + std::to_string(ended.code) + ", " +
                          Name(ended.reason) + ", " + Name(ended.reached) + ", " + std::to_string(ended.attempts) + " attempts, " +
                          std::to_string(ended.counted[0]) + "/" + std::to_string(ended.counted[1]) + "/" +
                          std::to_string(ended.counted[2]))
                             .c_str());
}

template <class Reactor>
Ended WaitEnd(Client& client, Reactor& reactor) {
  const CallResult& result = reactor.Wait();
  const CircuitTotals totals = client.circuit_totals();
  return {.opened = reactor.heard.Count("opened") == 1,
          .code = result.status.error_code(),
          .reason = result.reason,
          .reached = result.reached,
          .attempts = result.attempts,
          .counted = {totals.successes, totals.failures, totals.ignored}};
}

Ended Down(Client& client, EchoRequest request, CallOptions options = {}) {
  DownReader reader;
  CHECK(reader.StartRead(&reader.message) == StreamStart::kStarted);
  client.Open(kDown, std::move(request), std::move(options), reader);
  return WaitEnd(client, reader);
}

}  // namespace

TEST_CASE("S3: ends before the opening, with a connection picked: UNAVAILABLE and CANCELLED are neutral, others are classified") {
  EchoServer server;
  const auto ends = [&](int code) {
    Client client = MakeClient(server.address());
    return Down(client, EndWith(code));
  };
  CHECK(ends(14) == Ended{false, 14, EndReason::kStopped, Reached::kMaybeProcessed, 1, {0, 0, 1}});
  CHECK(ends(1) == Ended{false, 1, EndReason::kStopped, Reached::kMaybeProcessed, 1, {0, 0, 1}});
  CHECK(ends(5) == Ended{false, 5, EndReason::kStopped, Reached::kResponded, 1, {1, 0, 0}});
  CHECK(ends(8) == Ended{false, 8, EndReason::kStopped, Reached::kMaybeProcessed, 1, {0, 1, 0}});
  CHECK(ends(13) == Ended{false, 13, EndReason::kStopped, Reached::kMaybeProcessed, 1, {1, 0, 0}});
  // An empty stream that ends with OK has opened.
  CHECK(ends(0) == Ended{true, 0, EndReason::kAnswered, Reached::kResponded, 1, {1, 0, 0}});
}

TEST_CASE("S4: ends after the headers or a message: OK success, UNAVAILABLE ignored, the rest by Classify") {
  EchoServer quick(test::EchoOptions{.headers_at_once = true});
  for (const int messages : {0, 1}) {
    CAPTURE(messages);
    const auto ends = [&](int code) {
      Client client = MakeClient(quick.address());
      return Down(client, EndWith(code, messages));
    };
    using Counted = std::array<std::uint64_t, 3>;
    CHECK(ends(0) == Ended{true, 0, EndReason::kAnswered, Reached::kResponded, 1, {1, 0, 0}});
    CHECK(ends(14).counted == Counted{0, 0, 1});
    CHECK(ends(1).counted == Counted{0, 0, 1});
    CHECK(ends(8).counted == Counted{0, 1, 0});
    CHECK(ends(2).counted == Counted{1, 0, 0});
    // Headers that are followed by the trailers at once may be told of or not; a message is.
    if (messages == 1) CHECK(ends(14) == Ended{true, 14, EndReason::kStopped, Reached::kResponded, 1, {0, 0, 1}});
  }
}

TEST_CASE("S2: an opening that reached nobody is retried, and its user hears of the last attempt alone") {
  Client client = MakeClient(Nowhere());
  DownReader reader;
  CHECK(reader.StartRead(&reader.message) == StreamStart::kStarted);
  client.Open(kDown, Count(1), {}, reader);
  const Ended ended = WaitEnd(client, reader);
  CHECK(ended.attempts == 3);
  CHECK(ended.code == 14);
  CHECK(ended.reason == EndReason::kExhausted);
  CHECK(ended.reached == Reached::kNotSent);
  CHECK_FALSE(ended.opened);
  CHECK(ended.counted[1] >= 1);  // One failure a failed connection attempt (C10).
  CHECK(reader.heard.all() == Strings{"read:no", "done"});
}

TEST_CASE("S2: an opening that a server answered is not retried though Classify says retry; it takes its token all the same") {
  EchoServer server;
  Client client = MakeClient(server.address());
  EchoRequest request = EndWith(8);
  (*request.mutable_trailers())["grpc-retry-pushback-ms"] = "0";
  CHECK(Down(client, request) == Ended{false, 8, EndReason::kStopped, Reached::kResponded, 1, {0, 1, 0}});
  CHECK(client.budget_tokens() == 99);
}

TEST_CASE("U2: a stream that had opened takes a token where Classify calls its end one to retry, though nothing is retried") {
  EchoServer server;
  Client client = MakeClient(server.address());
  EchoRequest request = EndWith(8, 1);
  (*request.mutable_trailers())["grpc-retry-pushback-ms"] = "0";
  const Ended ended = Down(client, request);
  CHECK(ended.opened);
  CHECK(ended.attempts == 1);
  CHECK(client.budget_tokens() == 99);
  Down(client, EndWith(14, 1));
  CHECK(client.budget_tokens() == doctest::Approx(99.1));
}

TEST_CASE("S2: the first write is held and made again with each attempt, until a server is there") {
  EchoServer server;
  auto router = *testing::Router::Create();  // Without targets: every connection is reset.
  Client client = MakeClient(router->address(), [](ClientSettings& settings) {
    settings.breaker.trip = [](const Counts&) { return false; };
    settings.connection.reconnect_first = 20ms;
    settings.connection.reconnect_highest = 20ms;
  });
  BidiTalker bidi;
  bidi.request.set_text("kept");
  CHECK(bidi.StartRead(&bidi.message) == StreamStart::kStarted);
  CHECK(bidi.StartWriteLast(&bidi.request) == StreamStart::kStarted);
  UpWriter up;
  CHECK(up.StartWrite(&up.request) == StreamStart::kStarted);
  CHECK(up.StartWritesDone() == StreamStart::kStarted);
  client.Open(kBidi, {.max_attempts = 100'000}, bidi);
  client.Open(kUp, {.max_attempts = 100'000}, &up.response, up);
  REQUIRE(router->WaitUntil([](const auto& stats) { return stats.refused >= 2; }));
  CHECK(bidi.heard.all().empty());
  CHECK(up.heard.all().empty());
  router->SetTargets({server.port()});
  CHECK(bidi.Wait().ok());
  CHECK(up.Wait().ok());
  CHECK(bidi.result.attempts > 1);
  CHECK(bidi.message.text() == "kept");
  CHECK(bidi.heard.Count("write") == 1);
  CHECK(bidi.heard.Count("write:no") == 0);
  CHECK(up.response.sequence() == 1);
  CHECK(up.heard.Count("write") == 1);
  CHECK(up.heard.Count("half") == 1);
  CHECK(client.budget_tokens() < 100);
}

TEST_CASE("S2: writes that never reached anybody are told as failed once, before the end") {
  Client client = MakeClient(Nowhere());
  UpWriter up;
  CHECK(up.StartWrite(&up.request) == StreamStart::kStarted);
  CHECK(up.StartWritesDone() == StreamStart::kStarted);
  client.Open(kUp, {}, &up.response, up);
  CHECK(up.Wait().reached == Reached::kNotSent);
  CHECK(up.heard.all() == Strings{"write:no", "half:no", "done"});
}

TEST_CASE("S3: a black hole is not sent: its own deadline ends it, which is a failure; a deadline that has passed makes no attempt") {
  EchoServer server;
  auto router = *testing::Router::Create({.targets = {server.port()}});
  router->HoldNew(true);
  Client client = MakeClient(router->address());
  CHECK(Down(client, Count(1), {.deadline = SteadyClock().Now() + 200ms}) ==
        Ended{false, 4, EndReason::kExpired, Reached::kNotSent, 1, {0, 1, 0}});
  CHECK(Down(client, Count(1), {.deadline = SteadyClock().Now() - 1s}) ==
        Ended{false, 4, EndReason::kExpired, Reached::kNotSent, 0, {0, 1, 0}});
}

TEST_CASE("S4: its own deadline ends a stream with DEADLINE_EXCEEDED and a failure, before and after it opened") {
  EchoServer server;
  for (const int messages : {0, 1}) {
    Client client = MakeClient(server.address());
    const Ended ended = Down(client, Quiet(messages), {.deadline = std::chrono::system_clock::now() + 300ms});
    CHECK(ended.opened == (messages == 1));
    CHECK(ended.code == 4);
    // The server has the same deadline, and may be the first to say so.
    CHECK((ended.reason == EndReason::kExpired || ended.reason == EndReason::kStopped));
    CHECK(ended.counted == std::array<std::uint64_t, 3>{0, 1, 0});
  }
}

TEST_CASE("S1: the settings' timeout is no stream's") {
  EchoServer server;
  Client client = MakeClient(server.address(), [](ClientSettings& settings) { settings.timeout = 1ms; });
  EchoRequest request = Count(2);
  request.set_interval_ms(50);
  CHECK(Down(client, request).code == 0);
}

TEST_CASE("L8: a stream is cancelled from any thread, before it is sent, before and after it opened: promptly, once, ignored") {
  EchoServer server;
  auto router = *testing::Router::Create({.targets = {server.port()}});
  for (const std::string when : {"at once", "held", "sent", "opened", "between attempts"}) {
    CAPTURE(when);
    router->HoldNew(when == "held");
    const bool refused = when == "between attempts";
    Client client = MakeClient(refused ? Nowhere() : router->address(), [&](ClientSettings& settings) {
      if (refused) settings.backoff_base = settings.backoff_max = 1h;
    });
    BidiTalker talker;
    const auto streams = server.echo().counts().streams;
    talker.request = Quiet();
    talker.request.set_delay_ms(60'000);
    if (when == "opened") talker.request = Count(1);
    CHECK(talker.StartRead(&talker.message) == StreamStart::kStarted);
    CHECK(talker.StartWrite(&talker.request) == StreamStart::kStarted);
    client.Open(kBidi, {}, talker);
    if (when == "held") REQUIRE(router->WaitUntil([](const auto& stats) { return stats.held > 0; }));
    if (when == "sent") REQUIRE(server.echo().WaitUntil([&](const auto& counts) { return counts.streams > streams; }));
    if (when == "opened") REQUIRE(talker.heard.WaitFor("read"));
    if (refused) std::this_thread::sleep_for(20ms);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) threads.emplace_back([&] { talker.Cancel(); });
    for (auto& thread : threads) thread.join();
    CHECK(talker.Wait().status.error_code() == grpc::StatusCode::CANCELLED);
    CHECK(talker.result.reason == EndReason::kCancelled);
    CHECK(talker.heard.Count("done") == 1);
    CHECK(client.circuit_totals().successes == 0);
    if (!refused) CHECK(client.circuit_totals().failures == 0);
    router->HoldNew(false);
    router->Release();
  }
}

TEST_CASE("S4: a connection that breaks after or before the first answer counts nothing, is told as UNAVAILABLE and is not retried") {
  EchoServer server;
  auto router = *testing::Router::Create({.targets = {server.port()}});
  for (const int messages : {0, 1}) {
    Client client = MakeClient(router->address());
    DownReader reader;
    const auto streams = server.echo().counts().streams;
    CHECK(reader.StartRead(&reader.message) == StreamStart::kStarted);
    client.Open(kDown, Quiet(messages), {}, reader);
    REQUIRE(server.echo().WaitUntil([&](const auto& counts) { return counts.streams == streams + 1; }));
    if (messages == 1) REQUIRE(reader.heard.WaitFor("read"));
    router->CutAll(testing::Router::Cut::kReset);
    const Ended ended = WaitEnd(client, reader);
    CHECK(ended.opened == (messages == 1));
    CHECK(ended.code == 14);
    CHECK(ended.attempts == 1);
    CHECK(ended.counted == std::array<std::uint64_t, 3>{0, 0, 1});
  }
}

TEST_CASE("S5: a dependency that is down opens the breaker by its failed openings, and a rejected stream says so") {
  Client client = MakeClient(Nowhere(), [](ClientSettings& settings) {
    settings.max_attempts = 1;
    settings.connection.reconnect_first = 5ms;
    settings.connection.reconnect_highest = 5ms;
  });
  // One failure for each failed connection attempt (C10), so it takes a few of them.
  for (int i = 0; i < 1000 && client.circuit_state() == CircuitState::kClosed; ++i) {
    Down(client, Count(1));
    std::this_thread::sleep_for(5ms);
  }
  CHECK(client.circuit_state() == CircuitState::kOpen);
  CHECK(client.circuit_totals().failures == 5);
  DownReader reader;
  client.Open(kDown, Count(1), {}, reader);
  CHECK(reader.Wait().reason == EndReason::kRejected);
  CHECK(reader.result.status.error_message().find("call rejected: circuit open for another") == 0);
  CHECK(reader.result.rejected_for > 0s);
  CHECK(reader.heard.all() == Strings{"done"});
}

// Half-open.

namespace {

// Opens the breaker of a client whose calls are answered by `server`.
void Trip(Client& client) {
  for (int i = 0; i < 5; ++i) {
    EchoRequest failing;
    failing.set_code(grpc::StatusCode::UNAVAILABLE);
    failing.set_message("failure " + std::to_string(i));
    (void)client.CallAndWait(PENSTOCK_METHOD(test::v1::Echo, Unary), failing, {.max_attempts = 1});
  }
  REQUIRE(client.circuit_state() == CircuitState::kOpen);
}

EndReason UnaryEnd(Client& client) {
  return client.CallAndWait(PENSTOCK_METHOD(test::v1::Echo, Unary), EchoRequest(), {.max_attempts = 1}).result.reason;
}

}  // namespace

TEST_CASE("S6: half-open, a stream proves itself by its headers: its slot is free while it goes on, and its end counts no more") {
  EchoServer server(test::EchoOptions{.headers_at_once = true});
  auto time = std::make_shared<testing::ManualTime>();
  Client client = MakeClient(server.address(), [&](ClientSettings& settings) { settings.time = time; });
  Trip(client);
  time->Advance(10s);
  DownReader reader;
  client.Open(kDown, Quiet(), {}, reader);
  REQUIRE(reader.heard.WaitFor("opened"));
  CHECK(client.circuit_state() == CircuitState::kHalfOpen);
  CHECK(client.circuit_counts().successes == 1);
  CHECK(UnaryEnd(client) == EndReason::kAnswered);
  reader.Cancel();
  reader.Wait();
  CHECK(client.circuit_counts().successes == 2);
  CHECK(UnaryEnd(client) == EndReason::kAnswered);
  CHECK(client.circuit_state() == CircuitState::kClosed);
}

TEST_CASE("S6: half-open, a stream that neither opens nor ends gives its slot up at probe_timeout") {
  EchoServer server;
  auto time = std::make_shared<testing::ManualTime>();
  Client client = MakeClient(server.address(), [&](ClientSettings& settings) { settings.time = time; });
  Trip(client);
  time->Advance(10s);
  DownReader reader;
  client.Open(kDown, Quiet(), {}, reader);
  REQUIRE(server.echo().WaitUntil([](const auto& counts) { return counts.open_streams == 1; }));
  CHECK(UnaryEnd(client) == EndReason::kRejected);
  time->Advance(10s - 1ns);
  CHECK(UnaryEnd(client) == EndReason::kRejected);
  time->Advance(1ns);
  CHECK(UnaryEnd(client) == EndReason::kAnswered);
  CHECK(client.circuit_counts().timed_out == 1);
  reader.Cancel();
  reader.Wait();
  CHECK(client.circuit_state() == CircuitState::kHalfOpen);
}

TEST_CASE("S6: half-open, a stream that lands on a server that shuts down gives its slot back and decides nothing") {
  EchoServer server;
  auto time = std::make_shared<testing::ManualTime>();
  Client client = MakeClient(server.address(), [&](ClientSettings& settings) { settings.time = time; });
  Trip(client);
  time->Advance(10s);
  CHECK(Down(client, EndWith(14)).reason == EndReason::kStopped);
  CHECK(client.circuit_state() == CircuitState::kHalfOpen);
  CHECK(client.circuit_counts() == Counts{});
  CHECK(UnaryEnd(client) == EndReason::kAnswered);
}

// Flow control and misuse.

TEST_CASE("S10: misuse is refused with a reason and changes nothing") {
  EchoServer server;
  Client client = MakeClient(server.address());
  BidiTalker talker;
  talker.on_read = [] {};
  talker.request.set_text("one");
  CHECK(talker.StartRead(&talker.message) == StreamStart::kStarted);
  CHECK(talker.StartRead(&talker.message) == StreamStart::kBusy);
  CHECK(talker.StartWrite(&talker.request) == StreamStart::kStarted);
  CHECK(talker.StartWrite(&talker.request) == StreamStart::kBusy);
  std::array<StreamStart, 3> in_done{};
  talker.on_done = [&] {
    in_done = {talker.StartRead(&talker.message), talker.StartWrite(&talker.request), talker.StartWritesDone()};
  };
  client.Open(kBidi, {}, talker);
  REQUIRE(talker.heard.WaitFor("read"));
  REQUIRE(talker.heard.WaitFor("write"));
  CHECK(talker.StartRead(&talker.message) == StreamStart::kStarted);
  CHECK(talker.StartRead(&talker.message) == StreamStart::kBusy);
  CHECK(talker.StartWritesDone() == StreamStart::kStarted);
  CHECK(talker.Wait().ok());
  CHECK(in_done == std::array{StreamStart::kEnded, StreamStart::kEnded, StreamStart::kEnded});
  CHECK(talker.StartRead(&talker.message) == StreamStart::kEnded);
  CHECK(talker.StartWrite(&talker.request) == StreamStart::kEnded);
  CHECK(talker.heard.Count("read:no") == 1);
}

TEST_CASE("S10: after the half-close a write is refused, before the stream is opened and while it opens") {
  EchoServer server;
  auto router = *testing::Router::Create({.targets = {server.port()}});
  router->HoldNew(true);
  Client client = MakeClient(router->address());
  BidiTalker talker;
  CHECK(talker.StartWriteLast(&talker.request) == StreamStart::kStarted);
  CHECK(talker.StartWrite(&talker.request) == StreamStart::kHalfClosed);
  CHECK(talker.StartWritesDone() == StreamStart::kHalfClosed);
  client.Open(kBidi, {}, talker);
  CHECK(talker.StartWrite(&talker.request) == StreamStart::kHalfClosed);
  CHECK(talker.StartWritesDone() == StreamStart::kHalfClosed);
  talker.Cancel();
  talker.Wait();
  CHECK(talker.heard.all() == Strings{"write:no", "done"});
}

TEST_CASE("S10: writes from many threads at once: one is taken at a time, the others are refused, none is lost") {
  EchoServer server;
  Client client = MakeClient(server.address());
  UpWriter writer;
  client.Open(kUp, {}, &writer.response, writer);
  std::atomic<int> taken{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int tries = 0; tries < 2000; ++tries) taken += writer.StartWrite(&writer.request) == StreamStart::kStarted;
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(writer.StartWritesDone() == StreamStart::kStarted);
  CHECK(writer.Wait().ok());
  CHECK(taken > 0);
  CHECK(writer.response.sequence() == taken);
  CHECK(writer.heard.Count("write") == static_cast<std::size_t>(taken.load()));
}

TEST_CASE("S10: what another thread starts while the stream is being opened is not lost") {
  EchoServer server;
  Client client = MakeClient(server.address());
  for (int round = 0; round < 300; ++round) {
    BidiTalker talker;
    std::atomic<bool> go{false};
    std::thread other([&] {
      while (!go) std::this_thread::yield();
      CHECK(talker.StartWrite(&talker.request) == StreamStart::kStarted);
      CHECK(talker.StartRead(&talker.message) == StreamStart::kStarted);
      CHECK(talker.StartWritesDone() == StreamStart::kStarted);
    });
    go = true;
    client.Open(kBidi, {}, talker);
    other.join();
    CHECK(talker.Wait().ok());
    REQUIRE(talker.heard.Count("write") == 1);
    REQUIRE(talker.heard.Count("read") == 1);
    REQUIRE(talker.heard.Count("half") == 1);
  }
}

TEST_CASE("S10: a user who does not read keeps one message here, reads it later, and hears of the end") {
  EchoServer server;
  Client client = MakeClient(server.address());
  DownReader reader;
  reader.on_read = [] {};
  client.Open(kDown, Count(3), {}, reader);
  REQUIRE(reader.heard.WaitFor("opened"));
  for (std::size_t i = 1; i <= 3; ++i) {
    CHECK(reader.StartRead(&reader.message) == StreamStart::kStarted);
    REQUIRE(reader.heard.WaitFor("read", i));
    CHECK(reader.message.sequence() == static_cast<int>(i) - 1);
  }
  CHECK(reader.Wait().ok());
}

TEST_CASE("L8: a stream whose user does not read a kept message ends when it is cancelled or its client is closed") {
  EchoServer server;
  for (const bool close : {false, true}) {
    Client client = MakeClient(server.address());
    DownReader reader;
    EchoRequest request = Count(-1);
    request.set_interval_ms(1);
    client.Open(kDown, request, {}, reader);
    REQUIRE(reader.heard.WaitFor("opened"));
    std::this_thread::sleep_for(20ms);
    if (close) {
      CHECK(client.CloseAndWait(std::chrono::steady_clock::now() + 30s));
    } else {
      reader.Cancel();
    }
    CHECK(reader.Wait().status.error_code() == grpc::StatusCode::CANCELLED);
  }
}

// The user's own code.

TEST_CASE("L9: a reactor may delete itself in OnDone, and open the next stream there") {
  EchoServer server;
  Client client = MakeClient(server.address());
  struct Chained final : ClientReadReactor<test::EchoResponse> {
    Chained(Client& with, std::atomic<int>& count) : client(with), ended(count) {}
    void OnReadDone(bool ok) override {
      if (ok) (void)StartRead(&message);
    }
    void OnDone(const CallResult& result) override {
      CHECK(result.ok());
      if (++ended < 20) Start(client, ended);
      delete this;
    }
    static void Start(Client& client, std::atomic<int>& ended) {
      auto* next = new Chained(client, ended);
      (void)next->StartRead(&next->message);
      client.Open(kDown, Count(2), {}, *next);
    }
    Client& client;
    std::atomic<int>& ended;
    test::EchoResponse message;
  };
  std::atomic<int> ended{0};
  Chained::Start(client, ended);
  const auto until = std::chrono::steady_clock::now() + 30s;
  while (ended < 20 && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(1ms);
  CHECK(ended == 20);
  CHECK(client.CloseAndWait(std::chrono::steady_clock::now() + 30s));
}

TEST_CASE("S10: a reactor that has been opened is not opened again, while its stream lives and after its end") {
  EchoServer server;
  Client client = MakeClient(server.address());
  DownReader down;
  CHECK(client.Open(kDown, Quiet(), {}, down));
  CHECK_FALSE(client.Open(kDown, Quiet(), {}, down));
  down.Cancel();
  down.Wait();
  CHECK_FALSE(client.Open(kDown, Quiet(), {}, down));
  CHECK(client.CloseAndWait(std::chrono::steady_clock::now() + 30s));
  CHECK(down.heard.Count("done") == 1);
  CHECK(server.echo().counts().streams <= 1);
}

TEST_CASE("S10: what a reaction throws ends the stream with CANCELLED, takes nothing else down, and is told") {
  EchoServer server;
  Client client = MakeClient(server.address());
  for (const std::string where : {"OnOpened", "OnReadDone", "OnWriteDone", "OnDone"}) {
    CAPTURE(where);
    BidiTalker talker;
    const auto fail = [] { throw std::runtime_error("on purpose"); };
    if (where == "OnOpened") talker.on_opened = fail;
    if (where == "OnReadDone") talker.on_read = fail;
    if (where == "OnWriteDone") talker.on_write = fail;
    if (where == "OnDone") talker.on_done = [&] {
      talker.heard.Add("done");
      fail();
    };
    CHECK(talker.StartRead(&talker.message) == StreamStart::kStarted);
    CHECK(talker.StartWrite(&talker.request) == StreamStart::kStarted);
    client.Open(kBidi, {}, talker);
    if (where == "OnDone") {
      REQUIRE(talker.heard.WaitFor("read"));
      CHECK(talker.StartWritesDone() == StreamStart::kStarted);
    }
    talker.Wait();
    if (where != "OnDone") {
      CHECK(talker.result.status.error_code() == grpc::StatusCode::CANCELLED);
      CHECK(talker.result.status.error_message() == where + " threw: on purpose");
    }
    CHECK(client.CloseAndWait(std::chrono::steady_clock::now() + 30s));
    client = MakeClient(server.address());
  }
}

TEST_CASE("S9: a reactor that blocks for 2 s in OnReadDone keeps no one else's deadline waiting") {
  EchoServer server;
  Client client = MakeClient(server.address());
  DownReader blocking;
  blocking.on_read = [] { std::this_thread::sleep_for(2s); };
  (void)blocking.StartRead(&blocking.message);
  client.Open(kDown, Count(1), {}, blocking);
  REQUIRE(blocking.heard.WaitFor("read"));
  const auto begun = std::chrono::steady_clock::now();
  DownReader other;
  (void)other.StartRead(&other.message);
  client.Open(kDown, Quiet(1), {.deadline = SteadyClock().Now() + 300ms}, other);
  CHECK(other.Wait().reason == EndReason::kExpired);
  const auto took = std::chrono::steady_clock::now() - begun;
  CHECK(took >= 300ms);
  CHECK(took < 1500ms);
  CHECK(blocking.Wait().ok());
}

// What a stream is made for, and what ends with it.

TEST_CASE("L10: a stream ends with the server call that it was made for, and is not opened for one that has ended") {
  EchoServer server;
  Client client = MakeClient(server.address());
  const auto scope = CallScope::Create(TimePoint::max(), {});
  DownReader reader;
  client.Open(kDown, Quiet(1), {.parent = scope}, reader);
  REQUIRE(reader.heard.WaitFor("opened"));
  scope->End(CallScope::Ending::kFinished);
  CHECK(reader.Wait().reason == EndReason::kCancelled);
  DownReader late;
  client.Open(kDown, Quiet(1), {.parent = scope}, late);
  CHECK(late.Wait().status.error_code() == grpc::StatusCode::CANCELLED);
  CHECK(late.result.attempts == 0);
  DownReader detached;
  client.Open(kDown, Count(1), {.parent = scope, .detached = true, .deadline = std::chrono::system_clock::now() + 30s}, detached);
  (void)detached.StartRead(&detached.message);
  CHECK(detached.Wait().ok());
}

TEST_CASE("L9: closing a client ends its streams, open and opening, once each; later ones end with CANCELLED") {
  EchoServer server;
  Client client = MakeClient(server.address());
  std::vector<std::unique_ptr<DownReader>> readers;
  for (int i = 0; i < 100; ++i) {
    readers.push_back(std::make_unique<DownReader>());
    (void)readers.back()->StartRead(&readers.back()->message);
    client.Open(kDown, Quiet(1), {}, *readers.back());
    if (i == 49) REQUIRE(server.echo().WaitUntil([](const auto& counts) { return counts.open_streams == 50; }));
  }
  CHECK(client.CloseAndWait(std::chrono::steady_clock::now() + 30s));
  DownReader late;
  client.Open(kDown, Count(1), {}, late);
  CHECK(late.Wait().status.error_code() == grpc::StatusCode::CANCELLED);
  for (const auto& reader : readers) {
    CHECK(reader->heard.Count("done") == 1);
    CHECK(reader->result.status.error_code() == grpc::StatusCode::CANCELLED);
  }
}

// Hostile servers.

namespace {

// Answers every method with bytes that are no message, and then stays silent.
class Garbage final : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    struct Reactor final : grpc::ServerGenericBidiReactor {
      Reactor() : slice("\xff\xff\xff\xff"), bytes(&slice, 1) { StartWrite(&bytes); }
      void OnCancel() override { Finish(grpc::Status::CANCELLED); }
      void OnDone() override { delete this; }
      grpc::Slice slice;
      grpc::ByteBuffer bytes;
    };
    return new Reactor;
  }
};

}  // namespace

TEST_CASE("S10: a message that cannot be parsed ends the stream with INTERNAL, though gRPC leaves it open") {
  Garbage service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.RegisterCallbackGenericService(&service);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  const auto server = builder.BuildAndStart();
  auto time = std::make_shared<testing::ManualTime>();
  Client client = MakeClient("127.0.0.1:" + std::to_string(port), [&](ClientSettings& settings) { settings.time = time; });
  DownReader reader;
  (void)reader.StartRead(&reader.message);
  client.Open(kDown, Count(1), {}, reader);
  REQUIRE(time->WaitForTimer(time->Now() + 5s));
  time->Advance(5s);
  CHECK(reader.Wait().status.error_code() == grpc::StatusCode::INTERNAL);
  CHECK(reader.result.status.error_message() == "a message of the server could not be parsed");
  CHECK(reader.heard.all().back() == "done");
  CHECK(reader.heard.Count("read:no") == 1);
  server->Shutdown(std::chrono::system_clock::now());
}

TEST_CASE("S4: a status that waits for a reaction is the server's, however long that takes, and no fault of its messages") {
  struct Slow final : DownReader {
    void OnReadDone(bool ok) override {
      if (!ok) time->Advance(6s);  // gRPC's OnDone waits for this reaction.
      DownReader::OnReadDone(ok);
    }
    std::shared_ptr<testing::ManualTime> time = std::make_shared<testing::ManualTime>();
  };
  EchoServer server;
  for (const grpc::StatusCode code : {grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::CANCELLED}) {
    Slow reader;
    Client client = MakeClient(server.address(), [&](ClientSettings& settings) { settings.time = reader.time; });
    EchoRequest request = Count(1);
    request.set_code(code);
    (void)reader.StartRead(&reader.message);
    client.Open(kDown, request, {}, reader);
    CHECK(reader.Wait().status.error_code() == code);
    CHECK(reader.result.reason == EndReason::kStopped);
    CHECK(reader.heard.all() == std::vector<std::string>{"opened", "read", "read:no", "done"});
  }
}

TEST_CASE("C7: answers over the client's receive limit are its own fault: five in a row leave the breaker closed") {
  EchoServer server;
  Client client = MakeClient(server.address(), [](ClientSettings& settings) { settings.max_receive_bytes = 1000; });
  EchoRequest request = Count(1);
  request.set_reply_bytes(2000);
  for (int i = 0; i < 5; ++i) CHECK(Down(client, request).code == grpc::StatusCode::RESOURCE_EXHAUSTED);
  CHECK(client.circuit_totals().failures == 0);
  CHECK(client.circuit_totals().ignored == 5);
}
