#include <doctest/doctest.h>

#include "support/server_fixture.h"

namespace penstock::test {
namespace {

// --- V6: exceptions -------------------------------------------------------------------------------------------------

struct NullWhat : std::exception {
  const char* what() const noexcept override { return nullptr; }
};

enum class Thrown { kException, kInt, kNullWhat };
constexpr Thrown kAllThrown[] = {Thrown::kException, Thrown::kInt, Thrown::kNullWhat};

void Throw(Thrown thrown) {
  switch (thrown) {
    case Thrown::kException: throw std::runtime_error("the password is hunter2");
    case Thrown::kInt: throw 42;
    case Thrown::kNullWhat: throw NullWhat();
  }
}

void CheckInternal(const grpc::Status& status) {
  CHECK(status.error_code() == grpc::StatusCode::INTERNAL);
  CHECK(status.error_message().find("hunter2") == std::string::npos);
}

TEST_CASE("V6: an exception of any kind that leaves a handler ends its call with INTERNAL, is counted and logged, and harms nothing else") {
  for (const Thrown thrown : kAllThrown) {
    LogKeeper log;
    GuardedEcho echo;
    bool throwing = true;
    echo.on_unary = [&](auto*, const auto&, auto*) {
      if (throwing) Throw(thrown);
      return grpc::Status::OK;
    };
    echo.on_repeatable = [&](auto*, const auto&, auto*, Reply) { Throw(thrown); };
    auto server = MakeServer(LocalSettings(), {&echo});
    auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
    EchoResponse response;
    CheckInternal(CallUnary(*stub, EchoRequest(), &response));
    {
      grpc::ClientContext context;
      SetLimit(context);
      CheckInternal(stub->Repeatable(&context, EchoRequest(), &response));
    }
    CHECK(server->counts().exceptions == 2);
    CHECK(log.Has("/penstock.test.v1.Echo/Unary: the handler threw"));
    throwing = false;
    CHECK(CallUnary(*stub, EchoRequest(), &response).ok());
    server->Shutdown();
    CHECK(server->Wait() == 0);
  }
}

enum class Where { kConstructor, kRead, kWrite, kCancelled, kShutdown, kDone };

class ThrowingBidi final : public ServerBidiReactor<EchoRequest, EchoResponse> {
 public:
  ThrowingBidi(Where where, Thrown thrown, std::atomic<int>& done) : where_(where), thrown_(thrown), done_(done) {
    StartRead(&request_);
    StartWrite(&response_);
    MaybeThrow(Where::kConstructor);
  }
  ~ThrowingBidi() override { ++done_; }

 private:
  void MaybeThrow(Where here) {
    if (here == where_) Throw(thrown_);
  }
  void OnReadDone(bool) override { MaybeThrow(Where::kRead); }
  void OnWriteDone(bool) override { MaybeThrow(Where::kWrite); }
  void OnCancelled() override { MaybeThrow(Where::kCancelled); }
  void OnShutdown() override { MaybeThrow(Where::kShutdown); }
  void OnDone() override { MaybeThrow(Where::kDone); }

  Where where_;
  Thrown thrown_;
  std::atomic<int>& done_;
  EchoRequest request_;
  EchoResponse response_;
};

TEST_CASE("V6: an exception from a reactor's constructor or any of its methods ends that call and never hangs a shutdown") {
  for (const Where where : {Where::kConstructor, Where::kRead, Where::kWrite, Where::kCancelled, Where::kShutdown, Where::kDone}) {
    for (const Thrown thrown : kAllThrown) {
      CAPTURE(static_cast<int>(where));
      LogKeeper log;
      std::atomic<int> destroyed{0};
      GuardedEcho echo;
      echo.on_bidi = [&](auto* context) { return GuardedEcho::StartIn<ThrowingBidi>(context, where, thrown, destroyed); };
      auto server = MakeServer(LocalSettings(), {&echo});
      auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
      grpc::ClientContext context;
      SetLimit(context);
      auto stream = stub->Bidi(&context);
      EchoResponse response;
      if (where == Where::kRead) stream->Write(EchoRequest());
      if (where == Where::kCancelled) {
        CHECK(stream->Read(&response));
        context.TryCancel();
      }
      if (where == Where::kShutdown || where == Where::kDone) {
        CHECK(stream->Read(&response));
        server->Shutdown();
      }
      while (stream->Read(&response)) {
      }
      const grpc::Status status = stream->Finish();
      switch (where) {
        case Where::kCancelled: CHECK(status.error_code() == grpc::StatusCode::CANCELLED); break;
        case Where::kDone: CHECK(status.error_code() == grpc::StatusCode::UNAVAILABLE); break;
        case Where::kShutdown:
        case Where::kConstructor:
        case Where::kRead:
        case Where::kWrite: CheckInternal(status); break;
      }
      CHECK(Eventually([&] { return server->counts().exceptions == 1; }));
      if (where != Where::kConstructor) CHECK(Eventually([&] { return destroyed == 1; }));
      server->Shutdown();
      CHECK(server->Wait() == 0);
    }
  }
}

// The other three kinds of reactors: finished by their exception, or else with OK once they have come so far.
enum class Step { kConstructor, kHeaders, kRead, kWrite, kCancelled, kShutdown, kDone };

struct Throwing {
  Step step;
  Thrown thrown;
  void At(Step here) const {
    if (here == step) Throw(thrown);
  }
};

class ThrowingUnary final : public ServerUnaryReactor {
 public:
  explicit ThrowingUnary(const Throwing& throwing) : throwing_(throwing) {
    throwing_.At(Step::kConstructor);
    StartSendInitialMetadata();
  }

 private:
  void OnSendInitialMetadataDone(bool) override {
    throwing_.At(Step::kHeaders);
    if (throwing_.step == Step::kDone) Finish(grpc::Status::OK);
  }
  void OnCancelled() override { throwing_.At(Step::kCancelled); }
  void OnShutdown() override { throwing_.At(Step::kShutdown); }
  void OnDone() override { throwing_.At(Step::kDone); }
  const Throwing throwing_;
};

class ThrowingDown final : public ServerWriteReactor<EchoResponse> {
 public:
  explicit ThrowingDown(const Throwing& throwing) : throwing_(throwing) {
    throwing_.At(Step::kConstructor);
    StartWrite(&response_);
  }

 private:
  void OnWriteDone(bool) override { throwing_.At(Step::kWrite); }
  void OnCancelled() override { throwing_.At(Step::kCancelled); }
  void OnShutdown() override { throwing_.At(Step::kShutdown); }
  void OnDone() override { throwing_.At(Step::kDone); }
  const Throwing throwing_;
  EchoResponse response_;
};

class ThrowingUp final : public ServerReadReactor<EchoRequest> {
 public:
  explicit ThrowingUp(const Throwing& throwing) : throwing_(throwing) {
    throwing_.At(Step::kConstructor);
    StartRead(&request_);
  }

 private:
  void OnReadDone(bool) override { throwing_.At(Step::kRead); }
  void OnCancelled() override { throwing_.At(Step::kCancelled); }
  void OnShutdown() override { throwing_.At(Step::kShutdown); }
  void OnDone() override { throwing_.At(Step::kDone); }
  const Throwing throwing_;
  EchoRequest request_;
};

// How a call ends whose reactor throws there; `kind` is 'u', 'd' or 'r'.
void ThrowIn(char kind, Step step, Thrown thrown) {
  CAPTURE(kind);
  CAPTURE(static_cast<int>(step));
  LogKeeper log;
  GuardedEcho echo;
  const Throwing throwing{step, thrown};
  echo.on_idempotent = [&](auto* context, auto*, auto*) { return GuardedEcho::StartIn<ThrowingUnary>(context, throwing); };
  echo.on_down = [&](auto* context, auto*) { return GuardedEcho::StartIn<ThrowingDown>(context, throwing); };
  echo.on_up = [&](auto* context, auto*) { return GuardedEcho::StartIn<ThrowingUp>(context, throwing); };
  auto server = MakeServer(LocalSettings(), {&echo});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  grpc::ClientContext context;
  SetLimit(context);
  // Brings the call to where it throws, once its reactor is there.
  std::thread outside([&] {
    if (step != Step::kCancelled && step != Step::kShutdown && (step != Step::kDone || kind == 'u')) return;
    CHECK(Eventually([&] { return server->counts().started == 1; }));
    std::this_thread::sleep_for(20ms);
    step == Step::kCancelled ? context.TryCancel() : server->Shutdown();
  });
  EchoResponse response;
  grpc::Status status;
  const auto began = std::chrono::steady_clock::now();
  if (kind == 'u') status = stub->Idempotent(&context, EchoRequest(), &response);
  if (kind == 'd') {
    auto reader = stub->Down(&context, EchoRequest());
    while (reader->Read(&response)) {
    }
    status = reader->Finish();
  }
  if (kind == 'r') {
    auto writer = stub->Up(&context, &response);
    if (step == Step::kRead) writer->Write(EchoRequest());
    status = writer->Finish();
  }
  const auto took = std::chrono::steady_clock::now() - began;
  outside.join();
  switch (step) {
    case Step::kCancelled: CHECK(status.error_code() == grpc::StatusCode::CANCELLED); break;
    case Step::kDone: CHECK(status.error_code() == (kind == 'u' ? grpc::StatusCode::OK : grpc::StatusCode::UNAVAILABLE)); break;
    case Step::kShutdown: CheckInternal(status); break;
    case Step::kConstructor:
    case Step::kHeaders:
    case Step::kRead:
    case Step::kWrite:
      CheckInternal(status);
      CHECK(took < Bound(100ms));
      break;
  }
  CHECK(Eventually([&] { return server->counts().exceptions == 1 && server->counts().in_flight == 0; }));
  server->Shutdown();
  CHECK(server->Wait() == 0);
}

TEST_CASE("V6: so of the other kinds of reactors, within 100 ms") {
  for (const Thrown thrown : kAllThrown) {
    for (const Step step : {Step::kConstructor, Step::kHeaders, Step::kCancelled, Step::kShutdown, Step::kDone}) ThrowIn('u', step, thrown);
    for (const Step step : {Step::kConstructor, Step::kWrite, Step::kCancelled, Step::kShutdown, Step::kDone}) ThrowIn('d', step, thrown);
    for (const Step step : {Step::kConstructor, Step::kRead, Step::kCancelled, Step::kShutdown, Step::kDone}) ThrowIn('r', step, thrown);
  }
}

TEST_CASE("V6: a grpc::Status thrown or returned passes as it is, with its details; text goes to clients only when asked for") {
  GuardedEcho echo;
  const grpc::Status detailed(grpc::StatusCode::FAILED_PRECONDITION, "not now", std::string("\x08\x09 details \0 of any kind", 24));
  bool thrown = false;
  echo.on_unary = [&](auto*, const auto& request, auto*) -> grpc::Status {
    if (request.text() == "exception") throw std::runtime_error("the reason");
    if (thrown) throw detailed;
    return detailed;
  };
  auto settings = LocalSettings();
  settings.exception_text_to_clients = true;
  auto server = MakeServer(settings, {&echo});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  EchoResponse response;
  for (const bool by_throwing : {false, true}) {
    thrown = by_throwing;
    const grpc::Status status = CallUnary(*stub, EchoRequest(), &response);
    CHECK(status.error_code() == detailed.error_code());
    CHECK(status.error_message() == detailed.error_message());
    CHECK(status.error_details() == detailed.error_details());
  }
  CHECK(server->counts().exceptions == 0);
  EchoRequest request;
  request.set_text("exception");
  LogKeeper log;
  CHECK(CallUnary(*stub, request, &response).error_message() == "the handler failed: the reason");
}

TEST_CASE("V6: a reply that nobody gives ends the call with INTERNAL, and a second one counts nothing") {
  GuardedEcho echo;
  echo.on_repeatable = [&](auto*, const auto& request, auto*, Reply reply) {
    if (request.text() == "drop") return;
    Reply moved = std::move(reply);
    reply.Finish({grpc::StatusCode::ABORTED, "moved from"});
    moved.Finish(grpc::Status::OK);
    moved.Finish({grpc::StatusCode::ABORTED, "too late"});
  };
  auto server = MakeServer(LocalSettings(), {&echo});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  const auto call = [&](const char* text) {
    grpc::ClientContext context;
    SetLimit(context);
    EchoRequest request;
    request.set_text(text);
    EchoResponse response;
    return stub->Repeatable(&context, request, &response);
  };
  CHECK(call("drop").error_message() == "the handler gave no answer");
  CHECK(call("give").ok());
}

// --- V5: the reactors' own rules ------------------------------------------------------------------------------------

class Misuser final : public ServerBidiReactor<EchoRequest, EchoResponse> {
 public:
  explicit Misuser(std::vector<bool>& answers, std::atomic<int>& done) : answers_(answers), done_(done) {
    answers_.push_back(StartWrite(&response_, grpc::WriteOptions().set_buffer_hint()));  // first: the hint would hang it
    answers_.push_back(StartWrite(&response_));                                          // a write is under way
    answers_.push_back(StartWriteAndFinish(&response_, {}, grpc::Status::OK));           // still
    answers_.push_back(StartRead(&request_));
    answers_.push_back(StartRead(&request_));  // a read is under way
  }

 private:
  void OnWriteDone(bool) override {
    answers_.push_back(Finish(grpc::Status::OK));
    answers_.push_back(Finish(grpc::Status::OK));
    answers_.push_back(StartWrite(&response_));
    answers_.push_back(StartRead(&request_));
    answers_.push_back(StartWriteAndFinish(&response_, {}, grpc::Status::OK));
    answers_.push_back(static_cast<bool>(Hold()));
  }
  void OnDone() override { ++done_; }

  std::vector<bool>& answers_;
  std::atomic<int>& done_;
  EchoRequest request_;
  EchoResponse response_;
};

TEST_CASE("S10, V5: a start too early or after the finish is refused, and never aborts; a hint on the first write hangs nothing") {
  GuardedEcho echo;
  std::vector<bool> answers;
  std::atomic<int> done{0};
  echo.on_bidi = [&](auto* context) { return GuardedEcho::StartIn<Misuser>(context, answers, done); };
  auto server = MakeServer(LocalSettings(), {&echo});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  grpc::ClientContext context;
  SetLimit(context);
  auto stream = stub->Bidi(&context);
  EchoResponse response;
  CHECK(stream->Read(&response));
  CHECK_FALSE(stream->Read(&response));
  CHECK(stream->Finish().ok());
  REQUIRE(Eventually([&] { return done == 1; }));
  CHECK(answers == std::vector<bool>{true, false, false, true, false, true, false, false, false, false, false});
}

// Works on another thread, under a hold.
class Holder final : public ServerWriteReactor<EchoResponse> {
 public:
  Holder(std::atomic<int>& cancelled, std::atomic<bool>& let_go, std::atomic<int>& done) : cancelled_(cancelled), done_(done) {
    thread_ = std::thread([this, &let_go, hold = Hold()] {
      CHECK(static_cast<bool>(hold));
      Eventually([&] { return let_go.load(); });
      CHECK(done_ == 0);  // the client is gone, and the reactor is still here
    });
  }
  ~Holder() override { thread_.join(); }

 private:
  void OnCancelled() override { ++cancelled_; }
  void OnDone() override { ++done_; }

  std::atomic<int>& cancelled_;
  std::atomic<int>& done_;
  std::thread thread_;
};

TEST_CASE("V5: a hold keeps the reactor while another thread works for it, past the client's cancellation") {
  GuardedEcho echo;
  std::atomic<int> cancelled{0}, done{0};
  std::atomic<bool> let_go{false};
  echo.on_down = [&](auto* context, auto*) { return GuardedEcho::StartIn<Holder>(context, cancelled, let_go, done); };
  auto server = MakeServer(LocalSettings(), {&echo});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  grpc::ClientContext context;
  SetLimit(context);
  auto reader = stub->Down(&context, EchoRequest());
  reader->WaitForInitialMetadata();
  context.TryCancel();
  CHECK(Eventually([&] { return cancelled == 1; }));
  CHECK(done == 0);
  let_go = true;
  CHECK(Eventually([&] { return done == 1; }));
  CHECK(reader->Finish().error_code() == grpc::StatusCode::CANCELLED);
}

TEST_CASE("S6, V5: a quiet stream's headers come at once, and its reactor hears when the client goes") {
  GuardedEcho echo;
  auto server = MakeServer(LocalSettings(), {&echo});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  grpc::ClientContext context;
  SetLimit(context);
  auto reader = stub->Down(&context, EchoRequest());  // count 0: nothing is ever sent
  reader->WaitForInitialMetadata();                   // would end with the deadline, 30 s from now
  CHECK(echo.streams.opened == 1);
  context.TryCancel();
  CHECK(Eventually([&] { return echo.streams.done == 1; }));
  CHECK(echo.streams.cancelled == 1);
  CHECK(reader->Finish().error_code() == grpc::StatusCode::CANCELLED);
  CHECK(Eventually([&] { return server->counts().ended[grpc::StatusCode::CANCELLED] == 1; }));
}

TEST_CASE("L10, V5: a call's scope has its deadline and trace, and ends as the client cancels or the handler finishes") {
  GuardedEcho echo;
  std::shared_ptr<CallScope> scope;
  std::unique_ptr<Reply> kept;
  std::atomic<bool> arrived{false};
  echo.on_repeatable = [&](auto* context, const auto&, auto*, Reply reply) {
    scope = ServerCall::Of(context)->Scope();
    kept = std::make_unique<Reply>(std::move(reply));
    arrived = true;
  };
  auto server = MakeServer(LocalSettings(), {&echo});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  for (const bool cancel : {false, true}) {
    arrived = false;
    grpc::ClientContext context;
    SetLimit(context);
    context.AddMetadata("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    context.AddMetadata("baggage", "tenant=7");
    std::thread caller([&] {
      EchoResponse response;
      stub->Repeatable(&context, EchoRequest(), &response);
    });
    REQUIRE(Eventually([&] { return arrived.load(); }));
    const auto left = scope->deadline() - SteadyClock().Now();
    CHECK(left > 20s);
    CHECK(left <= 31s);
    CHECK(scope->relayed().size() == 2);
    CHECK_FALSE(scope->ended());
    if (cancel) {
      context.TryCancel();
      CHECK(Eventually([&] { return scope->ended(); }));
      CHECK(kept->cancelled());
    }
    kept->Finish(grpc::Status::OK);
    CHECK(scope->ended());
    caller.join();
  }
}

TEST_CASE("G1, G2: trailers that gRPC cannot send are refused, and a long message is cut instead of costing the connection") {
  GuardedEcho echo;
  std::vector<bool> added;
  echo.on_unary = [&](auto* context, const auto&, auto*) -> grpc::Status {
    ServerCall* call = ServerCall::Of(context);
    added = {call->AddTrailer("fine", "value"), call->AddTrailer("Foo", "value"), call->AddTrailer("line", "a\nb"),
             call->AddTrailer("raw-bin", std::string("\0\xff", 2))};
    return {grpc::StatusCode::ABORTED, std::string(9000, 'x') + std::string(3000, '\n')};
  };
  auto server = MakeServer(LocalSettings(), {&echo});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  grpc::ClientContext context;
  SetLimit(context);
  EchoResponse response;
  const grpc::Status status = stub->Unary(&context, EchoRequest(), &response);
  CHECK(status.error_code() == grpc::StatusCode::ABORTED);
  CHECK(status.error_message().size() <= 1024);
  CHECK(added == std::vector<bool>{true, false, false, true});
  CHECK(context.GetServerTrailingMetadata().count("fine") == 1);
}

TEST_CASE("G2: trailers and status details that together would cost the client its connection are left out") {
  GuardedEcho echo;
  std::vector<bool> added;
  std::shared_ptr<Reply> finished;
  echo.on_unary = [&](auto* context, const EchoRequest& request, auto*) -> grpc::Status {
    ServerCall* call = ServerCall::Of(context);
    added = {call->AddTrailer("grpc-retry-pushback-ms", "1"), call->AddTrailer("grpc-status", "1"),
             call->AddTrailer("long", std::string(3000, 'x')), call->AddTrailer("longer", std::string(4000, 'x'))};
    return {grpc::StatusCode::ABORTED, std::string(9000, 'x'), std::string(static_cast<std::size_t>(request.reply_bytes()), 'd')};
  };
  auto server = MakeServer(LocalSettings(), {&echo});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  for (int details : {1000, 7000}) {
    grpc::ClientContext context;
    SetLimit(context);
    EchoRequest request;
    request.set_reply_bytes(details);
    EchoResponse response;
    const grpc::Status status = stub->Unary(&context, request, &response);
    CHECK(status.error_code() == grpc::StatusCode::ABORTED);
    CHECK(status.error_details().size() == (details == 1000 ? 1000 : 0));
    CHECK(added == std::vector<bool>{true, false, true, false});
    CHECK(context.GetServerTrailingMetadata().count("grpc-retry-pushback-ms") == 1);
    CHECK(context.GetServerTrailingMetadata().count("long") == 1);
  }
}

class Pooled final : public Service<v1::Echo> {
 public:
  Pooled() { PoolMessages(&Pooled::SetMessageAllocatorFor_Unary); }
  grpc::ServerUnaryReactor* Unary(grpc::CallbackServerContext* context, const EchoRequest* request, EchoResponse* response) override {
    return Handle(context, [&] {
      CHECK(response->text().empty());
      CHECK(response->payload().empty());
      response->set_text(request->text());
      response->set_payload(std::string(static_cast<std::size_t>(request->reply_bytes()), 'x'));
      return grpc::Status::OK;
    });
  }
};

TEST_CASE("V5: messages from a pool come empty, whatever was in them, and big ones are let go") {
  Pooled service;
  auto server = MakeServer(LocalSettings(), {&service});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  for (const int bytes : {10, 100'000, 0, 5}) {
    EchoRequest request;
    EchoResponse response;
    request.set_reply_bytes(bytes);
    request.set_text(std::string(static_cast<std::size_t>(bytes), 'y'));
    CHECK(CallUnary(*stub, request, &response).ok());
    CHECK(response.text() == request.text());
    CHECK(response.payload().size() == static_cast<std::size_t>(bytes));
  }
}

}  // namespace
}  // namespace penstock::test
