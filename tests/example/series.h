#pragma once

// What happens to the wallet and the ledger again and again: a few times in CI, and as often as the rules ask in suite slow.

#include <fmt/format.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "example/setting.h"

namespace penstock::test {

// Replaces the ledger again and again while `watches` watches are open: none ends, each sees every rollout's payment.
inline void RollOut(Setting& setting, int watches, int rollouts, bool hold_a_handshake) {
  std::vector<std::unique_ptr<Watcher>> watchers;
  Client caller = setting.Caller();
  // Also where a check fails, no watcher goes before its watch.
  const std::unique_ptr<Client, void (*)(Client*)> closing(&caller, [](Client* client) { client->CloseAndWait(std::chrono::steady_clock::now() + 30s); });
  for (int i = 0; i < watches; ++i) {
    watchers.push_back(std::make_unique<Watcher>());
    ::wallet::v1::WatchBalanceRequest request;
    request.set_account("bob");
    caller.Open(PENSTOCK_METHOD(Wallet, WatchBalance), request, {}, *watchers.back());
  }
  const auto all_saw = [&](std::int64_t version) {
    return Eventually([&] {
      for (const auto& watcher : watchers) {
        if (watcher->ended()) return true;
        if (watcher->version() < version) return false;
      }
      return true;
    });
  };
  CHECK(all_saw(1));
  static int payments = 0;
  for (int rollout = 0; rollout < rollouts; ++rollout) {
    CAPTURE(rollout);
    std::optional<Silent> silent;
    if (hold_a_handshake) silent.emplace(setting.ledger().port);
    REQUIRE(setting.ReplaceLedger() == 0);
    const auto paid = caller.CallAndWait(PENSTOCK_METHOD(Wallet, Pay), Payment("rollout" + std::to_string(payments++), 1));
    REQUIRE_MESSAGE(paid.ok(), paid.result.status.error_message());
    const auto balance = caller.CallAndWait(PENSTOCK_METHOD(Wallet, GetBalance), [] {
      ::wallet::v1::GetBalanceRequest request;
      request.set_account("bob");
      return request;
    }());
    REQUIRE(balance.ok());
    CHECK(all_saw(balance.response.version()));
    for (const auto& watcher : watchers) REQUIRE_MESSAGE(!watcher->ended(), watcher->status().error_message());
  }
  CHECK(caller.CloseAndWait(std::chrono::steady_clock::now() + 30s));
  for (const auto& watcher : watchers) CHECK(watcher->ended());
  MESSAGE(rollouts << " rollouts under " << watches << " watches" << std::string(hold_a_handshake ? ", each with a handshake held" : ""));
}

// Four apps pay without a pause, each payment again until its outcome is known, while ledger and wallet are killed in turn.
inline void KillUnderLoad(Setting& setting, int kills) {
  std::atomic<bool> stop{false};
  std::atomic<int> acknowledged{0};
  std::mutex callers_mutex;
  auto caller = std::make_shared<Client>(setting.Caller(2s));
  std::vector<std::thread> payers;
  for (int payer = 0; payer < 4; ++payer) {
    payers.emplace_back([&, payer] {
      for (int i = 0; !stop; ++i) {
        const std::string id = fmt::format("p{}-{}", payer, i);
        // As an app does: the same payment again until its outcome is known.
        for (bool known = false; !known;) {
          std::shared_ptr<Client> now;
          {
            std::lock_guard lock(callers_mutex);
            now = caller;
          }
          const auto paid = now->CallAndWait(PENSTOCK_METHOD(Wallet, Pay), Payment(id, 1));
          known = paid.ok();
          if (known) ++acknowledged;
        }
      }
    });
  }
  std::mt19937 random(42);
  for (int i = 0; i < kills; ++i) {
    // After some payments, and at any moment of one.
    const int enough = acknowledged + static_cast<int>(random() % 20);
    CHECK(Eventually([&] { return acknowledged > enough; }));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 5000));
    if (i % 2 == 0) {
      setting.KillLedger();
      setting.StartLedger();
    } else {
      setting.wallet().Signal(SIGKILL);
      setting.wallet().WaitForExit();
      setting.StartWallet();
    }
  }
  // The last one's successor serves, too.
  const int enough = acknowledged + 20;
  CHECK(Eventually([&] { return acknowledged > enough; }));
  stop = true;
  for (auto& payer : payers) payer.join();
  const auto balance = [&](const std::string& account) {
    ::wallet::v1::GetBalanceRequest request;
    request.set_account(account);
    const auto answered = caller->CallAndWait(PENSTOCK_METHOD(Wallet, GetBalance), request);
    REQUIRE_MESSAGE(answered.ok(), answered.result.status.error_message());
    return answered.response.balance();
  };
  CHECK(balance("alice") + balance("bob") == 100000);
  CHECK(balance("bob") == acknowledged);
  MESSAGE(kills << " kills, " << acknowledged.load() << " payments acknowledged");
}

}  // namespace penstock::test
