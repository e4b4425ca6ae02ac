// Calls that are far apart (suite slow).

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "penstock/client/client.h"
#include "support/client_calls.h"
#include "support/echo_pod.h"

namespace penstock::test {

TEST_CASE("L12: 200 calls 1.0 to 1.2 s apart to a penstock server in a process of its own are as fast as any") {
  auto pod = EchoPods({.own_process = true})(0);
  REQUIRE(pod.ok());
  Client client = MakeClient({.address = "127.0.0.1:" + std::to_string((*pod)->port())});
  std::vector<std::chrono::nanoseconds> took;
  for (int call = 0; call < 200; ++call) {
    std::this_thread::sleep_for(1000ms + std::chrono::milliseconds(call));
    const auto begin = std::chrono::steady_clock::now();
    REQUIRE(client.CallAndWait(PENSTOCK_METHOD(v1::Echo, Unary), {}).ok());
    took.push_back(std::chrono::steady_clock::now() - begin);
  }
  std::sort(took.begin(), took.end());
  MESSAGE("p50 ", took[100] / 1us, " us, p99 ", took[197] / 1us, " us, worst ", took[199] / 1us, " us");
  CHECK(took[197] < 4ms);  // Without the heartbeat, on either side, about 90.
}

}  // namespace penstock::test
