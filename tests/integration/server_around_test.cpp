// What stands around a handler: what sees each call, and what may refuse it.
#include <doctest/doctest.h>
#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <future>

#include "grpc/health/v1/health.grpc.pb.h"
#include "penstock/server/auth.h"
#include "support/server_fixture.h"

namespace penstock::test {
namespace {

TEST_CASE("V6: a method that returns neither Handle nor Start is served, and named in the log once") {
  LogKeeper log;
  GuardedEcho echo;
  echo.on_idempotent = [](auto* context, auto*, auto*) {
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  };
  auto server = MakeServer(LocalSettings(), {&echo});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  for (int i = 0; i < 2; ++i) {
    grpc::ClientContext context;
    SetLimit(context);
    EchoResponse response;
    CHECK(stub->Idempotent(&context, EchoRequest(), &response).ok());
  }
  CHECK(Eventually([&] { return server->counts().in_flight == 0; }));
  const std::string text = log.text();
  const auto first = text.find("/penstock.test.v1.Echo/Idempotent is not implemented (or");
  CHECK(first != std::string::npos);
  CHECK(text.find("is not implemented", first + 60) == std::string::npos);
}

// A call of any method, in bytes: what no generated stub sends.
class AnyCall {
 public:
  AnyCall(const Server& server, const char* method) : stub_(ChannelTo(AddressOf(server))), method_(method) { SetLimit(context_); }

  grpc::Status Unary(const std::string& bytes) {
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer response;
    std::promise<grpc::Status> status;
    stub_.UnaryCall(&context_, method_, {}, &request, &response, [&](grpc::Status end) { status.set_value(std::move(end)); });
    return status.get_future().get();
  }
  // Sends the headers, and gives up after a while; no message follows.
  void Headers(std::chrono::milliseconds after) {
    class Reactor final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
     public:
      void OnDone(const grpc::Status& status) override { ended.set_value(status); }
      std::promise<grpc::Status> ended;
    } reactor;
    stub_.PrepareBidiStreamingCall(&context_, method_, {}, &reactor);
    reactor.StartCall();
    std::this_thread::sleep_for(after);
    context_.TryCancel();
    CHECK(reactor.ended.get_future().get().error_code() == grpc::StatusCode::CANCELLED);
  }
  grpc::ClientContext& context() { return context_; }

 private:
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub_;
  const char* method_;
  grpc::ClientContext context_;
};

TEST_CASE("V6: a call that ends before its request has come, or whose request cannot be parsed, names no method as unguarded") {
  LogKeeper log;
  GuardedEcho echo;
  auto server = MakeServer(LocalSettings(), {&echo});
  constexpr const char* kMethod = "/penstock.test.v1.Echo/Unary";
  // gRPC tells of a unary call when its message or its end has come: nothing says that the headers are there.
  for (auto after = 1ms; server->counts().ended[grpc::StatusCode::CANCELLED] == 0 && after < 10s; after *= 2) {
    AnyCall(*server, kMethod).Headers(after);
    Eventually([&] { return server->counts().ended[grpc::StatusCode::CANCELLED] == 1; }, 100ms);
  }
  CHECK(server->counts().ended[grpc::StatusCode::CANCELLED] == 1);
  CHECK(log.text() == "");
  CHECK(AnyCall(*server, kMethod).Unary("").ok());
  CHECK(AnyCall(*server, kMethod).Unary("\xff\xff").error_code() == grpc::StatusCode::UNIMPLEMENTED);  // gRPC's word for it
  CHECK(Eventually([&] { return server->counts().in_flight == 0; }));
  CHECK(server->counts().ended[grpc::StatusCode::UNIMPLEMENTED] == 1);
  CHECK(echo.unary_calls == 1);
  CHECK_FALSE(log.Has("is not implemented"));
}

// --- V7: the order around a handler ---------------------------------------------------------------------------------

class Recorder final : public ServerObserver {
 public:
  struct Seen {
    std::string method;
    ServerCallEnd end;
    std::string subject;
  };

  std::unique_ptr<ServerCallObservation> OnStarted(ServerCall& call) override {
    ++started;
    CHECK_FALSE(call.identity().authenticated());
    call.SetTraceParent("00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01");
    return std::make_unique<One>(*this);
  }

  void OnUnknownMethod(std::string_view method, const grpc::CallbackServerContext& context) noexcept override {
    std::lock_guard lock(mutex_);
    unknown_.emplace_back(method);
    CHECK(context.client_metadata().count("tenant") == 1);
  }

  std::vector<std::string> unknown() const {
    std::lock_guard lock(mutex_);
    return unknown_;
  }
  std::vector<Seen> seen() const {
    std::lock_guard lock(mutex_);
    return seen_;
  }
  std::atomic<int> started{0};

 private:
  struct One final : ServerCallObservation {
    explicit One(Recorder& owner) : owner_(owner) {}
    void OnEnded(const ServerCall& call, const ServerCallEnd& end) noexcept override {
      std::lock_guard lock(owner_.mutex_);
      owner_.seen_.push_back({std::string(call.method()), end, call.identity().subject});
    }
    Recorder& owner_;
  };

  mutable std::mutex mutex_;
  std::vector<Seen> seen_;
  std::vector<std::string> unknown_;
};

// Keeps a line for each entry of an access log: method, subject where there is one, code.
class AccessLines {
 public:
  std::function<void(const AccessLogEntry&)> Keeper() {
    return [this](const AccessLogEntry& entry) {
      CHECK(entry.peer.starts_with("ipv4:127.0.0.1:"));
      const std::string subject = entry.identity.subject.empty() ? "" : entry.identity.subject + " ";
      std::lock_guard lock(mutex_);
      lines_.push_back(std::string(entry.method) + " " + subject + std::to_string(entry.end.code));
    };
  }

  std::vector<std::string> lines() const {
    std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

TEST_CASE("V7: observers and the access log see refused calls and exceptions, unary and stream; the handler sees neither refusal") {
  LogKeeper log;
  GuardedEcho echo;
  std::string subject_in_handler;
  echo.on_unary = [&](auto* context, const auto& request, auto*) -> grpc::Status {
    subject_in_handler = ServerCall::Of(context)->identity().subject;
    CHECK(ServerCall::Of(context)->Scope()->relayed().front().second.find("00f067aa0ba902b7") != std::string::npos);
    if (request.text() == "throw") throw 1;
    return grpc::Status::OK;
  };
  auto recorder = std::make_shared<Recorder>();
  AccessLines access;
  auto settings = LocalSettings();
  settings.observers = {recorder};
  settings.access_log = access.Keeper();
  settings.authenticator = BearerTokens([](std::string_view token) -> std::optional<Identity> {
    if (token == "boom") throw std::runtime_error("no store");
    if (token != "right") return std::nullopt;
    return Identity{"", "alice", {}};
  });
  settings.filters.push_back([](ServerCall& call) {
    CHECK(call.identity().subject == "alice");
    return call.client_metadata().count("forbidden") != 0 ? grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "no") : grpc::Status::OK;
  });
  auto server = MakeServer(settings, {&echo});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  const auto unary = [&](const char* authorization, const char* text, bool forbidden = false) {
    grpc::ClientContext context;
    SetLimit(context);
    if (authorization != nullptr) context.AddMetadata("authorization", authorization);
    if (forbidden) context.AddMetadata("forbidden", "1");
    EchoRequest request;
    request.set_text(text);
    EchoResponse response;
    return stub->Unary(&context, request, &response).error_code();
  };
  const auto stream = [&](const char* authorization) {
    grpc::ClientContext context;
    SetLimit(context);
    context.AddMetadata("authorization", authorization);
    EchoRequest request;
    request.set_count(1);
    auto reader = stub->Down(&context, request);
    EchoResponse response;
    while (reader->Read(&response)) {
    }
    return reader->Finish().error_code();
  };
  CHECK(unary(nullptr, "") == grpc::StatusCode::UNAUTHENTICATED);
  CHECK(unary("Basic abc", "") == grpc::StatusCode::UNAUTHENTICATED);
  CHECK(unary("Bearer wrong", "") == grpc::StatusCode::UNAUTHENTICATED);
  CHECK(unary("Bearer boom", "") == grpc::StatusCode::INTERNAL);
  CHECK(unary("Bearer right", "", true) == grpc::StatusCode::PERMISSION_DENIED);
  CHECK(echo.unary_calls == 0);
  CHECK(unary("bearer right", "throw") == grpc::StatusCode::INTERNAL);
  CHECK(unary("Bearer right", "") == grpc::StatusCode::OK);
  CHECK(subject_in_handler == "alice");
  CHECK(stream("Bearer wrong") == grpc::StatusCode::UNAUTHENTICATED);
  CHECK(echo.streams.opened == 0);
  CHECK(stream("Bearer right") == grpc::StatusCode::OK);

  REQUIRE(Eventually([&] { return recorder->seen().size() == 9; }));
  CHECK(recorder->started == 9);
  const auto seen = recorder->seen();
  int unauthenticated = 0, filtered = 0, threw = 0, alice = 0;
  for (const auto& one : seen) {
    unauthenticated += one.end.refusal == Refusal::kUnauthenticated;
    filtered += one.end.refusal == Refusal::kFiltered;
    threw += one.end.threw;
    alice += one.subject == "alice";
    CHECK(one.end.duration > Duration::zero());
    CHECK_FALSE(one.end.unguarded);
  }
  CHECK(unauthenticated == 4);
  CHECK(filtered == 1);
  CHECK(threw == 2);
  CHECK(alice == 4);
  const std::vector<std::string> lines = access.lines();
  CHECK(lines.size() == 9);
  CHECK(std::count(lines.begin(), lines.end(), "/penstock.test.v1.Echo/Unary alice 0") == 1);
  CHECK(server->counts().unauthenticated == 4);
  CHECK(server->counts().filtered == 1);
  CHECK(server->counts().exceptions == 2);
}

TEST_CASE("V6, V7: a status that an authenticator or a filter throws refuses the call as one that it returns; OK is none to throw") {
  LogKeeper log;
  GuardedEcho echo;
  auto recorder = std::make_shared<Recorder>();
  auto settings = LocalSettings();
  settings.observers = {recorder};
  settings.authenticator = BearerTokens([](std::string_view token) -> std::optional<Identity> {
    if (token == "stale") throw grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "renew it");
    if (token == "fine") throw grpc::Status(grpc::Status::OK);
    return Identity{"", "alice", {}};
  });
  settings.filters.push_back([](ServerCall& call) -> grpc::Status {
    if (call.client_metadata().count("forbidden") != 0) throw grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "no");
    return grpc::Status::OK;
  });
  auto server = MakeServer(settings, {&echo});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  const auto unary = [&](const char* authorization, bool forbidden = false) {
    grpc::ClientContext context;
    SetLimit(context);
    context.AddMetadata("authorization", authorization);
    if (forbidden) context.AddMetadata("forbidden", "1");
    EchoResponse response;
    return stub->Unary(&context, EchoRequest(), &response);
  };
  CHECK(unary("Bearer stale").error_message() == "renew it");
  CHECK(unary("Bearer right", true).error_code() == grpc::StatusCode::PERMISSION_DENIED);
  CHECK(unary("Bearer fine").error_code() == grpc::StatusCode::INTERNAL);
  CHECK(echo.unary_calls == 0);
  CHECK(unary("Bearer right").ok());

  REQUIRE(Eventually([&] { return recorder->seen().size() == 4; }));
  std::map<Refusal, int> refusals;
  for (const auto& one : recorder->seen()) ++refusals[one.end.refusal];
  CHECK(refusals == std::map<Refusal, int>{{Refusal::kNone, 2}, {Refusal::kUnauthenticated, 1}, {Refusal::kFiltered, 1}});
  CHECK(server->counts().unauthenticated == 1);
  CHECK(server->counts().filtered == 1);
  CHECK(server->counts().exceptions == 1);
}

TEST_CASE("V7: the access log tells the peer of calls that were cancelled or ran into their deadline, and leaves health checks out") {
  GuardedEcho echo;
  Replies replies;
  echo.on_repeatable = [&](auto*, const auto&, auto*, Reply reply) { replies.Keep(std::move(reply)); };
  AccessLines access;
  auto recorder = std::make_shared<Recorder>();
  auto settings = LocalSettings();
  settings.observers = {recorder};
  settings.access_log = access.Keeper();
  auto server = MakeServer(settings, {&echo});
  auto channel = ChannelTo(AddressOf(*server));
  auto stub = v1::Echo::NewStub(channel);
  auto health = grpc::health::v1::Health::NewStub(channel);
  {
    grpc::ClientContext context;
    SetLimit(context);
    grpc::health::v1::HealthCheckResponse response;
    CHECK(health->Check(&context, {}, &response).ok());
  }
  REQUIRE(Eventually([&] { return recorder->seen().size() == 1; }));  // observers do see it

  // A deadline ends a call at the server by its own timer or by the client's reset, whichever is first there.
  const auto logged = [&](std::size_t lines, const std::string& line, const std::string& or_line) {
    REQUIRE(Eventually([&] { return access.lines().size() == lines; }));
    const std::string last = access.lines().back();
    CHECK((last == line || last == or_line));
  };
  // Dropped before the server has heard of the call's end, a reply would be INTERNAL.
  const auto drop_reply = [&] {
    REQUIRE(Eventually([&] { return replies.cancelled() == 1; }));
    replies.DropAll();
  };
  EchoResponse response;
  {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + 300ms);
    CHECK(stub->Repeatable(&context, EchoRequest(), &response).error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  drop_reply();
  logged(1, "/penstock.test.v1.Echo/Repeatable 4", "/penstock.test.v1.Echo/Repeatable 1");
  {
    grpc::ClientContext context;
    SetLimit(context);
    std::thread caller([&] { CHECK(stub->Repeatable(&context, EchoRequest(), &response).error_code() == grpc::StatusCode::CANCELLED); });
    CHECK(Eventually([&] { return replies.size() == 1; }));
    context.TryCancel();
    caller.join();
  }
  drop_reply();
  logged(2, "/penstock.test.v1.Echo/Repeatable 1", "");
  {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + 300ms);
    auto stream = stub->Down(&context, EchoRequest());
    CHECK_FALSE(stream->Read(&response));
    CHECK(stream->Finish().error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  logged(3, "/penstock.test.v1.Echo/Down 4", "/penstock.test.v1.Echo/Down 1");
  {
    grpc::ClientContext context;
    SetLimit(context);
    auto stream = stub->Bidi(&context);
    CHECK(stream->Write(EchoRequest()));
    CHECK(stream->Read(&response));
    context.TryCancel();
    CHECK(stream->Finish().error_code() == grpc::StatusCode::CANCELLED);
  }
  logged(4, "/penstock.test.v1.Echo/Bidi 1", "");
}

// One call of `Repeatable` on a thread of its own.
struct PendingUnary {
  PendingUnary(Server& server, std::chrono::system_clock::time_point deadline)
      : stub(v1::Echo::NewStub(ChannelTo(AddressOf(server)))) {
    context.set_deadline(deadline);
    thread = std::thread([this] {
      EchoResponse response;
      stub->Repeatable(&context, EchoRequest(), &response);
    });
  }
  ~PendingUnary() { thread.join(); }

  std::unique_ptr<v1::Echo::Stub> stub;
  grpc::ClientContext context;
  std::thread thread;
};

TEST_CASE("V7, O2: a call whose client gave up at its deadline ran into it, and one that was cancelled before did not") {
  GuardedEcho echo;
  Replies replies;
  echo.on_repeatable = [&](auto*, const auto&, auto*, Reply reply) { replies.Keep(std::move(reply)); };
  for (const bool observed : {false, true}) {
    CAPTURE(observed);
    auto settings = LocalSettings();
    if (observed) settings.observers = {std::make_shared<Recorder>()};
    auto server = MakeServer(settings, {&echo});
    const auto ended = [&](grpc::StatusCode code) {
      const ServerCounts counts = server->counts();
      const auto found = counts.ended.find(code);
      return found == counts.ended.end() ? std::uint64_t{0} : found->second;
    };
    {
      // gRPC rounds a timeout of more than a second up to 10 ms on the wire, so that the client's reset comes first.
      constexpr int kCalls = 8;
      auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
      std::vector<std::thread> callers;
      for (int i = 0; i < kCalls; ++i) {
        callers.emplace_back([&, i] {
          grpc::ClientContext context;
          context.set_deadline(std::chrono::system_clock::now() + 1003ms + i * 1ms);
          EchoResponse response;
          CHECK(stub->Repeatable(&context, EchoRequest(), &response).error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
        });
      }
      for (std::thread& caller : callers) caller.join();
      REQUIRE(Eventually([&] { return replies.cancelled() == kCalls; }));
      replies.DropAll();
      REQUIRE(Eventually([&] { return server->counts().in_flight == 0; }));
      CHECK(ended(grpc::StatusCode::DEADLINE_EXCEEDED) > kCalls / 2);  // on a busy machine not of each
    }
    {
      const auto deadline = std::chrono::system_clock::now() + 500ms;
      const std::uint64_t before = ended(grpc::StatusCode::CANCELLED);
      PendingUnary call(*server, deadline);
      CHECK(Eventually([&] { return replies.size() == 1; }));
      call.context.TryCancel();
      CHECK(Eventually([&] { return replies.cancelled() == 1; }));
      std::this_thread::sleep_until(deadline + 20ms);  // the handler ends when it likes
      replies.DropAll();
      REQUIRE(Eventually([&] { return server->counts().in_flight == 0; }));
      CHECK(ended(grpc::StatusCode::CANCELLED) == before + 1);
    }
  }
}

TEST_CASE("V7: a method that no service has is UNIMPLEMENTED, counted, and seen by observers and the access log") {
  GuardedEcho echo;
  auto recorder = std::make_shared<Recorder>();
  AccessLines access;
  auto settings = LocalSettings();
  settings.observers = {recorder};
  settings.access_log = access.Keeper();
  auto server = MakeServer(settings, {&echo});
  const std::vector<std::string> methods{"/penstock.test.v1.Echo/NoSuch", "/no.such.Service/Unary"};
  for (const std::string& method : methods) {
    AnyCall call(*server, method.c_str());
    call.context().AddMetadata("tenant", "7");
    CHECK(call.Unary("").error_code() == grpc::StatusCode::UNIMPLEMENTED);
  }
  CHECK(recorder->unknown() == methods);
  CHECK(recorder->started == 0);
  CHECK(access.lines() == std::vector<std::string>{methods[0] + " 12", methods[1] + " 12"});
  const ServerCounts counts = server->counts();
  CHECK(counts.unknown_methods == 2);
  CHECK(counts.started == 2);
  CHECK(counts.in_flight == 0);
  CHECK(counts.ended.at(grpc::StatusCode::UNIMPLEMENTED) == 2);
  server->Shutdown();
  CHECK(server->Wait() == 0);
}

TEST_CASE("V7: load shedding refuses the call over the cap with RESOURCE_EXHAUSTED and a pushback, and takes the next when there is room") {
  GuardedEcho echo;
  Replies replies;
  echo.on_repeatable = [&](auto*, const auto&, auto*, Reply reply) { replies.Keep(std::move(reply)); };
  auto settings = LocalSettings();
  settings.max_unary_calls = 2;
  settings.max_streams = 1;
  settings.pushback = 1234ms;
  auto server = MakeServer(settings, {&echo});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  std::vector<std::thread> callers;
  for (int i = 0; i < 2; ++i) {
    callers.emplace_back([&] {
      grpc::ClientContext context;
      SetLimit(context);
      EchoResponse response;
      CHECK(stub->Repeatable(&context, EchoRequest(), &response).ok());
    });
  }
  REQUIRE(Eventually([&] { return replies.size() == 2; }));
  {
    grpc::ClientContext context;
    SetLimit(context);
    EchoResponse response;
    CHECK(stub->Unary(&context, EchoRequest(), &response).error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
    const auto trailer = context.GetServerTrailingMetadata().find("grpc-retry-pushback-ms");
    REQUIRE(trailer != context.GetServerTrailingMetadata().end());
    CHECK(std::string(trailer->second.data(), trailer->second.size()) == "1234");
  }
  CHECK(echo.unary_calls == 0);
  CHECK(server->counts().overloaded == 1);
  replies.FinishAll(grpc::Status::OK);
  for (std::thread& caller : callers) caller.join();
  CHECK(Eventually([&] { return server->counts().in_flight == 0; }));
  EchoResponse response;
  CHECK(CallUnary(*stub, EchoRequest(), &response).ok());

  grpc::ClientContext first_context, second_context;
  SetLimit(first_context);
  SetLimit(second_context);
  auto first = stub->Bidi(&first_context);
  CHECK(first->Write(EchoRequest()));
  CHECK(first->Read(&response));
  auto second = stub->Bidi(&second_context);
  CHECK_FALSE(second->Read(&response));
  CHECK(second->Finish().error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  first->WritesDone();
  CHECK(first->Finish().ok());
}

}  // namespace
}  // namespace penstock::test
