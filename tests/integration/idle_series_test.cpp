// Calls that are far apart (suite slow).

#include <doctest/doctest.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "penstock/client/client.h"
#include "support/client_calls.h"
#include "support/echo_pod.h"

namespace penstock::test {

namespace {

struct Waits {
  template <class Call>
  void Time(const Call& call) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    took.push_back(std::chrono::steady_clock::now() - begin);
  }
  std::chrono::microseconds At(double part) {
    std::sort(took.begin(), took.end());
    return std::chrono::duration_cast<std::chrono::microseconds>(took[static_cast<std::size_t>(part * (took.size() - 1))]);
  }
  std::string Text() {
    return "p50 " + std::to_string(At(0.5).count()) + " us, p99 " + std::to_string(At(0.99).count()) + " us, worst " +
           std::to_string(At(1).count()) + " us";
  }
  std::vector<std::chrono::nanoseconds> took;
};

}  // namespace

TEST_CASE("L12: 400 calls 1.0 to 1.2 s apart to a penstock server in a process of its own are as fast as any") {
  constexpr int kCalls = 400;
  const auto pods = EchoPods({.own_process = true});
  auto pod = pods(0);
  auto other = pods(1);
  REQUIRE(pod.ok());
  REQUIRE(other.ok());
  Client client = MakeClient({.address = "127.0.0.1:" + std::to_string((*pod)->port())});
  // What the machine makes of a call that comes from sleep: plain gRPC where a thread waits, without callback threads that could
  // have fallen asleep, to a server of its own.
  const auto plain = v1::Echo::NewStub(
      grpc::CreateChannel("127.0.0.1:" + std::to_string((*other)->port()), grpc::InsecureChannelCredentials()));
  Waits calls, plain_calls;
  for (int call = 0; call < kCalls; ++call) {
    // Half of the pause before each of the two, so that the one does not find awake what the other woke.
    std::this_thread::sleep_for(500ms + std::chrono::milliseconds(call * 100 / kCalls));
    plain_calls.Time([&] {
      grpc::ClientContext context;
      v1::EchoResponse response;
      REQUIRE(plain->Unary(&context, v1::EchoRequest(), &response).ok());
    });
    std::this_thread::sleep_for(500ms + std::chrono::milliseconds(call * 100 / kCalls));
    calls.Time([&] { REQUIRE(client.CallAndWait(PENSTOCK_METHOD(v1::Echo, Unary), {}).ok()); });
  }
  MESSAGE("calls: ", calls.Text());
  MESSAGE("plain gRPC, waited for: ", plain_calls.Text());
  // Without the heartbeat, on either side, about 90 ms.
  CHECK(calls.At(0.99) < std::max(4'000us, 2 * plain_calls.At(0.99)));
}

}  // namespace penstock::test
