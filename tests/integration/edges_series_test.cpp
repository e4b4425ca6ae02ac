// The long series (suite slow): killed pods, exits, cancels.

#include "support/cancelled_delays.h"
#include "support/exits.h"
#include "support/killed_pods.h"

namespace penstock::test {

TEST_CASE("C10: 20 kills under 64 calls in flight") { KillUnderLoad(64, 20); }
TEST_CASE("C10: 20 kills under 256 calls in flight") { KillUnderLoad(256, 20); }
TEST_CASE("C10: 20 kills under 64 calls in flight, of pods that stay in the router for 500 ms") {
  KillUnderLoad(64, 20, 500ms, 20);
}
TEST_CASE("C10: 10 kills under 64 calls in flight, of pods that stay in the router for 2 s") {
  KillUnderLoad(64, 10, 2000ms, 40);
}

TEST_CASE("G7: a program exits 200 times with clients alive and calls in every state") { ExitAgainAndAgain(40); }

TEST_CASE("F2: a cancel during an injected delay ends the call in 50 ms") { CHECK(CancelDelayedCalls(200).back() < 50ms); }

}  // namespace penstock::test
