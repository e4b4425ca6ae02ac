#include "penstock/core/circuit_breaker.h"

#include <doctest/doctest.h>

using namespace penstock;

TEST_CASE("B3: the default policy trips at 5 failures in a row") {
  auto breaker = CircuitBreaker::Create();
  REQUIRE(breaker.ok());
  for (int i = 0; i < 5; ++i) {
    CHECK((*breaker)->state() == CircuitState::kClosed);
    (*breaker)->Acquire().ticket().Settle(Outcome::kFailure);
  }
  CHECK((*breaker)->state() == CircuitState::kOpen);
  CHECK_FALSE((*breaker)->Acquire().admitted());
}
