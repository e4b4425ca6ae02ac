#pragma once

// Makes a dependency fail on purpose, for one request or for many.
//
// What a service does when a dependency is slow or away is seldom tried before it happens. A client that has a
// FaultInjector reads a scenario from the baggage of each call and plays it: the attempt is delayed, or ends with a
// status that no server sent. Retries, the breaker and telemetry see it as real. docs/failure-injection.md walks
// through it.
//
//     auto faults = std::make_shared<FaultInjector>();
//     Client::Create({.address = "ledger:9090", .plaintext = true, .faults = faults});
//     // and a request with the header
//     //   baggage: penstock.fault=grpc:ledger.v1.Ledger/Transfer?abort=UNAVAILABLE&percent=50
//
// A scenario is one or more points with `|` between them; a point is `grpc:<service>/<method>?` and settings with `&`
// between them, each at most once:
//
//     abort, abort=CODE   ends the attempt with this status; UNAVAILABLE where no code is named
//     delay=250ms, 2s     waits before anything else; 1 ms to 1 h, whole numbers
//     percent=12.5        how many of the attempts are struck; 0 to 100, up to four decimals; all where it is not said
//     count=3             how many at most, over all calls with exactly this scenario; 1 up; no limit where it is not said
//     run=NAME            means nothing: another name makes another scenario, whose count starts anew
//
// Threads: every member may be called from any thread.
// Ownership: an injector may serve any number of clients; each holds it.
// Time: a delay is waited on the client's clock, inside the call's timeout.
// Errors: a scenario that is not to the letter strikes nothing at all; it is counted, and told by last_problem().

#include <grpcpp/support/status.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "penstock/core/clock.h"
#include "penstock/core/result.h"

namespace penstock::inline v0 {

// The baggage member that holds a scenario.
inline constexpr std::string_view kFaultBaggageKey = "penstock.fault";

struct FaultPoint {
  std::string name;  // "grpc:package.Service/Method"
  std::optional<grpc::StatusCode> abort;
  Duration delay{};
  std::uint32_t millionths = 1'000'000;  // how many attempts in a million are struck
  std::uint64_t count = 0;               // 0: no limit

  friend bool operator==(const FaultPoint&, const FaultPoint&) = default;
};

class FaultScenario {
 public:
  static constexpr std::size_t kMostPoints = 64;
  static constexpr std::size_t kLongest = 4096;  // characters
  static constexpr Duration kLongestDelay = std::chrono::hours(1);

  // The error names the place and what is allowed there.
  static Result<FaultScenario> Parse(std::string_view text);

  const std::vector<FaultPoint>& points() const noexcept { return points_; }
  // Null: the scenario does not name it.
  const FaultPoint* Find(std::string_view name) const noexcept;

 private:
  std::vector<FaultPoint> points_;
};

// What strikes one attempt: first the delay, then the status instead of an RPC.
struct Fault {
  Duration delay{};
  std::optional<grpc::Status> abort;

  bool any() const noexcept { return delay > Duration::zero() || abort.has_value(); }
};

// Whether a status is one that an injector made, here or further down: it says so in its message. For a Classify that
// spares the breaker.
bool IsInjected(const grpc::Status& status) noexcept;

struct FaultSettings {
  // False: the scenario goes no further than this client. True: it is sent on with the call, for the clients behind the
  // next server.
  bool forward_scenario = false;
  // Where percentages begin to be drawn; 0: differently in each process.
  std::uint64_t seed = 0;
};

struct FaultCounts {
  std::uint64_t aborts = 0;
  std::uint64_t delays = 0;
  std::uint64_t bad_scenarios = 0;  // attempts whose scenario was malformed, or given twice

  friend bool operator==(const FaultCounts&, const FaultCounts&) = default;
};

class FaultInjector {
 public:
  // How many scenarios with a count are remembered; the one used longest ago is forgotten first, and its count begins
  // anew.
  static constexpr std::size_t kRememberedScenarios = 256;

  explicit FaultInjector(FaultSettings settings = {});
  FaultInjector(const FaultInjector&) = delete;
  FaultInjector& operator=(const FaultInjector&) = delete;

  // For one attempt at `method` ("/package.Service/Method") with this baggage header: what strikes it. Draws and
  // counts.
  Fault Evaluate(std::string_view method, std::string_view baggage);

  // The baggage header to send with the call: without the scenario, unless it is forwarded.
  std::string Forwarded(std::string_view baggage) const;

  FaultCounts counts() const noexcept;
  // Why the latest malformed scenario was ignored; empty: there was none.
  std::string last_problem() const;

 private:
  bool Draw(std::uint32_t millionths) noexcept;
  bool TakeOne(std::string_view scenario, const FaultPoint& point);
  Fault Bad(std::string problem);

  const FaultSettings settings_;
  // relaxed everywhere: statistics, and a stream of random numbers in which every place is as good as any.
  std::atomic<std::uint64_t> drawn_;
  std::atomic<std::uint64_t> aborts_{0};
  std::atomic<std::uint64_t> delays_{0};
  std::atomic<std::uint64_t> bad_scenarios_{0};

  using Taken = std::pair<std::string, std::uint64_t>;  // scenario and point, how often it struck
  mutable std::mutex mutex_;
  std::list<Taken> latest_first_;                                             // under mutex_
  std::unordered_map<std::string_view, std::list<Taken>::iterator> by_text_;  // under mutex_; keys live in the list
  std::string last_problem_;                                                  // under mutex_
};

}  // namespace penstock::inline v0
