// A plugin with a breaker of its own and penstock's core linked into it: circuit_breaker_dlclose_test loads and unloads it.

#include <cstdint>
#include <memory>

#include "penstock/core/circuit_breaker.h"

namespace {

std::unique_ptr<penstock::CircuitBreaker>& Breaker() {
  static std::unique_ptr<penstock::CircuitBreaker> breaker = std::move(*penstock::CircuitBreaker::Create({}));
  return breaker;
}

}  // namespace

extern "C" [[gnu::visibility("default")]] std::uint64_t CallAndCount() {
  Breaker()->Acquire().ticket().Settle(penstock::Outcome::kSuccess);
  return Breaker()->totals().successes;
}
