// Streams against plain grpc++ servers: each row of the table of ends (facts: stream callbacks), what it counts, and misuse.
#include <doctest/doctest.h>

#include <thread>

#include "penstock/client/client.h"
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
