// What a call can be made with, what is handed down from a server call, and the channel for other code.

#include <dlfcn.h>
#include <doctest/doctest.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "penstock/client/client.h"
#include "penstock/testing/certificates.h"
#include "penstock/testing/manual_time.h"
#include "penstock/testing/router.h"
#include "support/client_calls.h"
#include "support/echo_requests.h"
#include "support/echo_service.h"

// What ClientContext::auth_context() keeps is made by this, with the first that asks.
static std::atomic<int> auth_contexts_made{0};
namespace grpc {
std::shared_ptr<const AuthContext> CreateAuthContext(grpc_call* call) {
  using Create = std::shared_ptr<const AuthContext> (*)(grpc_call*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "_ZN4grpc17CreateAuthContextEP9grpc_call"));
  ++auth_contexts_made;
  return create(call);
}
}  // namespace grpc

namespace penstock::test {
namespace {

using testing::ManualTime;

bool UntilOpen(EchoServer& server, std::uint64_t count) {
  return server.echo().WaitUntil([count](const EchoCounts& counts) { return counts.open_unary == count; });
}

// The metadata of the calls that a server got.
struct Heard {
  EchoOptions Options() {
    return {.on_call = [this](const EchoCall& call) {
      std::lock_guard lock(mutex);
      last = call.metadata;
    }};
  }
  std::string Value(const std::string& key) {
    std::lock_guard lock(mutex);
    const auto found = last.find(key);
    return found == last.end() ? "(none)" : found->second;
  }
  std::mutex mutex;
  std::multimap<std::string, std::string> last;
};

// A middle service: its handler makes a call to `next` for its own.
class Middle final : public v1::Echo::CallbackService {
 public:
  explicit Middle(Client& next) : next_(next) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  grpc::ServerUnaryReactor* Unary(grpc::CallbackServerContext* context, const v1::EchoRequest* request,
                                  v1::EchoResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    next_.Call(kUnary, *request, {.parent = context}, [this, reactor, response](const CallResult& result, v1::EchoResponse& answer) {
      *response = answer;
      child_code = result.status.error_code();
      ++children_ended;
      reactor->Finish(result.status);
    });
    return reactor;
  }

  std::atomic<int> child_code{-1};
  std::atomic<int> children_ended{0};

 private:
  Client& next_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

TEST_CASE("G1: metadata that gRPC would abort on fails the call, and nothing else") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  using Pair = std::pair<std::string, std::string>;
  for (const Pair& pair : {Pair{"", "x"}, Pair{"Upper", "x"}, Pair{"key", "a\tb"}, Pair{"key", "a\nb"}, Pair{"key", std::string(1, '\0')},
                           Pair{"key", "\xff"}, Pair{":path", "/x"}, Pair{"grpc-timeout", "1S"}}) {
    const auto waited = client.CallAndWait(kUnary, Request(""), {.metadata = {pair}});
    CHECK(waited.result.status.error_code() == grpc::INVALID_ARGUMENT);
    CHECK(waited.result.reached == Reached::kNotSent);
    CHECK(waited.result.attempts == 0);
  }
  CHECK(client.CallAndWait(kUnary, Request(""), {.authority = "bad\nhost"}).result.status.error_code() == grpc::INVALID_ARGUMENT);
  CHECK(client.CallAndWait(kUnary, Request(""), {.timeout = 0s}).result.status.error_code() == grpc::INVALID_ARGUMENT);
  CHECK(client.CallAndWait(kUnary, Request(""), {.max_attempts = 0}).result.status.error_code() == grpc::INVALID_ARGUMENT);
  CHECK(client.CallAndWait(kUnary, Request(""), {.compression = static_cast<grpc_compression_algorithm>(99)})
            .result.status.error_code() == grpc::INVALID_ARGUMENT);
  CHECK(server.echo().counts().unary == 0);
  CHECK(client.CallAndWait(kUnary, Request(""), {.metadata = {{"bytes-bin", "\xff\t"}}}).ok());
  CHECK(client.circuit_totals().failures == 0);
}

TEST_CASE("L16: metadata, authority, compression and wait-for-ready reach the call; the observer's headers too") {
  Heard heard;
  EchoServer server(heard.Options());
  auto observer = std::make_shared<RecordingObserver>();
  Client client = MakeClient({.address = server.address(), .observer = observer});
  const auto waited = client.CallAndWait(kUnary, Request(std::string(5'000, 'x')),
                                         {.wait_for_ready = true, .metadata = {{"tenant", "7"}, {"tenant", "8"}},
                                          .compression = GRPC_COMPRESS_GZIP, .authority = "ledger.example"});
  CHECK(waited.ok());
  CHECK(waited.response.text().size() == 5'000);
  CHECK(heard.Value("tenant") == "7");
  CHECK(heard.Value("observed") == "1");
}

TEST_CASE("L16: wait-for-ready waits for a server that is not there yet; without it the call fails") {
  EchoServer first;
  const std::uint16_t port = first.port();
  Client client = MakeClient({.address = "127.0.0.1:" + std::to_string(port), .max_attempts = 1});
  first.Shutdown();
  CHECK(client.CallAndWait(kUnary, Request("")).result.status.error_code() == grpc::UNAVAILABLE);
  Ending ending;
  client.Call(kUnary, Request("late"), {.timeout = 30s, .wait_for_ready = true}, ending.Completion());
  EchoServer second(EchoServerOptions{.address = "127.0.0.1:" + std::to_string(port)});
  CHECK(ending.Wait().ok());
}

TEST_CASE("L16: the user's own interceptors run once an attempt, inside the retries") {
  struct Counting final : grpc::experimental::Interceptor {
    explicit Counting(std::atomic<int>& calls) : calls(calls) {}
    void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
      if (methods->QueryInterceptionHookPoint(grpc::experimental::InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) ++calls;
      methods->Proceed();
    }
    std::atomic<int>& calls;
  };
  struct Factory final : grpc::experimental::ClientInterceptorFactoryInterface {
    explicit Factory(std::atomic<int>& calls) : calls(calls) {}
    grpc::experimental::Interceptor* CreateClientInterceptor(grpc::experimental::ClientRpcInfo*) override { return new Counting(calls); }
    std::atomic<int>& calls;
  };
  std::atomic<int> calls{0};
  EchoServer server;
  Client client = MakeClient({.address = server.address(), .backoff_base = 1ns, .interceptors = [&] {
                                std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> own;
                                own.push_back(std::make_unique<Factory>(calls));
                                return own;
                              }});
  CHECK(client.CallAndWait(kUnary, Failing(grpc::UNAVAILABLE)).result.attempts == 3);
  CHECK(calls == 3);
}

TEST_CASE("L16, L9: what the user's interceptors hear of a deadline comes on one of gRPC's threads, never on the one of the timers") {
  struct Seen {
    const std::thread::id timers = std::this_thread::get_id();  // With manual time, whoever advances it.
    std::atomic<int> cancels{0};
    std::atomic<int> on_timers{0};
  };
  struct Watching final : grpc::experimental::Interceptor {
    explicit Watching(Seen& seen) : seen(seen) {}
    void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
      if (methods->QueryInterceptionHookPoint(grpc::experimental::InterceptionHookPoints::PRE_SEND_CANCEL)) {
        if (std::this_thread::get_id() == seen.timers) ++seen.on_timers;
        ++seen.cancels;
      }
      methods->Proceed();
    }
    Seen& seen;
  };
  struct Factory final : grpc::experimental::ClientInterceptorFactoryInterface {
    explicit Factory(Seen& seen) : seen(seen) {}
    grpc::experimental::Interceptor* CreateClientInterceptor(grpc::experimental::ClientRpcInfo*) override { return new Watching(seen); }
    Seen& seen;
  };
  Seen seen;
  EchoServer server;
  auto time = std::make_shared<ManualTime>();
  Client client = MakeClient({.address = server.address(),
                              .interceptors =
                                  [&] {
                                    std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> own;
                                    own.push_back(std::make_unique<Factory>(seen));
                                    return own;
                                  },
                              .time = time});
  Ending ending;
  client.Call(kUnary, Hanging(), {.timeout = 60s}, ending.Completion());
  REQUIRE(UntilOpen(server, 1));
  time->Advance(60s);
  CHECK(ending.Wait().reason == EndReason::kExpired);
  CHECK(seen.cancels == 1);

  std::promise<CallResult> ended;
  Subscription subscription = client.Subscribe(PENSTOCK_METHOD(v1::Echo, Down), Hanging(),
                                               {.on_end = [&](const CallResult& result) { ended.set_value(result); }},
                                               {.call = {.timeout = 60s}});
  REQUIRE(server.echo().WaitUntil([](const EchoCounts& counts) { return counts.open_streams == 1; }));
  time->Advance(60s);
  CHECK(ended.get_future().get().reason == EndReason::kExpired);
  CHECK(seen.cancels == 2);
  CHECK(seen.on_timers == 0);
}

TEST_CASE("C7: five requests over the send limit, and answers over the receive limit, leave the breaker closed") {
  EchoServer server;
  Client client = MakeClient({.address = server.address(), .max_send_bytes = 1'000, .max_receive_bytes = 2'000});
  for (int i = 0; i < 6; ++i) {
    const auto sent = client.CallAndWait(kRepeatable, Request(std::string(1'001, 'x')));
    CHECK(sent.result.status.error_code() == grpc::RESOURCE_EXHAUSTED);
    CHECK(sent.result.attempts == 1);
    v1::EchoRequest large = Request("");
    large.set_reply_bytes(2'100);
    const auto received = client.CallAndWait(kRepeatable, large);
    CHECK(received.result.status.error_code() == grpc::RESOURCE_EXHAUSTED);
    CHECK(received.result.attempts == 1);
  }
  CHECK(client.circuit_state() == CircuitState::kClosed);
  CHECK(client.circuit_totals().failures == 0);
  CHECK(client.circuit_totals().ignored == 12);
  CHECK(client.CallAndWait(kUnary, Request("fits")).ok());
  // The server's own RESOURCE_EXHAUSTED counts.
  CHECK(client.CallAndWait(kUnary, Failing(grpc::RESOURCE_EXHAUSTED)).result.attempts == 1);
  CHECK(client.circuit_totals().failures == 1);
}

TEST_CASE("C2: deadline_floor spares the breaker the callers who come too late") {
  EchoServer server;
  auto time = std::make_shared<ManualTime>();
  Client client = MakeClient({.address = server.address(), .deadline_floor = 50ms, .time = time});
  for (const Duration left : {Duration(50ms - 1ns), Duration(50ms)}) {
    Ending ending;
    client.Call(kUnary, Hanging(), {.deadline = time->Now() + left}, ending.Completion());
    REQUIRE(UntilOpen(server, 1));
    time->Advance(left);
    CHECK(ending.Wait().status.error_code() == grpc::DEADLINE_EXCEEDED);
    REQUIRE(UntilOpen(server, 0));
  }
  CHECK(client.circuit_totals().ignored == 1);
  CHECK(client.circuit_totals().failures == 1);
}

TEST_CASE("C2: deadline_floor goes by the time that each attempt begins with, not its call's first") {
  EchoServer server;
  auto time = std::make_shared<ManualTime>();
  Client client = MakeClient({.address = server.address(),
                              .backoff_base = 1ms,
                              .classify =
                                  [](auto method, const grpc::Status& status, const auto& trailers) {
                                    Classification classified = DefaultClassify(method, status, trailers);
                                    if (classified.decision == Decision::kRetry) classified.retry_after = 60ms;
                                    return classified;
                                  },
                              .deadline_floor = 50ms,
                              .faults = std::make_shared<FaultInjector>(),
                              .time = time});
  int run = 0;
  for (const Duration left : {Duration(110ms - 1ns), Duration(110ms)}) {
    Ending ending;
    const std::string once = "penstock.fault=grpc:penstock.test.v1.Echo/Unary?abort&count=1&run=" + std::to_string(++run);
    client.Call(kUnary, Hanging(), {.deadline = time->Now() + left, .metadata = {{"baggage", once}}}, ending.Completion());
    REQUIRE(time->WaitForTimer(time->Now() + 60ms));
    time->Advance(60ms);
    REQUIRE(UntilOpen(server, 1));
    time->Advance(left - 60ms);
    CHECK(ending.Wait().attempts == 2);
    CHECK(ending.Wait().reason == EndReason::kExpired);
    REQUIRE(UntilOpen(server, 0));
  }
  CHECK(client.circuit_totals().ignored == 1);
  CHECK(client.circuit_totals().failures == 3);  // The two injected ones, and the last.
}

TEST_CASE("L10: a call takes its parent's deadline, headers and cancellation") {
  Heard heard;
  EchoServer server(heard.Options());
  auto time = std::make_shared<ManualTime>();
  Client client = MakeClient({.address = server.address(), .time = time});
  const auto scope = CallScope::Create(time->Now() + 3s, {{"baggage", "tenant=7"}, {"traceparent", "00-1-2-01"}});
  Ending ending;
  client.Call(kUnary, Hanging(), {.parent = scope}, ending.Completion());
  REQUIRE(UntilOpen(server, 1));
  CHECK(heard.Value("baggage") == "tenant=7");
  CHECK(heard.Value("traceparent") == "00-1-2-01");
  CHECK(time->NextDue() == time->Now() + 3s);
  SUBCASE("the parent is cancelled") {
    scope->End(CallScope::Ending::kCancelled);
    const CallResult& result = ending.Wait();
    CHECK(result.status.error_code() == grpc::CANCELLED);
    CHECK(result.reason == EndReason::kCancelled);
    CHECK(client.circuit_totals().failures == 0);
  }
  SUBCASE("the parent finishes first") {
    scope->End(CallScope::Ending::kFinished);
    CHECK(ending.Wait().status.error_code() == grpc::CANCELLED);
    Ending late;
    client.Call(kUnary, Request(""), {.parent = scope}, late.Completion());
    CHECK(late.Wait().reason == EndReason::kCancelled);
    CHECK(late.Wait().attempts == 0);
    CHECK(server.echo().counts().unary == 1);
  }
  SUBCASE("the inherited deadline passes, as the parent's cancel") {
    time->AdvanceTo(time->Now() + 3s - 1ms);
    scope->End(CallScope::Ending::kCancelled);
    const CallResult& result = ending.Wait();
    CHECK(result.status.error_code() == grpc::DEADLINE_EXCEEDED);
    CHECK(result.reason == EndReason::kExpired);
    CHECK(client.circuit_totals().failures == 1);
  }
  CHECK(server.echo().WaitUntil([](const EchoCounts& counts) { return counts.cancelled == 1; }));
  CHECK(time->timers() == 0);
}

namespace {

// A baggage of 64 members, 6,399 bytes.
std::string Members() {
  std::string members = "100=" + std::string(95, 'v');
  for (int i = 1; i < 64; ++i) members += "," + std::to_string(100 + i) + "=" + std::string(95, 'v');
  return members;
}

}  // namespace

TEST_CASE("L10, O3: a trace of a call's own goes without the state of its parent's") {
  Heard heard;
  EchoServer server(heard.Options());
  Client client = MakeClient({.address = server.address()});
  const auto scope = CallScope::Create(TimePoint::max(), {{"traceparent", "00-1-2-01"}, {"tracestate", "theirs=1"}});
  CHECK(client.CallAndWait(kUnary, Request(""), {.parent = scope, .metadata = {{"traceparent", "00-3-4-01"}}}).ok());
  CHECK(heard.Value("traceparent") == "00-3-4-01");
  CHECK(heard.Value("tracestate") == "(none)");
  CHECK(client.CallAndWait(kUnary, Request(""), {.parent = scope, .metadata = {{"traceparent", "00-3-4-01"}, {"tracestate", "own=1"}}}).ok());
  CHECK(heard.Value("tracestate") == "own=1");
  CHECK(client.CallAndWait(kUnary, Request(""), {.parent = scope, .metadata = {{"tracestate", "own=1"}}}).ok());
  CHECK(heard.Value("traceparent") == "00-1-2-01");
  CHECK(heard.Value("tracestate") == "own=1");
}

TEST_CASE("G2, L10: what is relayed never makes a request so large that it ends the connection, with the calls of others on it") {
  Heard heard;
  EchoServer server(heard.Options());
  ClientSettings settings{.address = server.address()};
  SUBCASE("as it came") {}
  SUBCASE("with an observer") { settings.observer = std::make_shared<RecordingObserver>(); }
  SUBCASE("with injected faults") { settings.faults = std::make_shared<FaultInjector>(); }
  Client client = MakeClient(std::move(settings));
  Ending others;
  CallHandle other = client.Call(kUnary, Hanging(), {}, others.Completion());
  REQUIRE(UntilOpen(server, 1));

  const std::string members = Members();
  const std::string state = "first=" + std::string(100, 's');
  const std::string one = "a=" + std::string(7'800, 'x');
  const auto call = [&](std::string baggage, std::size_t own) {
    const auto scope = CallScope::Create(TimePoint::max(), {{"baggage", std::move(baggage)}, {"traceparent", "00-1-2-01"}, {"tracestate", state}});
    const auto called = client.CallAndWait(kUnary, Request(""), {.parent = scope, .metadata = {{"own", std::string(own, 'o')}}});
    CHECK_MESSAGE(called.result.ok(), called.result.status.error_message());
    CHECK(heard.Value("own").size() == own);
    CHECK_FALSE(others.ended());
    return heard.Value("baggage");
  };
  // All of it, while there is room; then as many whole members as there is room for; then none.
  CHECK(call(members, 0).size() == 6'399);
  CHECK(call(members + "," + one, 0).size() == 6'399);
  CHECK(call(members, 3'000).size() / 100 == 37);
  CHECK(call(one, 0) == "(none)");
  CHECK(heard.Value("traceparent") == "00-1-2-01");
  CHECK(heard.Value("tracestate") == state);
  CHECK(call(members, 6'950) == "(none)");
  CHECK(heard.Value("traceparent") == "00-1-2-01");
  CHECK(heard.Value("tracestate") == "(none)");
  other.Cancel();
  others.Wait();
}

TEST_CASE("G2, L10: a token takes its room from what is relayed, whether the call brings it or the client does") {
  const testing::CertificateAuthority authority;
  const testing::Identity identity = authority.Issue();
  grpc::SslServerCredentialsOptions options;
  options.pem_key_cert_pairs.push_back({identity.key, identity.certificate});
  Heard heard;
  EchoServer server(EchoServerOptions{.echo = heard.Options(), .credentials = grpc::SslServerCredentials(options)});
  const auto token = grpc::AccessTokenCredentials(std::string(1'500, 't'));
  const auto baggage = [&](std::shared_ptr<grpc::CallCredentials> clients, std::shared_ptr<grpc::CallCredentials> calls) {
    auto client = Client::Create({.address = server.address(), .tls = Tls{.roots = authority.certificate()}, .credentials = std::move(clients)});
    REQUIRE_MESSAGE(client.ok(), client.error().message());
    const auto scope = CallScope::Create(TimePoint::max(), {{"baggage", Members()}});
    const auto called = client->CallAndWait(kUnary, Request(""), {.parent = scope, .credentials = std::move(calls)});
    CHECK_MESSAGE(called.result.ok(), called.result.status.error_message());
    return heard.Value("baggage").size();
  };
  CHECK(baggage(nullptr, nullptr) == 6'399);
  const std::size_t beside_a_calls = baggage(nullptr, token);
  CHECK(beside_a_calls < 5 * 1024);
  CHECK(beside_a_calls > 4 * 1024);
  CHECK(baggage(token, nullptr) == beside_a_calls);
}

TEST_CASE("L10: a parent that ends during a wait ends the call, and no attempt follows") {
  EchoServer server;
  auto time = std::make_shared<ManualTime>();
  Client client = MakeClient({.address = server.address(), .time = time});
  const auto scope = CallScope::Create(TimePoint::max(), {});
  Ending ending;
  client.Call(kUnary, Failing(grpc::UNAVAILABLE), {.parent = scope}, ending.Completion());
  REQUIRE(time->WaitForTimers(2));
  scope->End(CallScope::Ending::kFinished);
  CHECK(ending.Wait().reason == EndReason::kCancelled);
  time->Advance(1h);
  CHECK(server.echo().counts().unary == 1);
}

TEST_CASE("L10: detaching is explicit and needs a deadline of its own; the call outlives its parent") {
  Heard heard;
  EchoServer server(heard.Options());
  Client client = MakeClient({.address = server.address()});
  const auto scope = CallScope::Create(SteadyClock().Now() + 1ms, {{"baggage", "tenant=7"}});
  const auto refused = client.CallAndWait(kUnary, Request(""), {.parent = scope, .detached = true});
  CHECK(refused.result.status.error_code() == grpc::INVALID_ARGUMENT);
  scope->End(CallScope::Ending::kFinished);
  CHECK(client.CallAndWait(kUnary, Request(""), {.parent = scope, .detached = true, .timeout = 10s}).ok());
  CHECK(heard.Value("baggage") == "tenant=7");
}

TEST_CASE("L10: deadline and cancellation go through three links, and the leaf stops its work") {
  EchoServer leaf;
  Client to_leaf = MakeClient({.address = leaf.address()});
  Middle middle(to_leaf);
  Client to_middle = MakeClient({.address = middle.address()});
  SUBCASE("the deadline is handed down") {
    const auto waited = to_middle.CallAndWait(kUnary, Request(""), {.timeout = 3s});
    CHECK(waited.ok());
    CHECK(waited.response.remaining_ms() < 3'200);
    CHECK(waited.response.remaining_ms() > 100);
  }
  SUBCASE("a cancel is handed down") {
    Ending ending;
    CallHandle handle = to_middle.Call(kUnary, Hanging(), {}, ending.Completion());
    REQUIRE(UntilOpen(leaf, 1));
    handle.Cancel();
    CHECK(ending.Wait().status.error_code() == grpc::CANCELLED);
  }
  SUBCASE("a deadline that passes ends all three") {
    const auto waited = to_middle.CallAndWait(kUnary, Hanging(), {.timeout = 300ms});
    CHECK(waited.result.status.error_code() == grpc::DEADLINE_EXCEEDED);
  }
  CHECK(leaf.echo().WaitUntil([](const EchoCounts& counts) { return counts.open_unary == 0; }));
  CHECK(Eventually([&] { return middle.children_ended == 1; }));
}

TEST_CASE("C10, L10: the end of a plain server's call says nothing of the connection that the calls made for it are on") {
  EchoServer leaf;
  Client to_leaf = MakeClient({.address = leaf.address(), .max_attempts = 1});
  Middle middle(to_leaf);
  Client to_middle = MakeClient({.address = middle.address()});
  std::vector<Ending> parents(4);
  std::vector<CallHandle> handles;
  for (Ending& parent : parents) handles.push_back(to_middle.Call(kUnary, Hanging(), {}, parent.Completion()));
  Ending hanging;
  CallHandle held_open = to_leaf.Call(kUnary, Hanging(), {}, hanging.Completion());
  std::vector<Ending> later(4);
  for (Ending& ending : later) {
    v1::EchoRequest request = Failing(grpc::UNAVAILABLE);
    request.set_delay_ms(300);
    to_leaf.Call(kUnary, request, {}, ending.Completion());
  }
  REQUIRE(UntilOpen(leaf, 9));
  // The first failure on the connection counts, those of calls that were under way with it wait for the others of these.
  CHECK(to_leaf.CallAndWait(kUnary, Failing(grpc::UNAVAILABLE)).result.status.error_code() == grpc::UNAVAILABLE);
  for (Ending& ending : later) CHECK(ending.Wait().status.error_code() == grpc::UNAVAILABLE);
  REQUIRE(to_leaf.circuit_totals().failures == 1);
  for (CallHandle& handle : handles) handle.Cancel();
  REQUIRE(Eventually([&] { return middle.children_ended == 4; }));
  CHECK(to_leaf.circuit_totals().failures == 1);
  held_open.Cancel();
  CHECK(hanging.Wait().status.error_code() == grpc::CANCELLED);
  CHECK(to_leaf.circuit_state() == CircuitState::kClosed);
}

TEST_CASE("L17: calls on a guarded channel pass the breaker, are counted, and are not retried") {
  EchoServer server;
  auto time = std::make_shared<ManualTime>();
  auto client = std::make_unique<Client>(MakeClient({.address = server.address(), .time = time}));
  const auto stub = v1::Echo::NewStub(client->GuardedChannel());
  const auto call = [&](const v1::EchoRequest& request, std::chrono::milliseconds timeout = 30s) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    v1::EchoResponse response;
    return stub->Unary(&context, request, &response);
  };
  CHECK(call(Request("hello")).ok());
  CHECK(client->circuit_totals().successes == 1);
  CHECK(call(Failing(grpc::NOT_FOUND)).error_code() == grpc::NOT_FOUND);
  CHECK(client->circuit_totals().successes == 2);
  // gRPC's own deadline.
  CHECK(call(Hanging(), 50ms).error_code() == grpc::DEADLINE_EXCEEDED);
  CHECK(client->circuit_totals().failures == 1);
  for (int i = 0; i < 4; ++i) CHECK(call(Failing(grpc::UNAVAILABLE)).error_message() == "as asked");
  CHECK(server.echo().counts().unary == 7);
  const grpc::Status rejected = call(Request(""));
  CHECK(rejected.error_code() == grpc::UNAVAILABLE);
  CHECK(rejected.error_message() == "call rejected: circuit open for another 10.0s");
  // Streams are turned away as well.
  grpc::ClientContext context;
  auto reader = stub->Down(&context, Request(""));
  v1::EchoResponse response;
  CHECK_FALSE(reader->Read(&response));
  CHECK(reader->Finish().error_message().starts_with("call rejected"));
  CHECK(server.echo().counts().unary == 7);
  client->Close();
  CHECK(call(Request("")).error_code() == grpc::CANCELLED);
  client.reset();
  CHECK(call(Request("")).error_code() == grpc::CANCELLED);
}

TEST_CASE("L17, G1: metadata that gRPC would abort on fails the call on a guarded channel, and nothing else") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  const auto stub = v1::Echo::NewStub(client.GuardedChannel());
  using Pair = std::pair<std::string, std::string>;
  for (const Pair& pair : {Pair{"", "x"}, Pair{"Upper", "x"}, Pair{":path", "/x"}, Pair{"key", "a\tb"}, Pair{"key", "a\nb"},
                           Pair{"key", std::string(1, '\0')}, Pair{"key", "\xff"}}) {
    grpc::ClientContext unary;
    unary.AddMetadata(pair.first, pair.second);
    v1::EchoResponse response;
    const grpc::Status refused = stub->Unary(&unary, Request(""), &response);
    CHECK(refused.error_code() == grpc::INVALID_ARGUMENT);
    CHECK(refused.error_message().starts_with("metadata: "));
    grpc::ClientContext stream;
    stream.AddMetadata(pair.first, pair.second);
    auto both = stub->Bidi(&stream);
    CHECK_FALSE(both->Write(Request("")));
    CHECK_FALSE(both->Read(&response));
    CHECK(both->Finish().error_code() == grpc::INVALID_ARGUMENT);
  }
  CHECK(server.echo().counts().unary == 0);
  CHECK(client.circuit_totals().failures == 0);
  CHECK(client.circuit_totals().ignored == 0);
  // What is legal goes out, gRPC's own headers too.
  grpc::ClientContext context;
  context.AddMetadata("bytes-bin", "\xff\t");
  context.AddMetadata("key", "printable ~");
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  v1::EchoResponse response;
  CHECK(stub->Unary(&context, Request("legal"), &response).ok());
}

TEST_CASE("L17, U2, O4: a guarded channel's attempts give tokens and take them, and are decided of, as others are") {
  EchoServer server;
  auto observer = std::make_shared<RecordingObserver>();
  Client client = MakeClient({.address = server.address(),
                              .budget = {.max_tokens = 10, .token_ratio = 0.5},
                              .breaker = {.trip = [](const Counts&) { return false; }},
                              .observer = observer});
  const auto stub = v1::Echo::NewStub(client.GuardedChannel());
  v1::EchoResponse response;
  for (int i = 0; i < 3; ++i) {
    grpc::ClientContext context;
    CHECK(stub->Unary(&context, Failing(grpc::UNAVAILABLE), &response).error_code() == grpc::UNAVAILABLE);
  }
  CHECK(client.budget_tokens() == 7);
  const auto read = [&](int count, grpc::StatusCode code) {
    grpc::ClientContext context;
    v1::EchoRequest request = Failing(code);
    request.set_count(count);
    auto reader = stub->Down(&context, request);
    while (reader->Read(&response)) {
    }
    CHECK(reader->Finish().error_code() == code);
  };
  read(2, grpc::OK);
  CHECK(client.budget_tokens() == 7.5);  // Once, as it opens.
  read(0, grpc::OK);
  CHECK(client.budget_tokens() == 8);  // An empty one opens as it ends.
  read(2, grpc::UNAVAILABLE);
  CHECK(client.budget_tokens() == 8.5);
  read(0, grpc::UNAVAILABLE);  // Neutral: it takes nothing.
  CHECK(client.budget_tokens() == 8.5);
  std::lock_guard lock(observer->mutex);
  using enum RetryDecision;
  CHECK(observer->decisions ==
        std::vector<RetryDecision>{kStopped, kStopped, kStopped, kSucceeded, kSucceeded, kSucceeded, kStopped});
}

TEST_CASE("L17, C3, S4: on a guarded channel Classify is asked of the ends that it is asked of elsewhere") {
  EchoServer server;
  std::mutex mutex;
  std::vector<std::string> asked;
  Client client = MakeClient({.address = server.address(),
                              .classify = [&](auto method, const grpc::Status& status, const auto& trailers) {
                                std::lock_guard lock(mutex);
                                asked.push_back(std::to_string(status.error_code()) + " " + status.error_message());
                                return DefaultClassify(method, status, trailers);
                              }});
  const auto stub = v1::Echo::NewStub(client.GuardedChannel());
  v1::EchoResponse response;
  const auto call = [&](grpc::StatusCode code, std::string message) {
    grpc::ClientContext context;
    CHECK(stub->Unary(&context, Failing(code, message), &response).error_code() == code);
  };
  const auto read = [&](int count, grpc::StatusCode code, std::string message) {
    grpc::ClientContext context;
    v1::EchoRequest request = Failing(code, message);
    request.set_count(count);
    auto reader = stub->Down(&context, request);
    while (reader->Read(&response)) {
    }
    CHECK(reader->Finish().error_code() == code);
  };
  call(grpc::OK, "");
  call(grpc::CANCELLED, "theirs");
  call(grpc::CANCELLED, "CANCELLED");  // As a server's shutdown kills.
  read(1, grpc::OK, "");
  read(0, grpc::OK, "");
  read(1, grpc::CANCELLED, "open");
  read(0, grpc::CANCELLED, "not open");
  read(1, grpc::UNAVAILABLE, "open");
  read(1, grpc::INTERNAL, "open");
  std::lock_guard lock(mutex);
  CHECK(asked == std::vector<std::string>{"0 ", "1 theirs", "1 open", "13 open"});
  CHECK(client.circuit_totals().failures == 0);
  CHECK(client.circuit_totals().ignored == 5);
}

TEST_CASE("L17: a guarded channel leaves alone what gRPC's context keeps without a lock: its caller's code may look it up at that moment") {
  EchoServer server;
  Client client = MakeClient({.address = server.address(), .breaker = {.trip = [](const Counts&) { return false; }}});
  const auto stub = v1::Echo::NewStub(client.GuardedChannel());
  // A connection that has failed is watched for a while, which has every end looked at more closely.
  for (const bool watched : {false, true}) {
    if (watched) (void)client.CallAndWait(kUnary, Failing(grpc::UNAVAILABLE));
    for (const grpc::StatusCode code : {grpc::UNAVAILABLE, grpc::INTERNAL, grpc::CANCELLED}) {
      grpc::ClientContext unary;
      v1::EchoResponse response;
      CHECK(stub->Unary(&unary, Failing(code), &response).error_code() == code);
      grpc::ClientContext stream;
      v1::EchoRequest request = Failing(code);
      request.set_count(1);
      auto reader = stub->Down(&stream, request);
      while (reader->Read(&response)) {
      }
      CHECK(reader->Finish().error_code() == code);
      const int before = auth_contexts_made;
      CHECK(unary.auth_context() != nullptr);
      CHECK(stream.auth_context() != nullptr);
      CHECK(auth_contexts_made == before + 2);  // Here, by the first who asks.
    }
  }
}

TEST_CASE("L17, C2: deadline_floor holds on a guarded channel too") {
  EchoServer server;
  Client client = MakeClient({.address = server.address(), .deadline_floor = 20s});
  const auto stub = v1::Echo::NewStub(client.GuardedChannel());
  const auto call = [&](const v1::EchoRequest& request, std::optional<std::chrono::milliseconds> timeout) {
    grpc::ClientContext context;
    if (timeout) context.set_deadline(std::chrono::system_clock::now() + *timeout);
    v1::EchoResponse response;
    return stub->Unary(&context, request, &response).error_code();
  };
  CHECK(call(Hanging(), 50ms) == grpc::DEADLINE_EXCEEDED);
  CHECK(client.circuit_totals().ignored == 1);
  CHECK(client.circuit_totals().failures == 0);
  // Only what its own deadline ended is spared.
  CHECK(call(Failing(grpc::UNAVAILABLE), 10s) == grpc::UNAVAILABLE);
  CHECK(client.circuit_totals().failures == 1);
  CHECK(call(Request("no deadline"), {}) == grpc::OK);
  CHECK(client.circuit_totals().successes == 1);
}

TEST_CASE("L17: a stream on a guarded channel whose last message and end come together counts once") {
  constexpr int kStreams = 400;
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  const auto stub = v1::Echo::NewStub(client.GuardedChannel());
  struct Reader final : grpc::ClientReadReactor<v1::EchoResponse> {
    void OnReadDone(bool ok) override {
      if (ok) StartRead(&response);
    }
    void OnDone(const grpc::Status&) override { ++*ended; }
    grpc::ClientContext context;
    v1::EchoRequest request;
    v1::EchoResponse response;
    std::atomic<int>* ended = nullptr;
  };
  std::atomic<int> ended{0};
  std::vector<std::unique_ptr<Reader>> readers;
  for (int stream = 0; stream < kStreams; ++stream) {
    auto& reader = readers.emplace_back(std::make_unique<Reader>());
    reader->ended = &ended;
    reader->context.set_deadline(std::chrono::system_clock::now() + kLimit);
    reader->request.set_count(1);
    if (stream % 2 == 0) reader->request.set_code(grpc::UNAVAILABLE);
    stub->async()->Down(&reader->context, &reader->request, reader.get());
    reader->StartRead(&reader->response);
    reader->StartCall();
  }
  REQUIRE(Eventually([&] { return ended == kStreams; }));
  const CircuitTotals totals = client.circuit_totals();
  CHECK(totals.successes == kStreams / 2);
  CHECK(totals.ignored == kStreams / 2);
  CHECK(totals.failures == 0);
  CHECK(client.circuit_state() == CircuitState::kClosed);
}

TEST_CASE("L17: a stream on a guarded channel that is open when its server goes says nothing against the dependency") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  const auto stub = v1::Echo::NewStub(client.GuardedChannel());
  for (int i = 0; i < 6; ++i) {
    grpc::ClientContext context;
    v1::EchoRequest request = Request("");
    request.set_count(1);
    request.set_code(grpc::UNAVAILABLE);
    auto reader = stub->Down(&context, request);
    v1::EchoResponse response;
    while (reader->Read(&response)) {
    }
    CHECK(reader->Finish().error_code() == grpc::UNAVAILABLE);
  }
  CHECK(client.circuit_state() == CircuitState::kClosed);
  CHECK(client.circuit_totals().ignored == 6);
}

TEST_CASE("L17, C10: an attempt on a guarded channel that is given up without its status is waited for by nobody") {
  EchoServer server;
  auto router = *testing::Router::Create({.targets = {server.port()}});
  Client client = MakeClient({.address = router->address(), .max_attempts = 1});
  {
    const auto stub = v1::Echo::NewStub(client.GuardedChannel());
    grpc::ClientContext context;
    v1::EchoRequest quiet = Hanging();
    quiet.set_count(0);
    auto reader = stub->Down(&context, quiet);
    REQUIRE(server.echo().WaitUntil([](const EchoCounts& counts) { return counts.open_streams == 1; }));
  }
  constexpr std::uint64_t kCalls = 8;
  std::vector<Ending> endings(kCalls);
  for (Ending& ending : endings) client.Call(kUnary, Hanging(), {}, ending.Completion());
  REQUIRE(server.echo().WaitUntil([&](const EchoCounts& counts) { return counts.open_unary == kCalls; }));
  const CircuitTotals before = client.circuit_totals();
  router->CutAll();
  for (Ending& ending : endings) CHECK(ending.Wait().status.error_code() == grpc::UNAVAILABLE);
  // The connection broke once: one failure, and the others are let go when the last of them has ended.
  CHECK(Eventually([&] { return client.circuit_totals().ignored == before.ignored + kCalls - 1; }));
  CHECK(client.circuit_totals().failures == before.failures + 1);
}

TEST_CASE("T1: interceptors that cannot be made fail the creation, or every call on a guarded channel; nothing throws") {
  struct Observer final : ClientObserver {
    void OnCreated(std::shared_ptr<const ClientView>) noexcept override { ++created; }
    void OnEnded() noexcept override { ++ended; }
    void OnError(std::string_view message) noexcept override { error = message; }
    int created = 0;
    int ended = 0;
    std::string error;
  };
  using Factories = std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>>;
  EchoServer server;
  int made = 0;
  int fails_from = 2;
  auto observer = std::make_shared<Observer>();
  const ClientSettings settings{.address = server.address(), .plaintext = true, .connection = {.channels = 2},
                                .interceptors = [&]() -> Factories {
                                  if (++made >= fails_from) throw std::runtime_error("none to be had");
                                  return {};
                                },
                                .observer = observer};
  const auto refused = Client::Create(settings);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().message() == "interceptors: threw: none to be had");
  CHECK(observer->created == 0);
  CHECK(observer->ended == 0);

  ClientSettings null = settings;
  null.interceptors = [] {
    Factories factories;
    factories.push_back(nullptr);
    return factories;
  };
  CHECK_FALSE(Client::Create(std::move(null)).ok());

  made = 0;
  fails_from = 3;
  Client client = MakeClient(settings);
  const auto stub = v1::Echo::NewStub(client.GuardedChannel());
  CHECK(observer->error == "interceptors: threw: none to be had");
  grpc::ClientContext context;
  v1::EchoResponse response;
  CHECK_FALSE(stub->Unary(&context, Request("hello"), &response).ok());
  CHECK(client.CallAndWait(kUnary, Request("hello")).ok());
}

TEST_CASE("T1: everything that is wrong with the settings stands in one error, each with its name, value and what is allowed") {
  const auto client = Client::Create({.address = "ledger:9090", .plaintext = true, .timeout = 0s, .max_attempts = 0, .backoff_base = 2s,
                                      .backoff_max = 1s, .budget = {.max_tokens = 0}, .breaker = {.window = 0},
                                      .deadline_floor = -1ms,
                                      .methods = {{.method = kUnary, .timeout = -1s, .max_attempts = 0}}});
  REQUIRE_FALSE(client.ok());
  const std::string& text = client.error().message();
  for (const char* part :
       {"timeout: 0 ms; expected more than 0", "max_attempts: 0; expected 1 or more", "backoff_", "budget.max_tokens",
        "breaker.window", "deadline_floor: -1 ms; expected 0 or more",
        "methods[penstock.test.v1.Echo/Unary].timeout: -1000 ms", "methods[penstock.test.v1.Echo/Unary].max_attempts: 0"}) {
    CAPTURE(part);
    CHECK(text.find(part) != std::string::npos);
  }
  CHECK(std::count(text.begin(), text.end(), '\n') == 7);
}

TEST_CASE("T1: settings of a method that would have no effect are refused: given twice, or a stream's timeout") {
  constexpr auto kWatch = PENSTOCK_METHOD(v1::Echo, Down);
  const auto error = [](std::vector<MethodSettings> methods) {
    const auto client = Client::Create({.address = "ledger:9090", .plaintext = true, .methods = std::move(methods)});
    return client.ok() ? std::string() : client.error().message();
  };
  CHECK(error({{.method = kUnary, .timeout = 1s}, {.method = kIdempotent}, {.method = kWatch, .max_attempts = 2}}).empty());
  CHECK(error({{.method = kUnary, .timeout = 1s}, {.method = kIdempotent}, {.method = kUnary}}) ==
        "methods[penstock.test.v1.Echo/Unary]: is given twice; expected each method at most once");
  for (const MethodName stream : {MethodName(kWatch), MethodName(PENSTOCK_METHOD(v1::Echo, Up)),
                                  MethodName(PENSTOCK_METHOD(v1::Echo, Bidi))}) {
    CHECK(error({{.method = stream, .timeout = 500ms}}) ==
          "methods[" + std::string(stream.path().substr(1)) +
              "].timeout: 500 ms; expected none, since a stream's is that of its CallOptions");
  }
}

}  // namespace penstock::test
