#include "penstock/server/work_pool.h"

#include <doctest/doctest.h>

#include <atomic>
#include <limits>

namespace penstock {
namespace {

TEST_CASE("V5: a pool whose queue has no bound takes all work, and its destructor waits for what it took") {
  std::atomic<int> done{0};
  {
    WorkPool pool({.threads = 1, .max_waiting = std::numeric_limits<std::size_t>::max()});
    for (int i = 0; i < 1000; ++i) CHECK(pool.Submit([&] { ++done; }));
  }
  CHECK(done == 1000);
}

}  // namespace
}  // namespace penstock
