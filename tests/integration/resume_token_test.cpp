// A subscription with a resume token, as docs/streams.md shows it, against a ledger whose streams keep ending.
#include <doctest/doctest.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "ledger/v1/ledger.grpc.pb.h"
#include "penstock/client/client.h"
#include "support/eventually.h"

using namespace std::chrono_literals;
using ledger::v1::Account;
using ledger::v1::WatchAccountRequest;
using penstock::test::Eventually;

namespace {

// Sends the versions after the one that is asked for, and ends each stream after seven of them as a shutdown does.
class ShortWatches final : public ledger::v1::Ledger::CallbackService {
 public:
  grpc::ServerWriteReactor<Account>* WatchAccount(grpc::CallbackServerContext*, const WatchAccountRequest* request) override {
    struct Reactor final : grpc::ServerWriteReactor<Account> {
      explicit Reactor(std::int64_t after) : last(after) { Next(); }
      void Next() {
        account.set_version(++last);
        StartWrite(&account);
      }
      void OnWriteDone(bool ok) override {
        if (!ok || ++sent == 7) {
          Finish({grpc::StatusCode::UNAVAILABLE, "server is shutting down"});
        } else {
          Next();
        }
      }
      void OnDone() override { delete this; }
      std::int64_t last;
      int sent = 0;
      Account account;
    };
    ++streams;
    return new Reactor(request->after_version());
  }
  std::atomic<int> streams{0};
};

void Log(const std::string& /*line*/) {}

// What one account was seen at; lives until its subscription has ended.
class Watched {
 public:
  penstock::Subscription Start(penstock::Client& ledger, const std::string& id) {
    WatchAccountRequest request;
    request.set_id(id);
    return ledger.Subscribe(PENSTOCK_METHOD(ledger::v1::Ledger, WatchAccount), request,
                            {.on_message = [this](Account& account) { Saw(account); },
                             .before_reopen = [this](WatchAccountRequest& again) { again.set_after_version(version_); },
                             .on_gap = [this](const penstock::Gap& gap) { return Between(gap); },
                             .on_end = [this](const penstock::CallResult& result) { Ended(result); }});
  }

 private:
  void Saw(const Account& account) {
    version_ = account.version();  // The resume token: what comes next begins after it.
    // ...
    versions_.push_back(version_);
    count_ = versions_.size();
  }
  // Before each opening but the first: whether it is to be.
  penstock::GapDecision Between(const penstock::Gap& gap) {
    if (gap.attempts == 0) Log("the watch is interrupted: " + gap.why.error_message());
    return gap.lasted < 10min ? penstock::GapDecision::kGoOn : penstock::GapDecision::kEnd;
  }
  void Ended(const penstock::CallResult& result) {
    result_ = result.status;
    ended_ = true;
  }

  std::int64_t version_ = 0;

 public:
  std::vector<std::int64_t> versions_;
  std::atomic<std::size_t> count_{0};
  grpc::Status result_;
  std::atomic<bool> ended_{false};
};

}  // namespace

TEST_CASE("S8: with a resume token nothing is lost and nothing repeated, however often the streams end") {
  ShortWatches service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.RegisterService(&service);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  const auto server = builder.BuildAndStart();
  auto ledger = penstock::Client::Create({.address = "127.0.0.1:" + std::to_string(port), .plaintext = true});
  REQUIRE(ledger.ok());

  Watched watched;
  penstock::Subscription subscription = watched.Start(*ledger, "7");
  REQUIRE(Eventually([&] { return watched.count_ >= 200; }));
  subscription.Cancel();
  REQUIRE(Eventually([&] { return watched.ended_.load(); }));
  CHECK(watched.result_.error_code() == grpc::StatusCode::CANCELLED);
  CHECK(service.streams >= 28);
  for (std::size_t i = 0; i < watched.versions_.size(); ++i) {
    REQUIRE(watched.versions_[i] == static_cast<std::int64_t>(i) + 1);
  }
  CHECK(ledger->circuit_state() == penstock::CircuitState::kClosed);
  server->Shutdown();
}
