#include <penstock/core/circuit_breaker.h>
#include <penstock/core/retry_budget.h>

#include <cstdio>

int main() {
  auto breaker = penstock::CircuitBreaker::Create({.consecutive_failures = 2});
  auto budget = penstock::RetryBudget::Create({});
  if (!breaker.ok() || !budget.ok()) return 1;
  for (int i = 0; i < 2; ++i) {
    auto admission = (*breaker)->Acquire();
    if (!admission.admitted()) return 1;
    admission.ticket().Settle(penstock::Outcome::kFailure);
  }
  const bool open = (*breaker)->state() == penstock::CircuitState::kOpen && !(*breaker)->Acquire().admitted();
  std::puts(open ? "the breaker is open" : "the breaker is not open");
  return open && (*budget)->RetryAllowed() ? 0 : 1;
}
