// Rollouts of the wallet, a few times.

#include "example/wallet_rollout.h"

namespace penstock::test {

TEST_CASE("S7, S8, V3: a rollout of the wallet ends its apps' watches as one of any server does, and their subscriptions go on") {
  RollOutTheWallet(8, 20);
  RollOutTheWallet(64, 5);
}

}  // namespace penstock::test
