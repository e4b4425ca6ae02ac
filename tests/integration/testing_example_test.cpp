// The example of docs/testing.md, which shows the part between the two marks: a team's tests of its own service and of
// the client that it calls another's with.
#include <doctest/doctest.h>

#include <atomic>
#include <string>
#include <string_view>
#include <thread>

#include "ledger/v1/ledger.grpc.pb.h"
#include "penstock/client/client.h"
#include "penstock/server/server.h"
#include "penstock/testing/certificates.h"
#include "penstock/testing/manual_time.h"
#include "penstock/testing/pods.h"
#include "penstock/testing/raw_peer.h"

namespace {

// --- begin
using namespace std::chrono_literals;
namespace testing = penstock::testing;

constexpr auto kGetAccount = PENSTOCK_METHOD(ledger::v1::Ledger, GetAccount);

// The service under test.
class LedgerService final : public penstock::Service<ledger::v1::Ledger> {
 public:
  grpc::ServerUnaryReactor* GetAccount(grpc::CallbackServerContext* context,
                                       const ledger::v1::GetAccountRequest* request,
                                       ledger::v1::Account* account) override {
    return Handle(context, [=] {
      account->set_id(request->id());
      return grpc::Status::OK;
    });
  }
};

TEST_CASE("a rollout of the ledger, over TLS, fails no call") {
  const testing::CertificateAuthority authority;
  const testing::Identity identity = authority.Issue();
  auto ledger = testing::Service::Create({.make_pod = [&](std::size_t) {
    penstock::ServerSettings settings;
    settings.tls = penstock::Tls{.certificate = identity.certificate, .key = identity.key};
    settings.drain = 50ms;
    return testing::MakeServerPod(std::move(settings), {std::make_shared<LedgerService>()});
  }});
  REQUIRE(ledger.ok());
  auto client = penstock::Client::Create(
      {.address = (*ledger)->address(), .tls = penstock::Tls{.roots = authority.certificate()}});
  REQUIRE(client.ok());

  std::atomic<bool> done{false};
  std::thread load([&] {
    while (!done) CHECK(client->CallAndWait(kGetAccount, {}).ok());
  });
  for (std::size_t pod = 0; pod < 3; ++pod) CHECK((*ledger)->Replace(pod).ok());
  done = true;
  load.join();
  CHECK(client->circuit_totals().entered_open == 0);
}

TEST_CASE("the breaker opens after five failures and closes again, without waiting for it") {
  auto broken = testing::RawPeer::Create({.answer = [](const testing::RawRequest&) {
    return testing::RawScript::Fail(grpc::StatusCode::UNAVAILABLE, "the disk is full");
  }});
  REQUIRE(broken.ok());
  const auto time = std::make_shared<testing::ManualTime>();
  auto client = penstock::Client::Create(
      {.address = (*broken)->address(), .plaintext = true, .max_attempts = 1, .time = time});
  REQUIRE(client.ok());

  for (int i = 0; i < 5; ++i) CHECK(client->CallAndWait(kGetAccount, {}).result.reason != penstock::EndReason::kRejected);
  CHECK(client->CallAndWait(kGetAccount, {}).result.reason == penstock::EndReason::kRejected);
  time->Advance(10s - 1ns);
  CHECK(client->CallAndWait(kGetAccount, {}).result.reason == penstock::EndReason::kRejected);
  time->Advance(1ns);
  (*broken)->SetAnswer([](const testing::RawRequest&) { return testing::RawScript::Ok(); });
  for (int i = 0; i < 3; ++i) CHECK(client->CallAndWait(kGetAccount, {}).ok());
  CHECK((*broken)->stats().requests == 8);
}

TEST_CASE("a call that fails is tried again after its backoff, when the test says so") {
  auto flaky = testing::RawPeer::Create({.answer = [](const testing::RawRequest& request) {
    return request.number == 1 ? testing::RawScript::Fail(grpc::StatusCode::UNAVAILABLE) : testing::RawScript::Ok();
  }});
  REQUIRE(flaky.ok());
  const auto time = std::make_shared<testing::ManualTime>();
  auto client = penstock::Client::Create({.address = (*flaky)->address(), .plaintext = true, .time = time});
  REQUIRE(client.ok());

  std::atomic<int> attempts{0};
  client->Call(kGetAccount, {}, {}, [&](const penstock::CallResult& result, ledger::v1::Account&) {
    attempts = static_cast<int>(result.attempts);
  });
  REQUIRE(time->WaitForTimer(time->Now() + 100ms));  // the backoff, at most its base; the call's timeout is 10 s away
  CHECK((*flaky)->stats().requests == 1);
  time->AdvanceToNext();
  CHECK((*flaky)->WaitUntil([](const testing::RawPeerStats& stats) { return stats.requests == 2; }));
  while (attempts == 0) std::this_thread::yield();
  CHECK(attempts == 2);
}
// --- end

}  // namespace
