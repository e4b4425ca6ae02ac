// Who asks the readiness monitors, and when; without a server.
#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "penstock/testing/manual_time.h"
#include "server/health.h"

namespace penstock::detail {
namespace {

class NeverReady final : public ReadinessMonitor {
 public:
  bool ready() const noexcept override { return false; }
  void Check(TimePoint, std::function<void(bool)> done) override { done(false); }
};

TEST_CASE("V8: a monitor's next check may fire while the server stops") {
  auto time = std::make_shared<testing::ManualTime>();
  std::vector<std::shared_ptr<ReadinessMonitor>> monitors;
  for (int i = 0; i < 8; ++i) monitors.push_back(std::make_shared<NeverReady>());
  std::weak_ptr<HealthState> last;
  for (int round = 0; round < 200; ++round) {
    auto state = std::make_shared<HealthState>(time, std::vector<std::string>{}, monitors,
                                               std::map<std::string, std::vector<std::shared_ptr<ReadinessMonitor>>>{});
    last = state;
    state->Start();
    REQUIRE(time->WaitForTimers(monitors.size()));
    std::atomic<bool> go{false};
    std::thread clock([&] {
      while (!go) std::this_thread::yield();
      time->Advance(std::chrono::seconds(1));
    });
    go = true;
    state->Stop();
    clock.join();
    CHECK(time->timers() == 0);
  }
}

TEST_CASE("V8: the empty name and `readiness` are one, whichever says so and whichever is asked") {
  HealthState state(std::make_shared<testing::ManualTime>(), {"ledger.v1.Ledger"}, {}, {});
  for (const char* said : {"", "readiness"}) {
    for (const char* taken_back : {"", "readiness"}) {
      CHECK(state.SetServing(said, false));
      for (const char* asked : {"", "readiness", "ledger.v1.Ledger"}) CHECK(state.Serving(asked) == false);
      CHECK(state.Serving("liveness") == true);
      CHECK(state.SetServing(taken_back, true));
      for (const char* asked : {"", "readiness", "ledger.v1.Ledger"}) CHECK(state.Serving(asked) == true);
    }
  }
  CHECK(state.SetServing("ledger.v1.Ledger", false));
  CHECK(state.Serving("readiness") == true);
  CHECK(state.Serving("ledger.v1.Ledger") == false);
  CHECK_FALSE(state.SetServing("ledger.v1.Leger", false));
}

}  // namespace
}  // namespace penstock::detail
