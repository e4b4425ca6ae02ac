#include <doctest/doctest.h>

#include "server/shutdown_plan.h"

namespace penstock::detail {
namespace {

using namespace std::chrono_literals;
using State = ShutdownPlan::State;

const TimePoint kStart{std::chrono::hours(1)};

ShutdownView View(TimePoint now, std::optional<int> connections, std::uint64_t in_flight) {
  return {now, connections, in_flight, in_flight};
}

bool Nothing(const ShutdownActions& actions) {
  return !actions.start_drain && !actions.start_grace && !actions.stop_listening && !actions.send_goaways &&
         !actions.end_streams && !actions.stop && !actions.abandon;
}

// A plan whose drain is over at kStart.
ShutdownPlan Leaving(ShutdownOrder order = ShutdownOrder::kServeToTheEnd) {
  ShutdownPlan plan(order, 500ms);
  CHECK(plan.Begin().start_drain);
  const ShutdownActions actions = plan.DrainOver(kStart);
  CHECK(actions.start_grace);
  CHECK(actions.send_goaways == (order == ShutdownOrder::kServeToTheEnd));
  CHECK(actions.stop_listening == (order == ShutdownOrder::kStopFirst));
  CHECK(actions.end_streams == (order == ShutdownOrder::kStopFirst));
  return plan;
}

// One whose streams have been ended, at kStart + 500 ms.
ShutdownPlan Emptying() {
  ShutdownPlan plan = Leaving();
  CHECK(plan.Tick(View(kStart + 500ms, 3, 7)).end_streams);
  CHECK(plan.state() == State::kEmptying);
  return plan;
}

TEST_CASE("V3: the drain comes first, once, and does nothing but wait") {
  ShutdownPlan plan(ShutdownOrder::kServeToTheEnd, 500ms);
  CHECK(Nothing(plan.DrainOver(kStart)));  // before the shutdown began
  CHECK_FALSE(plan.ticking());
  const ShutdownActions actions = plan.Begin();
  CHECK(actions.start_drain);
  CHECK_FALSE(actions.send_goaways);
  CHECK_FALSE(actions.end_streams);
  CHECK(Nothing(plan.Begin()));
  CHECK(Nothing(plan.Tick(View(kStart + 1h, 0, 0))));
  CHECK(plan.state() == State::kDraining);
}

TEST_CASE("V3: GOAWAY goes out at every tick while streams live on for the handshake window, whatever is connected") {
  ShutdownPlan plan = Leaving();
  for (const auto after : {0ms, 10ms, 499ms}) {
    const ShutdownActions actions = plan.Tick(View(kStart + after, 0, 0));
    CHECK(actions.send_goaways);
    CHECK_FALSE(actions.end_streams);
    CHECK_FALSE(actions.stop);
  }
  const ShutdownActions actions = plan.Tick(View(kStart + 500ms, 3, 7));
  CHECK(actions.end_streams);
  CHECK(actions.send_goaways);
  CHECK_FALSE(actions.stop);
}

TEST_CASE("V3: it stops as the last connection leaves, and not while one is left") {
  ShutdownPlan plan = Emptying();
  const ShutdownActions still = plan.Tick(View(kStart + 600ms, 1, 2));
  CHECK(still.send_goaways);
  CHECK_FALSE(still.end_streams);
  CHECK_FALSE(still.stop);
  CHECK(plan.Tick(View(kStart + 610ms, 0, 0)).stop);
  CHECK(plan.state() == State::kStopping);
  CHECK(Nothing(plan.Tick(View(kStart + 10min, 0, 5))));  // coming down has time until the grace's end
  plan.Stopped();
  CHECK_FALSE(plan.abandoned());
}

TEST_CASE("V3: it stops after 2 s in which nothing was in flight, counted anew by every call") {
  ShutdownPlan plan = Emptying();
  CHECK_FALSE(plan.Tick(View(kStart + 1s, 1, 0)).stop);
  CHECK_FALSE(plan.Tick(View(kStart + 2990ms, 1, 0)).stop);
  CHECK_FALSE(plan.Tick(View(kStart + 2995ms, 1, 1)).stop);
  CHECK_FALSE(plan.Tick(View(kStart + 3s, 1, 0)).stop);
  CHECK_FALSE(plan.Tick(View(kStart + 4999ms, std::nullopt, 0)).stop);
  CHECK(plan.Tick(View(kStart + 5s, std::nullopt, 0)).stop);
  CHECK_FALSE(plan.abandoned());
}

TEST_CASE("V3: a call that came and went between two looks is one, too") {
  ShutdownPlan plan = Emptying();
  const auto look = [&](Duration after, std::uint64_t started) {
    return plan.Tick({.now = kStart + after, .connections = 1, .in_flight = 0, .unanswered = 0, .started = started}).stop;
  };
  CHECK_FALSE(look(1s, 7));
  CHECK_FALSE(look(2990ms, 8));
  CHECK_FALSE(look(3s, 8));
  CHECK_FALSE(look(4980ms, 8));
  CHECK_FALSE(look(4985ms, 9));
  CHECK_FALSE(look(6984ms, 9));
  CHECK(look(6985ms, 9));
  CHECK_FALSE(plan.abandoned());
}

TEST_CASE("V3: the grace's end ends streams that were not, waits 100 ms for that, and abandons what is in flight") {
  ShutdownPlan plan = Leaving();
  const ShutdownActions actions = plan.Expire(kStart + 200ms);
  CHECK(actions.end_streams);
  CHECK_FALSE(actions.stop);
  CHECK(Nothing(plan.Expire(kStart + 210ms)));
  CHECK(Nothing(plan.Tick(View(kStart + 299ms, 1, 4))));
  CHECK(plan.Tick(View(kStart + 300ms, 1, 4)).stop);
  CHECK(plan.abandoned());
}

TEST_CASE("V2: an answer that its client never read is no failure") {
  ShutdownPlan plan = Emptying();
  plan.Expire(kStart + 15s);
  CHECK(plan.Tick({kStart + 15100ms, 1, 4, 0}).stop);
  CHECK_FALSE(plan.abandoned());
}

TEST_CASE("V2: a second signal ends the wait at once, in every state, and nothing in flight is no failure") {
  {
    ShutdownPlan plan(ShutdownOrder::kServeToTheEnd, 500ms);
    const ShutdownActions actions = plan.Expire(kStart);
    CHECK(actions.start_drain);  // health says so, whatever comes
    CHECK(actions.end_streams);
    CHECK(plan.Tick(View(kStart, 1, 0)).stop);
    CHECK_FALSE(plan.abandoned());
  }
  {
    ShutdownPlan plan(ShutdownOrder::kServeToTheEnd, 500ms);
    plan.Begin();
    CHECK(plan.Expire(kStart).end_streams);
    CHECK(Nothing(plan.DrainOver(kStart)));
    CHECK(plan.Tick(View(kStart, 1, 0)).stop);
  }
  {
    ShutdownPlan plan = Emptying();
    CHECK_FALSE(plan.Expire(kStart + 600ms).end_streams);
    CHECK(plan.Tick(View(kStart + 600ms, 1, 0)).stop);
    CHECK_FALSE(plan.abandoned());
  }
}

TEST_CASE("V3: a server that does not come down is abandoned 700 ms after the grace's end, and not before") {
  ShutdownPlan plan = Emptying();
  CHECK(plan.Tick(View(kStart + 600ms, 0, 1)).stop);
  CHECK(Nothing(plan.Tick(View(kStart + 14s, 0, 1))));
  CHECK(Nothing(plan.Expire(kStart + 15s)));
  CHECK(Nothing(plan.Tick(View(kStart + 15699ms, 0, 1))));
  CHECK(plan.Tick(View(kStart + 15700ms, 0, 1)).abandon);
  CHECK(plan.state() == State::kStopped);
  CHECK(plan.abandoned());
}

TEST_CASE("V3: the fallback order stops listening, ends the streams, waits for what is in flight and lingers 500 ms") {
  ShutdownPlan plan = Leaving(ShutdownOrder::kStopFirst);
  CHECK(Nothing(plan.Tick(View(kStart + 1s, 2, 3))));
  CHECK(Nothing(plan.Tick(View(kStart + 2s, 2, 0))));
  CHECK(plan.state() == State::kLingering);
  CHECK(Nothing(plan.Tick(View(kStart + 2499ms, 2, 0))));
  CHECK(plan.Tick(View(kStart + 2500ms, 2, 0)).stop);
  CHECK_FALSE(plan.abandoned());
}

}  // namespace
}  // namespace penstock::detail
