#include <doctest/doctest.h>

#include "support/server_fixture.h"

namespace penstock::test {
namespace {

TEST_CASE("V1: a server answers calls of all four kinds and counts them") {
  GuardedEcho echo;
  std::mutex mutex;
  std::vector<MethodKind> kinds;
  auto settings = LocalSettings();
  settings.filters.push_back([&](const ServerCall& call) {
    std::lock_guard lock(mutex);
    kinds.push_back(call.kind());
    return grpc::Status::OK;
  });
  auto server = MakeServer(settings, {&echo});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));

  EchoRequest request;
  EchoResponse response;
  request.set_text("hello");
  const grpc::Status unary = CallUnary(*stub, request, &response);
  REQUIRE_MESSAGE(unary.ok(), unary.error_message());
  CHECK(response.text() == "hello");
  CHECK(response.pod() == "pod");
  {
    grpc::ClientContext context;
    SetLimit(context);
    request.set_count(3);
    auto reader = stub->Down(&context, request);
    int read = 0;
    while (reader->Read(&response)) CHECK(response.sequence() == read++);
    CHECK(read == 3);
    CHECK(reader->Finish().ok());
  }
  {
    grpc::ClientContext context;
    SetLimit(context);
    auto writer = stub->Up(&context, &response);
    for (int i = 0; i < 5; ++i) CHECK(writer->Write(request));
    writer->WritesDone();
    CHECK(writer->Finish().ok());
    CHECK(response.sequence() == 5);
  }
  {
    grpc::ClientContext context;
    SetLimit(context);
    auto stream = stub->Bidi(&context);
    for (int i = 0; i < 3; ++i) {
      request.set_text(std::to_string(i));
      CHECK(stream->Write(request));
      CHECK(stream->Read(&response));
      CHECK(response.text() == std::to_string(i));
    }
    stream->WritesDone();
    CHECK(stream->Finish().ok());
  }
  CHECK(Eventually([&] { return server->counts().in_flight == 0; }));
  CHECK(server->counts().started == 4);
  CHECK(server->counts().ended[grpc::StatusCode::OK] == 4);
  CHECK(echo.streams.done == 3);
  CHECK(kinds == std::vector<MethodKind>{MethodKind::kUnary, MethodKind::kServerStream, MethodKind::kClientStream, MethodKind::kBidi});
}

// Ends twice.
class FinishesAndThrows final : public ServerBidiReactor<EchoRequest, EchoResponse> {
 public:
  FinishesAndThrows() {
    call()->AddTrailer("told", "once");
    Finish(grpc::Status::OK);
    throw grpc::Status(grpc::StatusCode::ABORTED, "after all");
  }
};

TEST_CASE("V6: a reactor that finishes in its constructor and then throws ends its call with the exception, its trailers sent once") {
  GuardedEcho echo;
  echo.on_bidi = [](auto* context) { return GuardedEcho::StartIn<FinishesAndThrows>(context); };
  auto server = MakeServer(LocalSettings(), {&echo});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  grpc::ClientContext context;
  SetLimit(context);
  CHECK(stub->Bidi(&context)->Finish().error_code() == grpc::StatusCode::ABORTED);
  CHECK(context.GetServerTrailingMetadata().count("told") == 1);
}

TEST_CASE("V1, V3: a server that nobody is connected to stops at once, with exit code 0") {
  GuardedEcho echo;
  auto server = MakeServer(LocalSettings(), {&echo});
  server->Shutdown();
  server->Shutdown();
  CHECK(server->Wait() == 0);
  CHECK(server->state() == ServerState::kStopped);
  CHECK(server->Wait() == 0);
}

TEST_CASE("V3: open streams are told of the shutdown and end with UNAVAILABLE, and the server stops") {
  GuardedEcho echo;
  auto server = MakeServer(LocalSettings(), {&echo});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  grpc::ClientContext down_context, bidi_context;
  SetLimit(down_context);
  SetLimit(bidi_context);
  EchoRequest request;
  request.set_count(-1);
  EchoResponse response;
  auto reader = stub->Down(&down_context, request);
  CHECK(reader->Read(&response));
  auto bidi = stub->Bidi(&bidi_context);
  CHECK(bidi->Write(request));
  CHECK(bidi->Read(&response));

  const auto began = std::chrono::steady_clock::now();
  server->Shutdown();
  CHECK_FALSE(reader->Read(&response));
  CHECK_FALSE(bidi->Read(&response));
  const grpc::Status down_status = reader->Finish(), bidi_status = bidi->Finish();
  CHECK(down_status.error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK(down_status.error_message() == "server is shutting down");
  CHECK(bidi_status.error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK(bidi_status.error_message() == "server is shutting down");
  CHECK(server->Wait() == 0);
  CHECK(std::chrono::steady_clock::now() - began < 4s);
  CHECK(echo.streams.shut_down == 2);
  CHECK(echo.streams.done == 2);
}

}  // namespace
}  // namespace penstock::test
