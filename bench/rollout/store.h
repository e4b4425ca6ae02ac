#pragma once

// The accounts, shared by all pods as a database would be, and those who watch them.
//
// Threads: every member may be called from any thread. Watchers are told under the store's lock: a watcher that unwatches
// itself in its last callback is told nothing after that.
// Ownership: a watcher unwatches itself before it is gone.

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "ledger/v1/ledger.pb.h"

namespace rollout {

class Watcher {
 public:
  virtual ~Watcher() = default;
  // Must not block, nor call the store.
  virtual void Changed(const ledger::v1::Account& account) = 0;
};

class Store {
 public:
  static constexpr int kAccounts = 16;
  static std::string IdOf(int number) { return "account-" + std::to_string(number % kAccounts); }

  Store() {
    for (int i = 0; i < kAccounts; ++i) {
      ledger::v1::Account account;
      account.set_id(IdOf(i));
      account.set_balance(1'000'000);
      account.set_version(1);
      accounts_[account.id()] = account;
    }
  }

  ledger::v1::Account Get(const std::string& id) {
    std::lock_guard lock(mutex_);
    return accounts_[id];
  }

  // A key that is known moves nothing.
  void Transfer(const ledger::v1::TransferRequest& request, ledger::v1::TransferResponse& response) {
    std::lock_guard lock(mutex_);
    auto& from = accounts_[request.from()];
    auto& to = accounts_[request.to()];
    response.set_repeated(!keys_.insert(request.idempotency_key()).second);
    if (!response.repeated()) {
      from.set_balance(from.balance() - request.amount());
      to.set_balance(to.balance() + request.amount());
      for (auto* account : {&from, &to}) {
        account->set_version(account->version() + 1);
        for (Watcher* watcher : watchers_[account->id()]) watcher->Changed(*account);
      }
    }
    *response.mutable_from() = from;
    *response.mutable_to() = to;
  }

  // Tells the account as it is, at once, if it is newer than that.
  void Watch(const std::string& id, std::int64_t after_version, Watcher& watcher) {
    std::lock_guard lock(mutex_);
    watchers_[id].insert(&watcher);
    if (accounts_[id].version() > after_version) watcher.Changed(accounts_[id]);
  }
  void Unwatch(const std::string& id, Watcher& watcher) {
    std::lock_guard lock(mutex_);
    watchers_[id].erase(&watcher);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, ledger::v1::Account> accounts_;
  std::map<std::string, std::set<Watcher*>> watchers_;
  std::set<std::string> keys_;
};

}  // namespace rollout
