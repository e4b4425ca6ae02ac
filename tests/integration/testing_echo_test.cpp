// The test kit's router and frame log under real gRPC traffic, and the Echo service that the other tests use.
#include <doctest/doctest.h>
#include <grpcpp/grpcpp.h>

#include <thread>
#include <vector>

#include "penstock/testing/frame_log.h"
#include "penstock/testing/router.h"
#include "support/echo_service.h"

using namespace std::chrono_literals;
using penstock::test::EchoRequest;
using penstock::test::EchoResponse;
using penstock::test::EchoServer;
using penstock::testing::FrameLog;
using penstock::testing::FrameType;
using penstock::testing::Router;

namespace {

std::unique_ptr<penstock::test::v1::Echo::Stub> MakeStub(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return penstock::test::v1::Echo::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
}

EchoRequest Request(const std::string& text) {
  EchoRequest request;
  request.set_text(text);
  return request;
}

}  // namespace

TEST_CASE("X2: the echo service does what a unary request asks for") {
  EchoServer server(penstock::test::EchoOptions{.pod = "a"});
  const auto stub = MakeStub(server.address());
  EchoResponse response;
  {
    grpc::ClientContext context;
    EchoRequest request = Request("hello");
    request.set_reply_bytes(100);
    CHECK(stub->Unary(&context, request, &response).ok());
    CHECK(response.text() == "hello");
    CHECK(response.pod() == "a");
    CHECK(response.payload().size() == 100);
    CHECK(response.remaining_ms() == -1);
  }
  {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + 30s);
    EchoRequest request = Request("late");
    request.set_delay_ms(20);
    const auto start = std::chrono::steady_clock::now();
    CHECK(stub->Repeatable(&context, request, &response).ok());
    CHECK(std::chrono::steady_clock::now() - start >= 20ms);
    CHECK(response.remaining_ms() > 0);
  }
  {
    grpc::ClientContext context;
    EchoRequest request = Request("no");
    request.set_code(grpc::StatusCode::RESOURCE_EXHAUSTED);
    request.set_message("too much");
    (*request.mutable_trailers())["grpc-retry-pushback-ms"] = "7";
    const grpc::Status status = stub->OnceOnly(&context, request, &response);
    CHECK(status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
    CHECK(status.error_message() == "too much");
    CHECK(context.GetServerTrailingMetadata().count("grpc-retry-pushback-ms") == 1);
  }
  for (const int delay : {-1, 60'000}) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + 50ms);
    EchoRequest request = Request("never");
    request.set_delay_ms(delay);
    CHECK(stub->Idempotent(&context, request, &response).error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  CHECK(server.echo().WaitUntil([](const auto& counts) { return counts.open_unary == 0; }));
  CHECK(server.echo().counts().unary == 5);
  CHECK(server.echo().counts().cancelled == 2);
  CHECK(server.echo().counts().calls.at("Repeatable") == 1);
}

TEST_CASE("X2: the echo service does what the requests of streams ask for") {
  EchoServer server;
  const auto stub = MakeStub(server.address());
  EchoResponse response;
  {
    grpc::ClientContext context;
    EchoRequest request = Request("down");
    request.set_count(3);
    request.set_interval_ms(1);
    request.set_delay_ms(1);
    request.set_code(grpc::StatusCode::ABORTED);
    const auto reader = stub->Down(&context, request);
    for (int i = 0; i < 3; ++i) {
      CHECK(reader->Read(&response));
      CHECK(response.sequence() == i);
    }
    CHECK_FALSE(reader->Read(&response));
    CHECK(reader->Finish().error_code() == grpc::StatusCode::ABORTED);
  }
  {
    grpc::ClientContext context;
    const auto writer = stub->Up(&context, &response);
    for (int i = 0; i < 5; ++i) CHECK(writer->Write(Request(std::to_string(i))));
    writer->WritesDone();
    CHECK(writer->Finish().ok());
    CHECK(response.sequence() == 5);
    CHECK(response.text() == "4");
  }
  {
    grpc::ClientContext context;
    context.AddMetadata("echo-send-first", "1");
    const auto both = stub->Bidi(&context);
    CHECK(both->Read(&response));
    CHECK(response.sequence() == 0);
    EchoRequest request = Request("two");
    request.set_count(2);
    CHECK(both->Write(request));
    CHECK(both->Read(&response));
    CHECK(both->Read(&response));
    CHECK(response.sequence() == 2);
    CHECK(both->WritesDone());
    CHECK_FALSE(both->Read(&response));
    CHECK(both->Finish().ok());
  }
  {
    grpc::ClientContext context;
    EchoRequest request = Request("endless");
    request.set_count(-1);
    request.set_interval_ms(1);
    const auto reader = stub->Down(&context, request);
    for (int i = 0; i < 10; ++i) CHECK(reader->Read(&response));
    CHECK(server.echo().EndStreams({grpc::StatusCode::UNAVAILABLE, "enough"}, true) == 1);
    while (reader->Read(&response)) {
    }
    CHECK(reader->Finish().error_message() == "enough");
  }
  {
    grpc::ClientContext context;
    CHECK(stub->Bidi(&context)->Finish().error_message() == "enough");
  }
  CHECK(server.echo().WaitUntil([](const auto& counts) { return counts.open_streams == 0; }));
  CHECK(server.echo().counts().streams == 5);
}

TEST_CASE("X2: the frame log tells a GOAWAY before the trailers from one after them") {
  for (const bool finish_first : {false, true}) {
    EchoServer server;
    const auto log = std::make_shared<FrameLog>();
    auto router = Router::Create({.targets = {server.port()}, .frame_log = log});
    REQUIRE(router.ok());
    {
      const auto stub = MakeStub((*router)->address());
      grpc::ClientContext context;
      EchoRequest request = Request("quiet");
      request.set_count(1);
      request.set_delay_ms(-1);
      const auto reader = stub->Down(&context, request);
      EchoResponse response;
      REQUIRE(reader->Read(&response));
      const grpc::Status end(grpc::StatusCode::UNAVAILABLE, "server is shutting down");
      if (finish_first) {
        server.echo().EndStreams(end);
        CHECK_FALSE(reader->Read(&response));
        server.Shutdown(5s);
      } else {
        std::thread shutdown([&] { server.Shutdown(30s); });
        while (log->Count(FrameType::kGoaway) == 0) std::this_thread::yield();
        server.echo().EndStreams(end);
        CHECK_FALSE(reader->Read(&response));
        shutdown.join();
      }
      CHECK(reader->Finish().error_message() == "server is shutting down");
    }
    REQUIRE(log->connections().size() == 1);
    const std::uint64_t id = log->connections().front();
    CAPTURE(log->Dump());
    CHECK(log->target(id) == server.port());
    CHECK_FALSE(log->broken(id));
    CHECK(log->GoawayBeforeTrailers(id) == !finish_first);
    CHECK(log->goaway_order().goaway_first == (finish_first ? 0 : 1));
    CHECK(log->goaway_order().trailers_first == (finish_first ? 1 : 0));
    const auto frames = log->frames(id);
    const auto request = std::find_if(frames.begin(), frames.end(), [](const auto& frame) {
      return !frame.from_server && frame.type == FrameType::kHeaders;
    });
    REQUIRE(request != frames.end());
    CHECK(request->header == "/penstock.test.v1.Echo/Down");
    CHECK(request->stream == 1);
    CHECK(log->Count(id, true, FrameType::kData) == 1);
  }
}

TEST_CASE("X2: calls go through a router that delays and switches, and none is lost when the old pod stays up") {
  EchoServer old_pod(penstock::test::EchoOptions{.pod = "old"});
  EchoServer new_pod(penstock::test::EchoOptions{.pod = "new"});
  auto router = Router::Create({.targets = {old_pod.port()}, .delay = 5ms});
  REQUIRE(router.ok());
  const auto call = [&](penstock::test::v1::Echo::Stub& stub) {
    grpc::ClientContext context;
    EchoResponse response;
    CHECK(stub.Unary(&context, Request("x"), &response).ok());
    return response.pod();
  };
  const auto first = MakeStub((*router)->address());
  CHECK(call(*first) == "old");
  (*router)->SetTargets({new_pod.port()});
  CHECK(call(*first) == "old");
  const auto second = MakeStub((*router)->address());
  CHECK(call(*second) == "new");
  CHECK((*router)->DropTarget(old_pod.port()) == 1);
  // The synchronous client reads no socket between calls, so that some calls may still run into the cut connection.
  EchoResponse response;
  const auto limit = std::chrono::steady_clock::now() + 30s;
  while (response.pod().empty() && std::chrono::steady_clock::now() < limit) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    (void)first->Unary(&context, Request("x"), &response);
  }
  CHECK(response.pod() == "new");
}
