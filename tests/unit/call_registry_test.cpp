// Who counts as a call that has not ended, when a client is closed and waited for.

#include "client/call_registry.h"

#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <thread>

namespace penstock::inline v0::detail {
namespace {

using namespace std::chrono_literals;

struct Call final : LiveCall {
  Call() { ResetReferences(1); }
  void Cancel(CancelReason) noexcept override { ++cancels; }
  void Unreferenced() noexcept override {}
  std::atomic<int> cancels{0};
};

struct Owner final : CallRegistry::Owner {
  void OnShardBusy() noexcept override {}
  void OnShardIdle() noexcept override {}
};

TimePoint In(Duration length) { return SteadyClock().Now() + length; }

// Runs the function on a thread whose calls are counted in the first shard, or in another one.
void RunOnShard(bool first, const std::function<void()>& function) {
  bool done = false;
  while (!done) {
    std::thread([&] {
      Owner owner;
      CallRegistry probe(owner);
      Call call;
      probe.Add(call);
      const std::uint32_t shard = probe.Remove(call);
      probe.Completed(shard);
      if ((shard == 0) != first) return;
      function();
      done = true;
    }).join();
  }
}

}  // namespace

TEST_CASE("L9: a wait for the end lasts until the calls have ended that completions made meanwhile") {
  for (int round = 0; round < 20; ++round) {
    Owner owner;
    CallRegistry registry(owner);
    Call last;
    Call made;
    std::uint32_t last_shard = 0;
    std::uint32_t made_shard = 0;
    RunOnShard(false, [&] { REQUIRE(registry.Add(last)); });
    REQUIRE(registry.Close());
    CHECK(last.cancels == 1);

    std::atomic<bool> idle{false};
    std::thread waiter([&] {
      CHECK(registry.WaitIdle(In(30s)));
      idle = true;
    });
    std::this_thread::sleep_for(1ms);  // Most often it has passed the first shard by then.
    RunOnShard(true, [&] {
      // The completion of `last` makes a call, which is refused, and will be told so.
      CHECK_FALSE(registry.Add(made));
      last_shard = registry.Remove(last);
      registry.Completed(last_shard);
      made_shard = registry.Remove(made);
    });
    CHECK(last_shard != made_shard);
    CHECK_FALSE(registry.WaitIdle(In(1ms)));
    CHECK_FALSE(idle);
    registry.Completed(made_shard);
    waiter.join();
    CHECK(registry.size() == 0);
  }
}

TEST_CASE("L9: a registry that is not closed is not idle, so a second closer waits for the first") {
  Owner owner;
  CallRegistry registry(owner);
  CHECK_FALSE(registry.WaitIdle(In(1ms)));
  std::thread closer([&] { registry.Close(); });
  CHECK(registry.WaitIdle(In(30s)));
  closer.join();
  CHECK_FALSE(registry.Close());
}

}  // namespace penstock::inline v0::detail
