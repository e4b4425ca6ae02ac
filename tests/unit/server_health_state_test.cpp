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

}  // namespace
}  // namespace penstock::detail
