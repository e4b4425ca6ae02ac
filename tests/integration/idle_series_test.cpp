// Calls that are far apart (suite slow).

#include <algorithm>
#include <thread>
#include <vector>

#include "support/client_calls.h"
#include "support/echo_service.h"

namespace penstock::test {

TEST_CASE("L12: calls 1.0 to 1.2 s apart are as fast as any") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  std::vector<std::chrono::nanoseconds> took;
  for (int call = 0; call < 200; ++call) {
    std::this_thread::sleep_for(1000ms + std::chrono::milliseconds(call % 201));
    const auto begin = std::chrono::steady_clock::now();
    REQUIRE(client.CallAndWait(PENSTOCK_METHOD(v1::Echo, Unary), {}).ok());
    took.push_back(std::chrono::steady_clock::now() - begin);
  }
  std::sort(took.begin(), took.end());
  MESSAGE("p50 ", took[100] / 1us, " us, p99 ", took[197] / 1us, " us, worst ", took[199] / 1us, " us");
  CHECK(took[197] < 20ms);  // Under 4 ms on a machine that does nothing else; without the heartbeat about 90.
}

}  // namespace penstock::test
