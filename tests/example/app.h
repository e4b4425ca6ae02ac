#pragma once

// What an app does with the wallet, and how a test waits for it.

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "penstock/client/client.h"
#include "penstock/client/stream.h"
#include "support/eventually.h"
#include "wallet/v1/wallet.grpc.pb.h"

namespace penstock::test {

using namespace std::chrono_literals;
using ::wallet::v1::Balance;
using ::wallet::v1::Refusal;
using ::wallet::v1::Wallet;

// Watches an account through the wallet, and notes whether the watch ever ends.
class Watcher final : public ClientReadReactor<Balance> {
 public:
  std::int64_t version() const { return version_; }
  bool ended() const { return ended_; }
  const grpc::Status& status() const { return status_; }

 private:
  void OnOpened() override { (void)StartRead(&balance_); }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    version_ = balance_.version();
    (void)StartRead(&balance_);
  }
  void OnDone(const CallResult& result) override {
    status_ = result.status;
    ended_ = true;
  }

  Balance balance_;
  std::atomic<std::int64_t> version_{0};
  std::atomic<bool> ended_{false};
  grpc::Status status_;
};

inline ::wallet::v1::PayRequest Payment(const std::string& id, std::int64_t amount) {
  ::wallet::v1::PayRequest pay;
  pay.set_payment_id(id);
  pay.set_from("alice");
  pay.set_to("bob");
  pay.set_amount(amount);
  return pay;
}

inline Refusal::Reason ReasonOf(const grpc::Status& status) {
  ::wallet::v1::StatusDetails details;
  Refusal refusal;
  if (!details.ParseFromString(status.error_details()) || details.details_size() != 1 || !details.details(0).UnpackTo(&refusal)) {
    return Refusal::REASON_UNSPECIFIED;
  }
  return refusal.reason();
}

}  // namespace penstock::test
