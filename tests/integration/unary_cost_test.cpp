// What penstock adds to a call, counted in one process with the server: allocations, and (by hand, under callgrind) instructions:
//
//     PENSTOCK_CALLS=2000 valgrind --tool=callgrind tests/unary_cost_test -tc='*embedded*'
//
// The difference between two numbers of calls is the calls' own; the difference to the raw case is penstock's.

#include <doctest/doctest.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>

#include "penstock/client/client.h"
#include "support/client_calls.h"
#include "support/echo_requests.h"
#include "support/echo_service.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define PENSTOCK_COUNTS_ALLOCATIONS 1

namespace {
std::atomic<std::uint64_t> allocations{0};
}

// gRPC allocates with malloc and new; both end here.
extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* memory, std::size_t size);
void* malloc(std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(count, size);
}
void* realloc(void* memory, std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_realloc(memory, size);
}
}
#endif

namespace penstock::test {
namespace {

using detail::Waiter;

std::uint64_t Allocations() {
#ifdef PENSTOCK_COUNTS_ALLOCATIONS
  return allocations.load();
#else
  return 0;
#endif
}

int Calls() {
  const char* calls = std::getenv("PENSTOCK_CALLS");
  return calls == nullptr ? 2'000 : std::atoi(calls);
}

// Allocations a call, the first ones left out: connecting, and whatever is made once.
template <class Start>
double PerCall(Start start) {
  constexpr int kWarmUp = 200;
  start(kWarmUp);
  const std::uint64_t before = Allocations();
  start(Calls());
  return static_cast<double>(Allocations() - before) / Calls();
}

// The function form as services write it: what a call needs is allocated for it and freed at its end.
double RawObject(const std::string& address) {
  const auto stub = v1::Echo::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  struct Call {
    grpc::ClientContext context;
    v1::EchoRequest request;
    v1::EchoResponse response;
  };
  const v1::EchoRequest request = Request("hello");
  return PerCall([&](int calls) {
    Waiter waiter;
    std::function<void()> next = [&] {
      if (calls-- == 0) return waiter.Done();
      auto* call = new Call{.context = {}, .request = request, .response = {}};
      stub->async()->Unary(&call->context, &call->request, &call->response, [&, call](grpc::Status status) {
        REQUIRE(status.ok());
        delete call;
        next();
      });
    };
    next();
    waiter.Wait();
  });
}

// The function form, with everything of its own in place: the least that a raw call can do.
double Raw(const std::string& address) {
  const auto stub = v1::Echo::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  struct Slot {
    std::optional<grpc::ClientContext> context;
    v1::EchoRequest request = Request("hello");
    v1::EchoResponse response;
  } slot;
  return PerCall([&](int calls) {
    Waiter waiter;
    std::function<void()> next = [&] {
      if (calls-- == 0) return waiter.Done();
      slot.context.emplace();
      stub->async()->Unary(&*slot.context, &slot.request, &slot.response, [&](grpc::Status status) {
        REQUIRE(status.ok());
        next();
      });
    };
    next();
    waiter.Wait();
  });
}

double Callback(const std::string& address) {
  Client client = MakeClient({.address = address});
  const v1::EchoRequest request = Request("hello");
  return PerCall([&](int calls) {
    Waiter waiter;
    std::function<void()> next = [&] {
      if (calls-- == 0) return waiter.Done();
      client.Call(kUnary, request, {}, [&](const CallResult& result, v1::EchoResponse&) {
        REQUIRE(result.ok());
        next();
      });
    };
    next();
    waiter.Wait();
  });
}

struct Embedded final : UnaryReactor<v1::EchoRequest, v1::EchoResponse> {
  explicit Embedded(Client& of) : client(of) { request() = Request("hello"); }
  void Next() {
    if (calls-- == 0) return waiter->Done();
    client.Start(kUnary, *this);
  }
  void OnDone(const CallResult& result) override {
    REQUIRE(result.ok());
    Next();
  }
  Client& client;
  int calls = 0;
  Waiter* waiter = nullptr;
};

double Reactor(const std::string& address) {
  Client client = MakeClient({.address = address});
  Embedded reactor(client);
  return PerCall([&](int calls) {
    Waiter waiter;
    reactor.calls = calls;
    reactor.waiter = &waiter;
    reactor.Next();
    waiter.Wait();
  });
}

// A deadline on the wire makes a gRPC server start a timer, which a raw call without one does not ask of it.
EchoServerOptions WithoutDeadlines() {
  return {.configure = [](grpc::ServerBuilder& builder) { builder.AddChannelArgument("grpc.enable_deadline_checking", 0); }};
}

}  // namespace

TEST_CASE("L11: raw in place alone, for a profiler" * doctest::skip()) {
  EchoServer server(WithoutDeadlines());
  Raw(server.address());
}

TEST_CASE("L11: raw object alone, for a profiler" * doctest::skip()) {
  EchoServer server(WithoutDeadlines());
  RawObject(server.address());
}

TEST_CASE("L11: callback alone, for a profiler" * doctest::skip()) {
  EchoServer server(WithoutDeadlines());
  Callback(server.address());
}

TEST_CASE("L11: embedded alone, for a profiler" * doctest::skip()) {
  EchoServer server(WithoutDeadlines());
  Reactor(server.address());
}

TEST_CASE("L11: a successful call allocates no more than the raw function form, in both forms") {
  EchoServer server(WithoutDeadlines());
  const double raw = Raw(server.address());
  const double callback = Callback(server.address());
  const double reactor = Reactor(server.address());
  const double raw_object = RawObject(server.address());
  MESSAGE("allocations a call, server included: raw in place " << raw << ", embedded " << reactor << "; raw object " << raw_object
                                                               << ", callback " << callback);
#ifdef PENSTOCK_COUNTS_ALLOCATIONS
  CHECK(raw > 5);
  // gRPC's own number varies by a few in a thousand calls.
  CHECK(callback < raw_object + 0.1);
  CHECK(reactor < raw + 0.1);
#endif
}

}  // namespace penstock::test
