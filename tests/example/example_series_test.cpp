// The long series of the wallet and the ledger (suite slow).

#include <doctest/doctest.h>

#include "example/series.h"
#include "example/wallet_rollout.h"
#include "support/postgres.h"

namespace penstock::test {

TEST_CASE("S7, V4: in 50 rollouts of the ledger none of 8 and none of 64 watches ends, on SQLite, a handshake held or not") {
  for (const int watches : {8, 64}) {
    for (const bool hold : {false, true}) {
      Setting setting;
      RollOut(setting, watches, 50, hold);
    }
  }
}

TEST_CASE("S7, V4: in 50 rollouts of the ledger none of 8 and none of 64 watches ends, on PostgreSQL, a handshake held or not") {
  for (const int watches : {8, 64}) {
    for (const bool hold : {false, true}) {
      Postgres postgres;
      Setting setting(postgres.connection());
      RollOut(setting, watches, 50, hold);
    }
  }
}

TEST_CASE("S7, S8, V3: in 500 rollouts of the wallet no app's watch ends otherwise than with the server, nor does a subscription") {
  RollOutTheWallet(8, 300);
  RollOutTheWallet(64, 200);
}

TEST_CASE("C10: ledger and wallet are killed 200 times under load, and the money adds up, on SQLite") {
  Setting setting;
  KillUnderLoad(setting, 200);
}

TEST_CASE("C10: ledger and wallet are killed 200 times under load, and the money adds up, on PostgreSQL") {
  Postgres postgres;
  Setting setting(postgres.connection());
  KillUnderLoad(setting, 200);
}

}  // namespace penstock::test
