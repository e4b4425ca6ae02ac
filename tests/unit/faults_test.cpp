#include "penstock/faults.h"

#include <doctest/doctest.h>

#include <string>
#include <thread>
#include <vector>

using namespace penstock;
using namespace std::chrono_literals;

namespace {

constexpr std::string_view kMethod = "/ledger.v1.Ledger/Transfer";
const std::string kPoint = "grpc:ledger.v1.Ledger/Transfer";

std::string Baggage(const std::string& settings) { return "penstock.fault=" + kPoint + "?" + settings; }

}  // namespace

TEST_CASE("F1: a scenario names points, each with an abort, a delay, a percentage and a count") {
  const auto scenario =
      FaultScenario::Parse("grpc:a.B/C?abort|grpc:D/E?delay=2s&abort=NOT_FOUND&percent=12.5&count=3&run=again-2");
  REQUIRE(scenario.ok());
  REQUIRE(scenario->points().size() == 2);
  CHECK(scenario->points()[0] == FaultPoint{"grpc:a.B/C", grpc::StatusCode::UNAVAILABLE, Duration{}, 1'000'000, 0});
  CHECK(scenario->points()[1] == FaultPoint{"grpc:D/E", grpc::StatusCode::NOT_FOUND, 2s, 125'000, 3});
  CHECK(scenario->Find("grpc:D/E") == &scenario->points()[1]);
  CHECK(scenario->Find("grpc:D/F") == nullptr);
}

TEST_CASE("F1: the bounds of a scenario's numbers, at them and beyond") {
  struct Case {
    std::string settings;
    bool good;
  };
  const std::vector<Case> cases = {
      {"abort&percent=0", true},
      {"abort&percent=100", true},
      {"abort&percent=100.0000", true},
      {"abort&percent=0.0001", true},
      {"abort&percent=100.0001", false},
      {"abort&percent=101", false},
      {"abort&percent=-1", false},
      {"abort&percent=NaN", false},
      {"abort&percent=nan", false},
      {"abort&percent=abc", false},
      {"abort&percent=", false},
      {"abort&percent", false},
      {"abort&percent=1e1", false},
      {"abort&percent=.5", false},
      {"abort&percent=5.", false},
      {"abort&percent=0.00001", false},
      {"abort&percent=+5", false},
      {"abort&percent= 5", false},
      {"abort&percent=inf", false},
      {"abort&percent=0x10", false},
      {"abort&percent=99999999999999999999", false},
      {"delay=1ms", true},
      {"delay=3600s", true},
      {"delay=3600000ms", true},
      {"delay=3601s", false},
      {"delay=3600001ms", false},
      {"delay=0ms", false},
      {"delay=0s", false},
      {"delay=-1", false},
      {"delay=-1ms", false},
      {"delay=9223372036854775807", false},
      {"delay=9223372036854775807ms", false},
      {"delay=9223372036854775808s", false},
      {"delay=1e309", false},
      {"delay=1e309ms", false},
      {"delay=1", false},
      {"delay=ms", false},
      {"delay=s", false},
      {"delay", false},
      {"delay=1.5s", false},
      {"delay=1m", false},
      {"delay=1S", false},
      {"abort&count=1", true},
      {"abort&count=1000000000", true},
      {"abort&count=1000000001", false},
      {"abort&count=0", false},
      {"abort&count=-1", false},
      {"abort&count=18446744073709551616", false},
      {"abort&count", false},
      {"abort=OK", false},
      {"abort=", false},
      {"abort=unavailable", false},
      {"abort=14", false},
      {"abort=NO_SUCH_CODE", false},
      {"abort&abort", false},
      {"abort&percent=1&percent=1", false},
      {"percent=50", false},
      {"count=1", false},
      {"", false},
      {"abort&", false},
      {"&abort", false},
      {"abort&&delay=1s", false},
      {"abort&what=1", false},
      {"abort&run=a", true},
      {"abort&run=", false},
      {"abort&run=a b", false},
      {"abort&run=" + std::string(64, 'a'), true},
      {"abort&run=" + std::string(65, 'a'), false},
      {"Abort", false},
      {"abort?delay=1s", false},
  };
  for (const Case& one : cases) {
    CAPTURE(one.settings);
    CHECK(FaultScenario::Parse(kPoint + "?" + one.settings).ok() == one.good);
  }
}

TEST_CASE("F1: every other malformed form of a scenario is an error that says what was expected") {
  std::string many = "grpc:s/m0?abort";
  for (int i = 1; i < 65; ++i) many += "|grpc:s/m" + std::to_string(i) + "?abort";
  const std::vector<std::string> cases = {"",
                                          "|",
                                          kPoint,
                                          "ledger.v1.Ledger/Transfer?abort",
                                          "http:a/b?abort",
                                          "grpc:?abort",
                                          "grpc:a?abort",
                                          "grpc:a/?abort",
                                          "grpc:/b?abort",
                                          "grpc:a/b/c?abort",
                                          "grpc:a/*?abort",
                                          "grpc:a b/c?abort",
                                          kPoint + "?abort|",
                                          "|" + kPoint + "?abort",
                                          kPoint + "?abort|" + kPoint + "?delay=1s",
                                          many,
                                          kPoint + "?abort&run=" + std::string(5000, 'a'),
                                          std::string("grpc:a\0/b?abort", 15)};
  for (const std::string& bad : cases) {
    CAPTURE(bad);
    const auto parsed = FaultScenario::Parse(bad);
    REQUIRE_FALSE(parsed.ok());
    CHECK_FALSE(parsed.error().message().empty());
    CHECK(parsed.error().message().size() < 300);
  }
  CHECK(FaultScenario::Parse(many.substr(0, many.rfind('|'))).ok());
}

TEST_CASE("F2: an injected fault has the scenario's delay and status, and can be told from a server's") {
  FaultInjector injector;
  const Fault fault = injector.Evaluate(kMethod, "tenant=7," + Baggage("abort=RESOURCE_EXHAUSTED&delay=250ms"));
  CHECK(fault.delay == 250ms);
  REQUIRE(fault.abort.has_value());
  CHECK(fault.abort->error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  CHECK(IsInjected(*fault.abort));
  CHECK_FALSE(IsInjected(grpc::Status(grpc::StatusCode::UNAVAILABLE, "server is shutting down")));
  CHECK(injector.counts() == FaultCounts{1, 1, 0});
}

TEST_CASE("F2: no baggage, another method or another key strike nothing and count nothing") {
  FaultInjector injector;
  CHECK_FALSE(injector.Evaluate(kMethod, "").any());
  CHECK_FALSE(injector.Evaluate(kMethod, "tenant=7").any());
  CHECK_FALSE(injector.Evaluate("/ledger.v1.Ledger/GetAccount", Baggage("abort")).any());
  CHECK_FALSE(injector.Evaluate(kMethod, "penstock.faults=" + kPoint + "?abort").any());
  CHECK(injector.counts() == FaultCounts{});
}

TEST_CASE("F1: a scenario in which one point is malformed strikes at no point, and is counted") {
  FaultInjector injector;
  CHECK_FALSE(injector.Evaluate(kMethod, Baggage("abort|grpc:other/Method?percent=101")).any());
  CHECK(injector.counts() == FaultCounts{0, 0, 1});
  CHECK(injector.last_problem().find("grpc:other/Method") != std::string::npos);
  CHECK_FALSE(injector.Evaluate(kMethod, Baggage("abort&percent=%zz")).any());
  CHECK_FALSE(injector.Evaluate(kMethod, Baggage("abort") + "," + Baggage("delay=1s")).any());
  CHECK(injector.counts() == FaultCounts{0, 0, 3});
  CHECK(injector.Evaluate(kMethod, Baggage("%61bort")).any());
}

TEST_CASE("F1: a percentage strikes that share of the attempts") {
  FaultInjector injector({.seed = 7});
  int struck = 0;
  for (int i = 0; i < 20'000; ++i) struck += injector.Evaluate(kMethod, Baggage("abort&percent=12.5")).any();
  // Six standard deviations of 20,000 draws at 1/8.
  CHECK(struck > 2500 - 281);
  CHECK(struck < 2500 + 281);
  for (int i = 0; i < 1000; ++i) CHECK_FALSE(injector.Evaluate(kMethod, Baggage("abort&percent=0")).any());
}

TEST_CASE("F1: a count strikes so often over all calls with this scenario, and another run begins anew") {
  FaultInjector injector;
  int struck = 0;
  for (int i = 0; i < 10; ++i) struck += injector.Evaluate(kMethod, Baggage("abort&count=3")).any();
  CHECK(struck == 3);
  for (int i = 0; i < 10; ++i) struck += injector.Evaluate(kMethod, Baggage("abort&count=3&run=2")).any();
  CHECK(struck == 6);
}

TEST_CASE("F1: two points of one scenario count apart") {
  FaultInjector injector;
  const std::string baggage = Baggage("abort&count=1|grpc:a/b?abort&count=1");
  CHECK(injector.Evaluate(kMethod, baggage).any());
  CHECK(injector.Evaluate("/a/b", baggage).any());
  CHECK_FALSE(injector.Evaluate(kMethod, baggage).any());
}

TEST_CASE("F1: a count is exact with four threads") {
  FaultInjector injector;
  std::atomic<int> struck{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) struck += injector.Evaluate(kMethod, Baggage("abort&count=777")).any();
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(struck == 777);
}

TEST_CASE("F1: only so many scenarios are remembered, the one used longest ago is forgotten") {
  FaultInjector injector;
  const auto one = [&](std::size_t run) {
    return injector.Evaluate(kMethod, Baggage("abort&count=1&run=" + std::to_string(run))).any();
  };
  for (std::size_t run = 0; run < FaultInjector::kRememberedScenarios; ++run) CHECK(one(run));
  CHECK_FALSE(one(0));  // now the latest
  CHECK(one(1000));     // drives out run 1
  CHECK_FALSE(one(0));
  CHECK(one(1));
}

TEST_CASE("F3: the scenario is not sent on, unless it is forwarded") {
  const std::string baggage = "a=b+c," + Baggage("abort") + ",d=1;p=2";
  CHECK(FaultInjector().Forwarded(baggage) == "a=b+c,d=1;p=2");
  CHECK(FaultInjector({.forward_scenario = true}).Forwarded(baggage) == baggage);
  CHECK(FaultInjector().Forwarded("a=1") == "a=1");
}
