// Faults that a client makes up, against a real server: what retries, breaker, deadline and cancel make of them.

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "penstock/client/client.h"
#include "penstock/faults.h"
#include "penstock/testing/manual_time.h"
#include "support/cancelled_delays.h"
#include "support/client_calls.h"
#include "support/echo_service.h"
#include "support/stream_reactors.h"

namespace penstock::test {

namespace {

v1::EchoRequest Request() { return {}; }

std::shared_ptr<CallScope> With(const std::string& baggage) {
  return CallScope::Create(TimePoint::max(), {{"baggage", baggage}});
}

std::shared_ptr<CallScope> Scenario(const std::string& settings, const std::string& method = "Unary") {
  return With("penstock.fault=grpc:penstock.test.v1.Echo/" + method + "?" + settings);
}

WaitedCall<v1::EchoResponse> Call(Client& client, std::shared_ptr<CallScope> scope) {
  return client.CallAndWait(PENSTOCK_METHOD(v1::Echo, Unary), Request(), {.parent = std::move(scope)});
}

// A plain callback server in the middle, whose Unary makes a call for its own.
class PlainMiddle final : public v1::Echo::CallbackService {
 public:
  using Handler = std::function<void(grpc::CallbackServerContext*, grpc::ServerUnaryReactor*)>;

  explicit PlainMiddle(Handler handler) : handler_(std::move(handler)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~PlainMiddle() override { Shutdown(); }

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  void Shutdown() { server_->Shutdown(); }

  grpc::ServerUnaryReactor* Unary(grpc::CallbackServerContext* context, const v1::EchoRequest*, v1::EchoResponse*) override {
    auto* const reactor = context->DefaultReactor();
    handler_(context, reactor);
    return reactor;
  }

 private:
  const Handler handler_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

ClientSettings Settings(const EchoServer& server, std::shared_ptr<FaultInjector> faults) {
  return {.address = server.address(), .backoff_base = 1ms, .backoff_max = 2ms, .faults = std::move(faults)};
}

}  // namespace

TEST_CASE("F2: an injected abort is retried as a server's would be, and reaches no server") {
  auto faults = std::make_shared<FaultInjector>();
  EchoServer server;
  Client client = MakeClient(Settings(server, faults));
  const auto result = Call(client, Scenario("abort&count=2")).result;
  CHECK(result.ok());
  CHECK(result.attempts == 3);
  CHECK(faults->counts().aborts == 2);
  CHECK(server.echo().counts().unary == 1);
  CHECK(client.circuit_totals().failures == 2);
  CHECK(client.circuit_totals().successes == 1);
  CHECK(client.budget_tokens() < 100);
}

TEST_CASE("F2: the status of an aborted call is the scenario's, and says what made it") {
  EchoServer server;
  Client client = MakeClient(Settings(server, std::make_shared<FaultInjector>()));
  const auto waited = Call(client, Scenario("abort=NOT_FOUND"));
  CHECK(waited.result.status.error_code() == grpc::StatusCode::NOT_FOUND);
  CHECK(waited.result.status.error_message() == "injected by penstock.fault at grpc:penstock.test.v1.Echo/Unary");
  CHECK(waited.result.attempts == 1);
  CHECK(waited.result.reached == Reached::kNotSent);
  CHECK(IsInjected(waited.result.status));
}

TEST_CASE("F2: injected aborts open the breaker, each one counted") {
  EchoServer server;
  ClientSettings settings = Settings(server, std::make_shared<FaultInjector>());
  settings.max_attempts = 1;
  Client client = MakeClient(std::move(settings));
  for (int i = 0; i < 5; ++i) {
    CHECK(client.circuit_state() == CircuitState::kClosed);
    Call(client, Scenario("abort"));
  }
  CHECK(client.circuit_state() == CircuitState::kOpen);
  CHECK(Call(client, nullptr).result.reason == EndReason::kRejected);
}

TEST_CASE("F2: a Classify can spare the breaker") {
  EchoServer server;
  ClientSettings settings = Settings(server, std::make_shared<FaultInjector>());
  settings.classify = [](std::string_view method, const grpc::Status& status, const penstock::ServerMetadata& trailers) {
    penstock::Classification classified = penstock::DefaultClassify(method, status, trailers);
    if (penstock::IsInjected(status)) classified.outcome = penstock::Outcome::kIgnored;
    return classified;
  };
  Client client = MakeClient(std::move(settings));
  for (int i = 0; i < 5; ++i) CHECK(Call(client, Scenario("abort")).result.attempts == 3);
  CHECK(client.circuit_state() == CircuitState::kClosed);
  CHECK(client.circuit_totals().ignored == 15);
}

TEST_CASE("F2: an injected delay is waited before the attempt, and the answer comes after it") {
  auto time = std::make_shared<testing::ManualTime>();
  EchoServer server;
  ClientSettings settings = Settings(server, std::make_shared<FaultInjector>());
  settings.time = time;
  Client client = MakeClient(std::move(settings));
  Ending ending;
  client.Call(PENSTOCK_METHOD(v1::Echo, Unary), Request(), {.parent = Scenario("delay=3s")}, ending.Completion());
  REQUIRE(time->WaitForTimers(2));
  time->Advance(3s - 1ns);
  CHECK_FALSE(ending.ended());
  CHECK(server.echo().counts().unary == 0);
  time->Advance(1ns);
  CHECK(ending.Wait().ok());
}

TEST_CASE("F2: a delay longer than the timeout ends at the timeout with DEADLINE_EXCEEDED, a failure") {
  auto time = std::make_shared<testing::ManualTime>();
  EchoServer server;
  ClientSettings settings = Settings(server, std::make_shared<FaultInjector>());
  settings.time = time;
  Client client = MakeClient(std::move(settings));
  Ending ending;
  client.Call(PENSTOCK_METHOD(v1::Echo, Unary), Request(), {.parent = Scenario("delay=60s")}, ending.Completion());
  REQUIRE(time->WaitForTimers(2));
  time->Advance(10s);
  const CallResult& result = ending.Wait();
  CHECK(result.status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
  CHECK(result.reason == EndReason::kExpired);
  CHECK(result.attempts == 1);
  CHECK(client.circuit_totals().failures == 1);
  CHECK(time->timers() == 0);
  CHECK(server.echo().counts().unary == 0);
}

TEST_CASE("F2: what a delayed attempt runs of the user's runs on a callback thread, not where the delay or a cancel ends it") {
  struct Factory final : grpc::experimental::ClientInterceptorFactoryInterface {
    explicit Factory(std::thread::id& made_on) : made_on(made_on) {}
    grpc::experimental::Interceptor* CreateClientInterceptor(grpc::experimental::ClientRpcInfo*) override {
      made_on = std::this_thread::get_id();
      return nullptr;
    }
    std::thread::id& made_on;
  };
  for (const bool cancelled : {false, true}) {
    CAPTURE(cancelled);
    std::thread::id made_on;
    auto time = std::make_shared<testing::ManualTime>();
    EchoServer server;
    ClientSettings settings = Settings(server, std::make_shared<FaultInjector>());
    settings.time = time;
    settings.interceptors = [&] {
      std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> own;
      own.push_back(std::make_unique<Factory>(made_on));
      return own;
    };
    Client client = MakeClient(std::move(settings));
    Ending ending;
    CallHandle handle =
        client.Call(PENSTOCK_METHOD(v1::Echo, Unary), Request(), {.parent = Scenario("delay=3s")}, ending.Completion());
    REQUIRE(time->WaitForTimers(2));
    if (cancelled) handle.Cancel();
    time->Advance(3s);  // Fires on this thread.
    CHECK(ending.Wait().ok() != cancelled);
    CHECK(made_on != std::thread::id());
    CHECK(made_on != std::this_thread::get_id());
  }
}

TEST_CASE("F2: an embedded reactor that was struck is no other client's to strike") {
  struct Reactor final : UnaryReactor<v1::EchoRequest, v1::EchoResponse> {
    void OnDone(const CallResult& ended) override {
      result = ended;
      result.headers = result.trailers = nullptr;
      waiter->Done();
    }
    CallResult result;
    std::unique_ptr<detail::Waiter> waiter = std::make_unique<detail::Waiter>();
  };
  EchoServer server;
  Client struck = MakeClient(Settings(server, std::make_shared<FaultInjector>()));
  Client plain = MakeClient({.address = server.address()});
  Reactor reactor;
  struck.Start(PENSTOCK_METHOD(v1::Echo, Unary), reactor, {.parent = Scenario("abort=NOT_FOUND")});
  reactor.waiter->Wait();
  CHECK(reactor.result.status.error_code() == grpc::StatusCode::NOT_FOUND);
  reactor.waiter = std::make_unique<detail::Waiter>();
  plain.Start(PENSTOCK_METHOD(v1::Echo, Unary), reactor);
  reactor.waiter->Wait();
  CHECK(reactor.result.ok());
  CHECK(server.echo().counts().unary == 1);
}

TEST_CASE("F2: a delay and an abort together wait, then abort") {
  auto time = std::make_shared<testing::ManualTime>();
  EchoServer server;
  ClientSettings settings = Settings(server, std::make_shared<FaultInjector>());
  settings.time = time;
  settings.max_attempts = 1;
  Client client = MakeClient(std::move(settings));
  Ending ending;
  client.Call(PENSTOCK_METHOD(v1::Echo, Unary), Request(), {.parent = Scenario("delay=1s&abort=ABORTED")},
              ending.Completion());
  REQUIRE(time->WaitForTimers(2));
  CHECK_FALSE(ending.ended());
  time->Advance(1s);
  CHECK(ending.Wait().status.error_code() == grpc::StatusCode::ABORTED);
}

TEST_CASE("F2: a cancel during an injected delay ends the call at once, ignored") {
  // 50 ms by the rule, which suite slow holds it to; here there is room for a loaded machine.
  CHECK(CancelDelayedCalls(10).back() < 1s);
}

TEST_CASE("F2: cancels that race with the beginning and the end of a delay end each call once") {
  EchoServer server;
  Client client = MakeClient(Settings(server, std::make_shared<FaultInjector>()));
  std::vector<Ending> endings;
  for (int i = 0; i < 300; ++i) {
    CallHandle handle = client.Call(PENSTOCK_METHOD(v1::Echo, Unary), Request(), {.parent = Scenario("delay=1ms")},
                                    endings.emplace_back().Completion());
    std::thread([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(i * 7 % 1500));
      handle.Cancel();
    }).join();
  }
  for (const Ending& ending : endings) {
    ending.Wait();
    CHECK(ending.completions() == 1);
  }
  CHECK(client.CloseAndWait(std::chrono::steady_clock::now() + kLimit));
}

TEST_CASE("F2: closing the client ends calls in an injected delay") {
  EchoServer server;
  Ending ending;
  {
    Client client = MakeClient(Settings(server, std::make_shared<FaultInjector>()));
    client.Call(PENSTOCK_METHOD(v1::Echo, Unary), Request(),
                {.parent = Scenario("delay=1000s"), .timeout = std::chrono::hours(1)}, ending.Completion());
  }
  CHECK(ending.Wait().status.error_code() == grpc::StatusCode::CANCELLED);
}

TEST_CASE("F3: the scenario is stripped from what is sent, the rest of the baggage is not") {
  std::mutex mutex;
  std::vector<std::string> baggage;
  EchoServer server({.on_call = [&](const EchoCall& call) {
    std::lock_guard lock(mutex);
    const auto [first, last] = call.metadata.equal_range("baggage");
    baggage.emplace_back();
    for (auto header = first; header != last; ++header) baggage.back() += "[" + header->second + "]";
  }});
  const std::string scenario = "penstock.fault=grpc:other.Service/Method?abort";
  const auto scope = With("a=b+c," + scenario + ",d=%3D;p=1");
  Client strips = MakeClient(Settings(server, std::make_shared<FaultInjector>()));
  CHECK(Call(strips, scope).ok());
  CHECK(Call(strips, With(scenario)).ok());
  Client forwards =
      MakeClient(Settings(server, std::make_shared<FaultInjector>(FaultSettings{.forward_scenario = true})));
  CHECK(Call(forwards, scope).ok());
  Client off = MakeClient({.address = server.address()});
  CHECK(Call(off, scope).ok());
  CHECK(baggage == std::vector<std::string>{"[a=b+c,d=%3D;p=1]", "", "[a=b+c," + scenario + ",d=%3D;p=1]",
                                            "[a=b+c," + scenario + ",d=%3D;p=1]"});
}

TEST_CASE("F3: with injection off a scenario strikes nothing") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  CHECK(Call(client, Scenario("abort")).ok());
}

TEST_CASE("F1: a scenario in the call's own metadata counts as baggage, and goes out as one header with the parent's") {
  std::vector<std::string> baggage;
  EchoServer server({.on_call = [&](const EchoCall& call) {
    const auto [first, last] = call.metadata.equal_range("baggage");
    for (auto header = first; header != last; ++header) baggage.push_back(header->second);
  }});
  Client client = MakeClient(Settings(server, std::make_shared<FaultInjector>()));
  CallOptions options{.parent = With("a=1")};
  options.metadata = {{"baggage", "b=2,penstock.fault=grpc:penstock.test.v1.Echo/Unary?abort&count=1"}};
  const auto waited = client.CallAndWait(PENSTOCK_METHOD(v1::Echo, Unary), Request(), std::move(options));
  CHECK(waited.ok());
  CHECK(waited.result.attempts == 2);
  CHECK(baggage == std::vector<std::string>{"a=1,b=2"});
}

TEST_CASE("F1: a bad scenario leaves the call alone and is counted") {
  auto faults = std::make_shared<FaultInjector>();
  EchoServer server;
  Client client = MakeClient(Settings(server, faults));
  for (const char* bad : {"abort&percent=101", "abort&percent=-1", "abort&percent=NaN", "abort&percent=abc", "delay=-1",
                          "delay=9223372036854775807", "delay=1e309"}) {
    const auto began = std::chrono::steady_clock::now();
    CHECK(Call(client, Scenario(bad)).ok());
    CHECK(std::chrono::steady_clock::now() - began < 10s);
  }
  CHECK(faults->counts() == FaultCounts{0, 0, 7});
  CHECK(server.echo().counts().unary == 7);
}

TEST_CASE("F2: a stream's opening is aborted and tried again") {
  auto faults = std::make_shared<FaultInjector>();
  EchoServer server;
  Client client = MakeClient(Settings(server, faults));
  DownReader down;
  v1::EchoRequest request;
  request.set_count(3);
  CHECK(down.StartRead(&down.message) == StreamStart::kStarted);
  client.Open(PENSTOCK_METHOD(v1::Echo, Down), request, {.parent = Scenario("abort&count=2", "Down")}, down);
  const CallResult& result = down.Wait();
  CHECK(result.ok());
  CHECK(result.attempts == 3);
  CHECK(down.heard.Count("opened") == 1);
  CHECK(down.heard.Count("read") == 3);
  CHECK(faults->counts().aborts == 2);
  CHECK(client.circuit_totals().failures == 2);
}

TEST_CASE("F2: a stream's opening is delayed, and a cancel during the delay ends it") {
  EchoServer server;
  Client client = MakeClient(Settings(server, std::make_shared<FaultInjector>()));
  v1::EchoRequest request;
  request.set_count(1);
  DownReader down;
  CHECK(down.StartRead(&down.message) == StreamStart::kStarted);
  client.Open(PENSTOCK_METHOD(v1::Echo, Down), request, {.parent = Scenario("delay=20ms", "Down")}, down);
  CHECK(down.Wait().ok());
  CHECK(down.heard.Count("read") == 1);

  BidiTalker endless;
  CHECK(endless.StartWrite(&endless.request) == StreamStart::kStarted);
  client.Open(PENSTOCK_METHOD(v1::Echo, Bidi), {.parent = Scenario("delay=1000s", "Bidi")}, endless);
  endless.Cancel();
  CHECK(endless.Wait().status.error_code() == grpc::StatusCode::CANCELLED);
  CHECK(endless.heard.all() == std::vector<std::string>{"write:no", "done"});
  CHECK(server.echo().counts().streams == 1);
}

TEST_CASE("L10: trace and baggage of a plain gRPC server call are relayed by every attempt") {
  std::mutex mutex;
  std::vector<std::string> seen;
  EchoServer leaf({.on_call = [&](const EchoCall& call) {
    std::lock_guard lock(mutex);
    for (const char* key : {"traceparent", "baggage"}) {
      const auto header = call.metadata.find(key);
      seen.push_back(header == call.metadata.end() ? "" : header->second);
    }
  }});
  Client to_leaf = MakeClient({.address = leaf.address(), .backoff_base = 1ms, .backoff_max = 2ms});

  PlainMiddle middle([&](grpc::CallbackServerContext* context, grpc::ServerUnaryReactor* reactor) {
    v1::EchoRequest failing;
    failing.set_code(grpc::StatusCode::UNAVAILABLE);
    to_leaf.Call(PENSTOCK_METHOD(v1::Echo, Unary), failing, {.parent = context},
                 [reactor](const CallResult&, v1::EchoResponse&) { reactor->Finish(grpc::Status::OK); });
  });
  Client to_middle = MakeClient({.address = middle.address()});
  const std::string traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  CallOptions options;
  options.metadata = {{"traceparent", traceparent}, {"baggage", "a=b+c,d=%3D:"}};
  CHECK(to_middle.CallAndWait(PENSTOCK_METHOD(v1::Echo, Unary), Request(), std::move(options)).ok());
  CHECK(seen == std::vector<std::string>{traceparent, "a=b+c,d=%3D:", traceparent, "a=b+c,d=%3D:", traceparent,
                                         "a=b+c,d=%3D:"});
}

TEST_CASE("F2, L10: a delayed call outlives the plain gRPC server call that it was made for") {
  auto time = std::make_shared<testing::ManualTime>();
  EchoServer leaf;
  ClientSettings settings = Settings(leaf, std::make_shared<FaultInjector>());
  settings.time = time;
  Client to_leaf = MakeClient(std::move(settings));
  Ending ending;
  PlainMiddle middle([&](grpc::CallbackServerContext* context, grpc::ServerUnaryReactor* reactor) {
    to_leaf.Call(PENSTOCK_METHOD(v1::Echo, Unary), Request(), {.parent = context}, ending.Completion());
    reactor->Finish(grpc::Status::OK);
  });
  Client to_middle = MakeClient({.address = middle.address()});
  CallOptions options;
  options.metadata = {{"baggage", "penstock.fault=grpc:penstock.test.v1.Echo/Unary?delay=3s"}};
  CHECK(to_middle.CallAndWait(PENSTOCK_METHOD(v1::Echo, Unary), Request(), std::move(options)).ok());
  middle.Shutdown();  // Its calls are gone, their memory too.
  REQUIRE(time->WaitForTimers(2));
  time->Advance(3s);
  CHECK(ending.Wait().ok());
  CHECK(leaf.echo().counts().unary == 1);
}

}  // namespace penstock::test
