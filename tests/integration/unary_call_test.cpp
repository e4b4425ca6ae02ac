// Unary calls against a real server: the three forms, and what a call ends with.

#include <doctest/doctest.h>

#include "penstock/client/client.h"
#include "support/client_calls.h"
#include "support/echo_service.h"

namespace penstock::test {

namespace {

v1::EchoRequest Request(std::string text) {
  v1::EchoRequest request;
  request.set_text(std::move(text));
  return request;
}

}  // namespace

TEST_CASE("L15: a generated method is named, called by callback, and answers") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  Ending ending;
  client.Call(PENSTOCK_METHOD(v1::Echo, Unary), Request("hello"), {}, ending.Completion());
  const CallResult& result = ending.Wait();
  CHECK(result.ok());
  CHECK(result.reason == EndReason::kAnswered);
  CHECK(result.reached == Reached::kResponded);
  CHECK(result.attempts == 1);
  CHECK(ending.response().text() == "hello");
  CHECK(client.circuit_totals().successes == 1);
}

}  // namespace penstock::test
