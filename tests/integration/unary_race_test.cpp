// The long form of a race that unary_ends_test runs shortly.

#include "support/unary_race.h"

#include <doctest/doctest.h>

namespace penstock::test {

TEST_CASE("L9: of 100,000 calls whose deadline and answer race each completes once") { RaceAnswersWithDeadlines(100'000); }

}  // namespace penstock::test
