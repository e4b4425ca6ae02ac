// The ticket as a release build has it, whatever this build is.

#ifndef NDEBUG
#define NDEBUG
#endif

#include "support/breaker_fixture.h"

using namespace penstock;
using penstock_test::BreakerFixture;

TEST_CASE("B1: settling a ticket twice, or after it was moved from, does nothing in a release build") {
  BreakerFixture f;
  auto admission = f.breaker->Acquire();
  admission.ticket().Settle(Outcome::kFailure);
  admission.ticket().Settle(Outcome::kFailure);
  CHECK(f.breaker->counts().failures == 1);
  CircuitTicket kept = f.breaker->Acquire().TakeTicket();
  CircuitTicket moved = std::move(kept);
  kept.Settle(Outcome::kFailure);
  CHECK(f.breaker->counts().failures == 1);
  moved.Settle(Outcome::kFailure);
  CHECK(f.breaker->counts().failures == 2);
  CircuitTicket empty;
  empty.Settle(Outcome::kFailure);
}
