// Calls that a handler of penstock's server makes for its own call: `.parent = context` is all they need.
#include <doctest/doctest.h>

#include "penstock/testing/raw_client.h"
#include "support/client_calls.h"
#include "support/server_fixture.h"

namespace penstock::test {
namespace {

constexpr auto kUnary = PENSTOCK_METHOD(v1::Echo, Unary);
constexpr auto kRepeatable = PENSTOCK_METHOD(v1::Echo, Repeatable);

// What a handler calls: keeps every call of Repeatable, and fails Unary with a long pushback.
class Leaf {
 public:
  Leaf() {
    echo_.on_repeatable = [this](auto* context, const auto&, auto*, Reply reply) {
      std::lock_guard lock(mutex_);
      deadline_ = ServerCall::Of(context)->deadline();
      kept_.push_back(std::move(reply));
    };
    echo_.on_unary = [](auto* context, const auto&, auto*) -> grpc::Status {
      ServerCall::Of(context)->AddTrailer("grpc-retry-pushback-ms", "60000");
      return {grpc::StatusCode::UNAVAILABLE, "later"};
    };
    server_ = MakeServer(LocalSettings(), {&echo_});
    client_ = MakeClient({.address = AddressOf(*server_), .backoff_max = 1h});
  }
  ~Leaf() {
    for (Reply& reply : kept_) reply.Finish(grpc::Status::OK);
  }

  Client& client() { return *client_; }
  bool called() const {
    std::lock_guard lock(mutex_);
    return !kept_.empty();
  }
  bool cancelled() const {
    std::lock_guard lock(mutex_);
    return kept_.back().cancelled();
  }
  TimePoint deadline() const {
    std::lock_guard lock(mutex_);
    return deadline_;
  }
  int unary_calls() const { return echo_.unary_calls; }

 private:
  GuardedEcho echo_;
  mutable std::mutex mutex_;
  std::vector<Reply> kept_;
  TimePoint deadline_{};
  std::unique_ptr<Server> server_;
  std::optional<Client> client_;
};

// A call from outside that its client gives up.
class Caller {
 public:
  explicit Caller(const Server& server) : stub_(v1::Echo::NewStub(ChannelTo(AddressOf(server)))) { SetLimit(context_); }
  ~Caller() { thread_.join(); }
  template <class Method>
  void Call(Method method) {
    thread_ = std::thread([this, method] {
      EchoResponse response;
      CHECK((stub_.get()->*method)(&context_, EchoRequest(), &response).error_code() == grpc::StatusCode::CANCELLED);
    });
  }
  void GiveUp() { context_.TryCancel(); }

 private:
  std::unique_ptr<v1::Echo::Stub> stub_;
  grpc::ClientContext context_;
  std::thread thread_;
};

class AskingReactor final : public ServerUnaryReactor {
 public:
  AskingReactor(Leaf& leaf, Ending& ending) {
    leaf.client().Call(kRepeatable, {}, {.parent = context()},
                       [this, done = ending.Completion()](const CallResult& result, EchoResponse& response) {
                         Finish(result.status);
                         done(result, response);
                       });
  }
};

TEST_CASE("L10, V5: a call made with .parent = context hears of its parent's cancellation, whatever form the handler has") {
  Leaf leaf;
  GuardedEcho echo;
  WorkPool pool({.threads = 1});
  Ending ending;
  echo.on_repeatable = [&](auto* context, const auto&, auto*, Reply reply) {
    leaf.client().Call(kRepeatable, {}, {.parent = context},
                       [done = ending.Completion(), kept = std::make_shared<Reply>(std::move(reply))](
                           const CallResult& result, EchoResponse& response) {
                         kept->Finish(result.status);
                         done(result, response);
                       });
  };
  bool on_pool = false;
  echo.on_idempotent = [&](auto* context, auto*, auto*) -> grpc::ServerUnaryReactor* {
    if (!on_pool) return GuardedEcho::StartIn<AskingReactor>(context, leaf, ending);
    return GuardedEcho::HandleOnIn(pool, context, [&, context] {
      auto called = leaf.client().CallAndWait(kRepeatable, {}, {.parent = context});
      ending.Completion()(called.result, called.response);
      return called.result.status;
    });
  };
  auto server = MakeServer(LocalSettings(), {&echo});
  Caller caller(*server);
  SUBCASE("a reply") { caller.Call(&v1::Echo::Stub::Repeatable); }
  SUBCASE("a reactor") { caller.Call(&v1::Echo::Stub::Idempotent); }
  SUBCASE("a handler on a pool, which blocks") {
    on_pool = true;
    caller.Call(&v1::Echo::Stub::Idempotent);
  }
  REQUIRE(Eventually([&] { return leaf.called(); }));
  const auto left = leaf.deadline() - SteadyClock().Now();
  CHECK(left > 0s);
  CHECK(left <= 10'200ms);  // the client's timeout, which grpc-timeout may round up by a hundredth; the parent has 30 s
  caller.GiveUp();
  CHECK(ending.Wait().status.error_code() == grpc::StatusCode::CANCELLED);
  CHECK(ending.Wait().reason == EndReason::kCancelled);
  CHECK(Eventually([&] { return leaf.cancelled(); }));
}

TEST_CASE("L10: between two attempts too, when no context of gRPC's tells of it any more") {
  Leaf leaf;
  GuardedEcho echo;
  Ending ending;
  echo.on_repeatable = [&](auto* context, const auto&, auto*, Reply reply) {
    leaf.client().Call(kUnary, {}, {.parent = context, .timeout = 1h},
                       [done = ending.Completion(), kept = std::make_shared<Reply>(std::move(reply))](
                           const CallResult& result, EchoResponse& response) { done(result, response); });
  };
  auto server = MakeServer(LocalSettings(), {&echo});
  grpc::ClientContext context;  // without a deadline, so that the wait of a minute is begun
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  std::thread caller([&] {
    EchoResponse response;
    CHECK(stub->Repeatable(&context, EchoRequest(), &response).error_code() == grpc::StatusCode::CANCELLED);
  });
  REQUIRE(Eventually([&] { return leaf.unary_calls() == 1 && leaf.client().circuit_totals().failures == 1; }));
  CHECK_FALSE(ending.ended());
  context.TryCancel();
  CHECK(ending.Wait().reason == EndReason::kCancelled);
  CHECK(ending.Wait().attempts == 1);
  caller.join();
}

TEST_CASE("L10: a call of a handler that has returned its status ends with it, and a detached one does not") {
  Leaf leaf;
  GuardedEcho echo;
  Ending child, detached;
  echo.on_unary = [&](auto* context, const auto&, auto*) {
    leaf.client().Call(kRepeatable, {}, {.parent = context}, child.Completion());
    leaf.client().Call(kRepeatable, {}, {.parent = context, .detached = true, .timeout = 1h}, detached.Completion());
    return grpc::Status::OK;
  };
  auto server = MakeServer(LocalSettings(), {&echo});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  EchoResponse response;
  CHECK(CallUnary(*stub, EchoRequest(), &response).ok());
  CHECK(child.Wait().reason == EndReason::kCancelled);
  CHECK(Eventually([&] { return leaf.called(); }));
  CHECK_FALSE(detached.ended());
}

TEST_CASE("V6: a handler that throws after it has handed its reply on ends its call only when the reply is let go of, with INTERNAL") {
  LogKeeper log;
  GuardedEcho echo;
  std::atomic<bool> returned{false};  // to the client
  std::atomic<bool> let_go{false};
  std::thread holder;
  bool finishes = false;
  echo.on_repeatable = [&](auto*, const auto&, auto* response, Reply reply) {
    holder = std::thread([&, response, reply = std::move(reply)]() mutable {
      CHECK(Eventually([&] { return log.Has("the handler threw"); }));
      // Long enough to be seen, were the call ended at the exception.
      Eventually([&] { return returned.load(); }, 200ms);
      response->set_text(std::string(100'000, 'x'));
      let_go = true;
      if (finishes) reply.Finish(grpc::Status::OK);
    });
    throw std::runtime_error("after all");
  };
  SUBCASE("finished") { finishes = true; }
  SUBCASE("dropped") {}
  auto server = MakeServer(LocalSettings(), {&echo});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  grpc::ClientContext context;
  SetLimit(context);
  EchoResponse response;
  const grpc::Status status = stub->Repeatable(&context, EchoRequest(), &response);
  CHECK(let_go);
  returned = true;
  CHECK(status.error_code() == grpc::StatusCode::INTERNAL);
  CHECK(status.error_message() == "the handler failed");
  CHECK(server->counts().exceptions == 1);
  holder.join();
}

TEST_CASE("V6, L10: the calls that a throwing handler has made for its call end at once, and so does a call whose reply they hold") {
  Leaf leaf;
  GuardedEcho echo;
  Ending ending;
  echo.on_repeatable = [&](auto* context, const auto&, auto*, Reply reply) {
    leaf.client().Call(kRepeatable, {}, {.parent = context},
                       [done = ending.Completion(), kept = std::make_shared<Reply>(std::move(reply))](
                           const CallResult& result, EchoResponse& response) {
                         kept->Finish(result.status);
                         done(result, response);
                       });
    throw grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "after all");
  };
  auto server = MakeServer(LocalSettings(), {&echo});
  auto stub = v1::Echo::NewStub(ChannelTo(AddressOf(*server)));
  grpc::ClientContext context;
  SetLimit(context);
  EchoResponse response;
  const auto began = std::chrono::steady_clock::now();
  const grpc::Status status = stub->Repeatable(&context, EchoRequest(), &response);
  CHECK(std::chrono::steady_clock::now() - began < 5s);  // the leaf answers never, and the child's timeout is 10 s
  CHECK(status.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
  CHECK(status.error_message() == "after all");
  CHECK(ending.Wait().status.error_code() == grpc::StatusCode::CANCELLED);
}

TEST_CASE("G3, L10: a grpc-timeout beyond the clock, or that is none, is no deadline, to the handler and to what it calls") {
  GuardedEcho leaf;
  std::atomic<std::int64_t> left_at_leaf{0};
  leaf.on_unary = [&](auto* context, const auto&, auto*) -> grpc::Status {
    left_at_leaf = (ServerCall::Of(context)->deadline() - SteadyClock().Now()) / 1ms;
    return grpc::Status::OK;
  };
  auto leaf_server = MakeServer(LocalSettings(), {&leaf});
  Client to_leaf = MakeClient({.address = AddressOf(*leaf_server)});
  GuardedEcho middle;
  std::atomic<bool> unbounded{false};
  middle.on_repeatable = [&](auto* context, const auto&, auto*, Reply reply) {
    unbounded = ServerCall::Of(context)->deadline() == TimePoint::max();
    to_leaf.Call(kUnary, {}, {.parent = context}, [kept = std::make_shared<Reply>(std::move(reply))](const CallResult& result, EchoResponse&) {
      kept->Finish(result.status);
    });
  };
  auto server = MakeServer(LocalSettings(), {&middle});
  struct Case {
    const char* timeout;
    bool unbounded;
    std::chrono::milliseconds most;  // At the leaf, with the client's own 10 s; grpc-timeout is rounded up.
  };
  for (const Case& tried : {Case{"2100000H", true, 10'200ms}, Case{"2562047H", true, 10'200ms}, Case{"99999999H", true, 10'200ms},
                            Case{"soon", true, 10'200ms}, Case{"5S", false, 5'200ms}}) {
    CAPTURE(tried.timeout);
    auto client = testing::RawClient::Connect(server->port());
    REQUIRE(client.ok());
    REQUIRE((*client)->StartHttp2());
    REQUIRE((*client)->Request(1, "/penstock.test.v1.Echo/Repeatable", {{"grpc-timeout", tried.timeout}}, EchoRequest().SerializeAsString()));
    const auto end = (*client)->ReadEnd(1);
    REQUIRE(end.has_value());
    CHECK(testing::FindHeader(end->headers, "grpc-status") == "0");
    CHECK(unbounded == tried.unbounded);
    CHECK(left_at_leaf > 0);
    CHECK(left_at_leaf <= tried.most.count());
  }
}

}  // namespace
}  // namespace penstock::test
