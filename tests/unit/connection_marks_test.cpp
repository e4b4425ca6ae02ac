#include "client/connection_marks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <random>
#include <thread>

using namespace penstock;
using namespace penstock::detail;
using namespace std::chrono_literals;

namespace {

struct StoppedClock final : Clock {
  TimePoint Now() const noexcept override { return now; }
  TimePoint now{1h};
};

TransportText TextOf(std::string_view message) noexcept {
  if (message == "GOAWAY received") return TransportText::kGoaway;
  return message == "Socket closed" || message == "Broken pipe" ? TransportText::kBroken : TransportText::kNone;
}

// A breaker that counts and never opens, and marks with two callback threads.
struct Bench {
  explicit Bench(std::uint32_t late_answers = 1)
      : marks({.late_answers = late_answers,
               .clock = &clock,
               .text_of = &TextOf,
               .counted_late = [this] { ++counted_late; }}) {
    auto created = CircuitBreaker::Create({.trip = [](const Counts&) { return false; }});
    REQUIRE(created.ok());
    breaker = std::move(*created);
  }

  struct Attempt {
    std::uint64_t began = 0;
    CircuitTicket ticket;
  };
  Attempt Begin() {
    Admission admission = breaker->Acquire();
    REQUIRE(admission.admitted());
    return {marks.Begin(), admission.TakeTicket()};
  }
  std::vector<Attempt> Begin(int count) {
    std::vector<Attempt> attempts;
    for (int n = 0; n < count; ++n) attempts.push_back(Begin());
    return attempts;
  }
  void Succeed(Attempt& attempt, const void* connection) {
    if (marks.End(attempt.began)) marks.Answered(attempt.began, {connection});
    attempt.ticket.Settle(Outcome::kSuccess);
  }
  void Cancel(Attempt& attempt) {
    if (marks.End(attempt.began)) marks.Withdrawn();
    attempt.ticket.Settle(Outcome::kIgnored);
  }
  ConnectionMarks::Fate Fail(Attempt& attempt, const void* connection, std::string_view message = "down",
                             bool metadata = false) {
    const ConnectionMarks::Fate fate = marks.Broke(attempt.began, {connection}, message, metadata, attempt.ticket);
    CHECK(attempt.ticket.held() == (fate != ConnectionMarks::Fate::kHeld));
    if (fate == ConnectionMarks::Fate::kCounts) attempt.ticket.Settle(Outcome::kFailure);
    if (fate == ConnectionMarks::Fate::kIgnored) attempt.ticket.Settle(Outcome::kIgnored);
    return fate;
  }
  std::uint64_t failures() const { return breaker->totals().failures; }
  std::uint64_t ignored() const { return breaker->totals().ignored; }

  StoppedClock clock;
  std::unique_ptr<CircuitBreaker> breaker;
  std::atomic<int> counted_late = 0;  // told from any thread
  ConnectionMarks marks;
};

constexpr char kPlaces[8] = {};
constexpr const void* kOne = &kPlaces[0];
constexpr const void* kTwo = &kPlaces[1];
using Fate = ConnectionMarks::Fate;

}  // namespace

TEST_CASE("C10: a connection that dies under 64 attempts is one failure") {
  for (const char* message : {"Socket closed", "anything"}) {
    Bench bench;
    auto attempts = bench.Begin(64);
    CHECK(bench.Fail(attempts[0], kOne, message) == Fate::kCounts);
    for (int n = 1; n < 64; ++n) CHECK(bench.Fail(attempts[n], kOne, message) == Fate::kHeld);
    CHECK(bench.failures() == 1);
    CHECK(bench.ignored() == 63);
    CHECK(bench.marks.held() == 0);
    CHECK(bench.counted_late == 0);
  }
}

TEST_CASE("C10: one answer that had been read before the connection broke changes nothing, two say that it lives") {
  Bench bench;
  auto attempts = bench.Begin(8);
  bench.Fail(attempts[0], kOne);
  for (int n = 1; n < 5; ++n) CHECK(bench.Fail(attempts[n], kOne) == Fate::kHeld);
  bench.Succeed(attempts[5], kOne);
  CHECK(bench.failures() == 1);
  CHECK(bench.marks.held() == 4);
  SUBCASE("the rest breaks") {
    bench.Fail(attempts[6], kOne);
    bench.Fail(attempts[7], kOne);
    CHECK(bench.failures() == 1);
    CHECK(bench.ignored() == 6);
  }
  SUBCASE("another is answered") {
    bench.Succeed(attempts[6], kOne);
    CHECK(bench.failures() == 5);
    CHECK(bench.counted_late == 4);
    CHECK(bench.marks.marks() == 0);
    CHECK(bench.Fail(attempts[7], kOne) == Fate::kCounts);
  }
}

TEST_CASE("C10: an attempt that began after the mark and is answered proves that the connection lives") {
  Bench bench;
  auto attempts = bench.Begin(4);
  bench.Fail(attempts[0], kOne);
  bench.Fail(attempts[1], kOne);
  auto later = bench.Begin();
  bench.Succeed(later, kOne);
  CHECK(bench.failures() == 2);
  CHECK(bench.marks.marks() == 0);
}

TEST_CASE("C10: other messages, and metadata, say that a server answered") {
  Bench bench(0);
  auto attempts = bench.Begin(6);
  bench.Fail(attempts[0], kOne, "down");
  bench.Fail(attempts[1], kOne, "down");
  SUBCASE("another message") { CHECK(bench.Fail(attempts[2], kOne, "overloaded") == Fate::kCounts); }
  SUBCASE("one of gRPC's own, where the first was none") { CHECK(bench.Fail(attempts[2], kOne, "Socket closed") == Fate::kCounts); }
  SUBCASE("metadata") { CHECK(bench.Fail(attempts[2], kOne, "down", true) == Fate::kCounts); }
  CHECK(bench.failures() == 3);
  // Two of gRPC's own messages for one break are alike.
  CHECK(bench.Fail(attempts[3], kTwo, "Socket closed") == Fate::kCounts);
  CHECK(bench.Fail(attempts[4], kTwo, "Broken pipe") == Fate::kHeld);
  CHECK(bench.failures() == 4);
}

TEST_CASE("C10: what other connections do is not held against this one, nor for it") {
  Bench bench;
  auto attempts = bench.Begin(6);
  bench.Fail(attempts[0], kOne);
  CHECK(bench.Fail(attempts[1], kTwo) == Fate::kCounts);
  bench.Succeed(attempts[2], kTwo);
  CHECK(bench.Fail(attempts[3], kOne) == Fate::kHeld);
  CHECK(bench.Fail(attempts[4], kOne) == Fate::kHeld);
  // A cancelled attempt says nothing of its connection, but ends the wait for it.
  CHECK(bench.marks.held() == 2);
  bench.Cancel(attempts[5]);
  CHECK(bench.marks.held() == 0);
  CHECK(bench.failures() == 2);
}

TEST_CASE("C10, S7: attempts that meet a GOAWAY count nothing, however many others the leaving connection still answers") {
  Bench bench;
  auto attempts = bench.Begin(64);
  for (int n = 0; n < 10; ++n) CHECK(bench.Fail(attempts[n], kOne, "GOAWAY received") == Fate::kHeld);
  auto elsewhere = bench.Begin();
  bench.Succeed(elsewhere, kTwo);
  for (int n = 10; n < 63; ++n) bench.Succeed(attempts[n], kOne);
  CHECK(bench.marks.held() == 10);
  SUBCASE("and the last of them is answered") { bench.Succeed(attempts[63], kOne); }
  SUBCASE("and breaks with the connection") { CHECK(bench.Fail(attempts[63], kOne, "Socket closed") == Fate::kHeld); }
  CHECK(bench.marks.held() == 0);
  CHECK(bench.failures() == 0);
}

TEST_CASE("C3: of the calls that one shutdown kills on a connection the first takes a token, and none that begins meanwhile") {
  Bench bench;
  auto attempts = bench.Begin(6);
  const auto killed = [&](Bench::Attempt& attempt, const void* connection) {
    attempt.ticket.Settle(Outcome::kIgnored);
    return bench.marks.Killed(attempt.began, {connection});
  };
  CHECK(killed(attempts[0], kOne));
  CHECK_FALSE(killed(attempts[1], kOne));
  CHECK(killed(attempts[2], kTwo));
  CHECK_FALSE(killed(attempts[3], kTwo));
  for (int n = 0; n < 40; ++n) {
    auto later = bench.Begin();
    CHECK_FALSE(killed(later, kOne));
  }
  bench.clock.now += 1s - 1ns;
  auto last = bench.Begin();
  CHECK_FALSE(killed(last, kOne));
  // A shutdown would have ended the connection by now: a server that lives, and says so of every call. Each takes a token.
  bench.clock.now += 1ns;
  for (int n = 0; n < 40; ++n) {
    auto later = bench.Begin();
    CHECK(killed(later, kOne));
  }
  // Without a connection there is none to share it with.
  CHECK(killed(attempts[4], nullptr));
  CHECK(killed(attempts[5], nullptr));
}

TEST_CASE("C10, S7: attempts that a channel gives to a leaving connection, before it has heard of the GOAWAY, count nothing") {
  Bench bench;
  auto attempts = bench.Begin(8);
  for (auto& attempt : attempts) CHECK(bench.Fail(attempt, kOne, "GOAWAY received") == Fate::kHeld);
  // One after the other, each begun when the one before had failed.
  for (int n = 0; n < 20; ++n) {
    auto late = bench.Begin();
    CHECK(bench.Fail(late, kOne, "GOAWAY received") == Fate::kHeld);
    bench.clock.now += 2ms;
  }
  CHECK(bench.failures() == 0);
  SUBCASE("then it has heard of it") {
    bench.clock.now += 1s;
    auto elsewhere = bench.Begin();
    bench.Succeed(elsewhere, kTwo);
    CHECK(bench.marks.held() == 0);
    CHECK(bench.failures() == 0);
  }
  SUBCASE("50 ms are too long for that: what begins after them convicts a server that sends the text itself") {
    bench.clock.now += 10ms;
    auto before = bench.Begin(2);
    CHECK(bench.Fail(before[0], kOne, "GOAWAY received") == Fate::kHeld);
    auto after = bench.Begin();
    CHECK(bench.Fail(before[1], kOne, "GOAWAY received") == Fate::kHeld);
    CHECK(bench.failures() == 0);
    CHECK(bench.Fail(after, kOne, "GOAWAY received") == Fate::kCounts);
    CHECK(bench.failures() == 23);
  }
}

TEST_CASE("C10: a server that sends gRPC's word for a GOAWAY itself is counted") {
  Bench bench;
  SUBCASE("one attempt at a time") {
    for (int n = 0; n < 20; ++n) {
      auto attempt = bench.Begin();
      bench.Fail(attempt, kOne, "GOAWAY received");
      bench.clock.now += 10ms;
    }
    CHECK(bench.failures() >= 9);
  }
  SUBCASE("of every second attempt, 64 at a time") {
    for (int round = 0; round < 4; ++round) {
      auto attempts = bench.Begin(64);
      for (int n = 0; n < 64; n += 2) bench.Fail(attempts[n], kOne, "GOAWAY received");
      for (int n = 1; n < 64; n += 2) bench.Succeed(attempts[n], kOne);
    }
    CHECK(bench.failures() >= 32);
  }
}

TEST_CASE("C10: one attempt at a time against a server that refuses, each counts") {
  Bench bench;
  for (int n = 1; n <= 20; ++n) {
    auto attempt = bench.Begin();
    CHECK(bench.Fail(attempt, kOne) == Fate::kCounts);
    CHECK(bench.failures() == static_cast<std::uint64_t>(n));
  }
}

TEST_CASE("C10: a server that refuses everything is counted about once a round trip of 64 attempts") {
  Bench bench;
  auto attempts = bench.Begin(64);
  for (int round = 1; round <= 10; ++round) {
    for (auto& attempt : attempts) {
      bench.Fail(attempt, kOne);
      attempt = bench.Begin();
    }
    CHECK(bench.failures() >= static_cast<std::uint64_t>(round));
    CHECK(bench.failures() <= static_cast<std::uint64_t>(2 * round));
  }
}

TEST_CASE("C10: a server that refuses every second of 64 attempts is counted for all of them") {
  Bench bench;
  auto attempts = bench.Begin(64);
  int refused = 0;
  for (int round = 0; round < 10; ++round) {
    for (std::size_t n = 0; n < attempts.size(); ++n) {
      if (n % 2 == 0) {
        bench.Fail(attempts[n], kOne);
        ++refused;
      } else {
        bench.Succeed(attempts[n], kOne);
      }
      attempts[n] = bench.Begin();
    }
  }
  CHECK(bench.failures() + bench.marks.held() == static_cast<std::uint64_t>(refused));
  CHECK(bench.marks.held() < 64);
  CHECK(bench.ignored() == 0);
}

TEST_CASE("C10: attempts that run into a connection just broken are its failure too") {
  Bench bench;
  auto attempts = bench.Begin(3);
  bench.Fail(attempts[0], kOne, "Socket closed");
  auto late = bench.Begin(5);
  for (auto& attempt : late) CHECK(bench.Fail(attempt, kOne, "Broken pipe") == Fate::kHeld);
  bench.Fail(attempts[1], kOne, "Socket closed");
  bench.Fail(attempts[2], kOne, "Socket closed");
  CHECK(bench.failures() == 1);
  CHECK(bench.ignored() == 2);
  SUBCASE("then there is no connection") {
    auto after = bench.Begin();
    CHECK(bench.Fail(after, nullptr, "failed to connect") == Fate::kCounts);
    CHECK(bench.ignored() == 7);
    CHECK(bench.failures() == 2);
  }
  SUBCASE("then a second passes") {
    bench.clock.now += 1s - 1ns;
    auto before = bench.Begin();
    bench.Succeed(before, kTwo);
    CHECK(bench.ignored() == 2);
    bench.clock.now += 1ns;
    auto after = bench.Begin();
    bench.Succeed(after, kTwo);
    CHECK(bench.ignored() == 7);
    CHECK(bench.failures() == 1);
  }
  SUBCASE("but it goes on refusing: a server that relays such messages") {
    auto after = bench.Begin();
    CHECK(bench.Fail(after, kOne, "Broken pipe") == Fate::kCounts);
    CHECK(bench.failures() == 7);
    CHECK(bench.counted_late == 5);
  }
  SUBCASE("but it answers") {
    auto after = bench.Begin();
    bench.Succeed(after, kOne);
    CHECK(bench.failures() == 6);
  }
}

TEST_CASE("C10: a server that relays a broken transport's message is counted no later than at every second attempt") {
  Bench bench;
  for (std::uint64_t n = 1; n <= 20; ++n) {
    auto attempt = bench.Begin();
    bench.Fail(attempt, kOne, "Socket closed");
    CHECK(bench.failures() + 1 >= n);
  }
}

TEST_CASE("C10: attempts that were given no connection count once for each failed connect") {
  Bench bench;
  const auto fail = [&] {
    auto attempt = bench.Begin();
    return bench.Fail(attempt, nullptr, "failed to connect");
  };
  CHECK(fail() == Fate::kCounts);
  for (int n = 0; n < 100; ++n) CHECK(fail() == Fate::kIgnored);
  // gRPC waits for 100 ms, then 160, 256, 409.6, 655.36, 1000, 1000, ..., each a fifth shorter at least.
  for (const Duration wait : {Duration(100ms), Duration(160ms), Duration(256ms), Duration(409'600us),
                              Duration(655'360us), Duration(1s), Duration(1s)}) {
    bench.clock.now += wait * 4 / 5 - 1ns;
    CHECK(fail() == Fate::kIgnored);
    bench.clock.now += 1ns;
    CHECK(fail() == Fate::kCounts);
    CHECK(fail() == Fate::kIgnored);
  }
  // Once connected, it begins again.
  auto attempt = bench.Begin();
  bench.Succeed(attempt, kOne);
  CHECK(fail() == Fate::kCounts);
  bench.clock.now += 80ms - 1ns;
  CHECK(fail() == Fate::kIgnored);
  bench.clock.now += 1ns;
  CHECK(fail() == Fate::kCounts);
}

TEST_CASE("C10: an attempt from before the break that was given no connection says nothing of those after it") {
  Bench bench;
  auto attempts = bench.Begin(2);
  bench.Fail(attempts[0], kOne, "Socket closed");
  auto late = bench.Begin();
  CHECK(bench.Fail(late, kOne, "Socket closed") == Fate::kHeld);
  bench.Fail(attempts[1], nullptr);
  CHECK(bench.marks.held() == 1);
}

TEST_CASE("C10: a connection that still takes attempts and refuses them is marked anew, with what it says then") {
  Bench bench;
  auto straggler = bench.Begin();  // Without its end nobody can say that the connection is dead.
  auto first = bench.Begin(2);
  CHECK(bench.Fail(first[0], kOne, "down") == Fate::kCounts);
  CHECK(bench.Fail(first[1], kOne, "down") == Fate::kHeld);
  auto second = bench.Begin(3);
  CHECK(bench.Fail(second[0], kOne, "busy") == Fate::kCounts);
  CHECK(bench.Fail(second[1], kOne, "busy") == Fate::kHeld);
  SUBCASE("an attempt from between the two marks is answered: it lives") {
    bench.Succeed(second[2], kOne);
    CHECK(bench.failures() == 4);
    CHECK(bench.marks.marks() == 0);
  }
  SUBCASE("one from between says what the first said: so it lives too") {
    CHECK(bench.Fail(second[2], kOne, "down") == Fate::kCounts);
    CHECK(bench.failures() == 5);
  }
  SUBCASE("all from before end without an answer: it is dead") {
    bench.Cancel(straggler);
    CHECK(bench.marks.held() == 2);
    bench.Cancel(second[2]);
    CHECK(bench.marks.held() == 0);
    CHECK(bench.failures() == 2);
    CHECK(bench.ignored() == 4);
  }
}

TEST_CASE("C10: attempts that run into a connection just broken are held again after it was marked anew") {
  Bench bench;
  auto straggler = bench.Begin();
  auto first = bench.Begin();
  bench.Fail(first, kOne, "down");
  auto second = bench.Begin(2);
  CHECK(bench.Fail(second[0], kOne, "Socket closed") == Fate::kHeld);
  auto third = bench.Begin();
  CHECK(bench.Fail(third, kOne, "Socket closed") == Fate::kCounts);
  CHECK(bench.failures() == 3);
  // Alike, since both are gRPC's own texts.
  CHECK(bench.Fail(second[1], kOne, "Broken pipe") == Fate::kHeld);
  auto fourth = bench.Begin();
  CHECK(bench.Fail(fourth, kOne, "Socket closed") == Fate::kHeld);
}

TEST_CASE("C10: only what began before the mark is waited for, and any end of it will do") {
  for (const bool answered : {false, true}) {
    Bench bench;
    auto attempts = bench.Begin(3);
    bench.Fail(attempts[0], kOne);
    auto later = bench.Begin();
    CHECK(bench.Fail(attempts[1], kOne) == Fate::kHeld);
    CHECK(bench.marks.held() == 1);
    answered ? bench.Succeed(attempts[2], kTwo) : bench.Cancel(attempts[2]);
    CHECK(bench.marks.held() == 0);
    CHECK(bench.failures() == 1);
  }
}

TEST_CASE("C10: who comes last to a connection that is known to be dead already is let go with the others") {
  Bench bench;
  auto attempts = bench.Begin(3);
  bench.marks.End(attempts[2].began);  // The first half of Broke(): its end is counted, and another thread is quicker to the mutex.
  CHECK(bench.Fail(attempts[0], &bench) == Fate::kCounts);
  CHECK(bench.Fail(attempts[1], &bench) == Fate::kHeld);
  CHECK(bench.ignored() == 1);
  CHECK(bench.Fail(attempts[2], &bench) == Fate::kHeld);
  CHECK(bench.marks.held() == 0);
  CHECK(bench.ignored() == 2);
}

TEST_CASE("C10: no more than 4,096 attempts are held for a connection, the others are ignored at once") {
  Bench bench;
  auto attempts = bench.Begin(4'200);
  std::map<Fate, int> fates;
  for (auto& attempt : attempts) ++fates[bench.Fail(attempt, kOne)];
  CHECK(fates[Fate::kCounts] == 1);
  CHECK(fates[Fate::kHeld] == 4'096);
  CHECK(fates[Fate::kIgnored] == 103);
  CHECK(bench.ignored() == 4'199);
}

TEST_CASE("C10: a probe is settled at once, whatever its connection does") {
  Bench bench;
  auto created = CircuitBreaker::Create({.consecutive_failures = 1, .open_for = 1ns, .probes = 3});
  REQUIRE(created.ok());
  CircuitBreaker& breaker = **created;
  breaker.Acquire().TakeTicket().Settle(Outcome::kFailure);
  std::vector<Bench::Attempt> probes;
  for (int n = 0; n < 3; ++n) {
    Admission admission = breaker.Acquire();
    REQUIRE(admission.admitted());
    probes.push_back({bench.marks.Begin(), admission.TakeTicket()});
    REQUIRE(probes.back().ticket.is_probe());
  }
  for (auto& probe : probes) CHECK(bench.Fail(probe, kOne, "Socket closed") == Fate::kCounts);
  auto after = bench.Begin();
  bench.Fail(after, nullptr);
  Admission admission = breaker.Acquire();
  if (admission.admitted()) {
    Bench::Attempt probe{bench.marks.Begin(), admission.TakeTicket()};
    CHECK(bench.Fail(probe, nullptr) == Fate::kCounts);
  }
}

TEST_CASE("C10: more breaks than there are epochs and marks are told apart as far as it goes, and nothing is lost") {
  Bench bench;
  std::array<char, 100> places{};
  std::vector<Bench::Attempt> stragglers;
  for (char& place : places) {
    stragglers.push_back(bench.Begin());
    auto pair = bench.Begin(2);
    bench.Fail(pair[0], &place);
    bench.Fail(pair[1], &place);
  }
  CHECK(bench.marks.marks() <= 16);
  for (auto& straggler : stragglers) bench.Cancel(straggler);
  CHECK(bench.marks.held() == 0);
  CHECK(bench.failures() + bench.ignored() == 300);
  CHECK(bench.failures() >= 100);
}

TEST_CASE("C10: in any order of ends every ticket is settled once, and a quiet end holds nothing") {
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (int run = 0; run < 300; ++run) {
    Bench bench(random() % 3);
    std::vector<Bench::Attempt> running;
    std::uint64_t begun = 0;
    for (int step = 0; step < 400; ++step) {
      if (running.empty() || random() % 2 == 0) {
        running.push_back(bench.Begin());
        ++begun;
        continue;
      }
      std::swap(running[random() % running.size()], running.back());
      Bench::Attempt attempt = std::move(running.back());
      running.pop_back();
      const void* const connection = random() % 4 == 0 ? nullptr : &kPlaces[random() % 3];
      const char* const messages[] = {"down", "Socket closed", "Broken pipe", "busy"};
      switch (random() % 5) {
        case 0:
          bench.Succeed(attempt, connection);
          break;
        case 1:
          bench.Cancel(attempt);
          break;
        default:
          bench.Fail(attempt, connection, messages[random() % 4], random() % 16 == 0);
      }
      bench.clock.now += std::chrono::milliseconds(random() % 50);
    }
    for (auto& attempt : running) bench.Cancel(attempt);
    bench.clock.now += 2s;
    auto last = bench.Begin();
    ++begun;
    bench.Cancel(last);
    REQUIRE(bench.marks.held() == 0);
    const CircuitTotals totals = bench.breaker->totals();
    REQUIRE(totals.successes + totals.failures + totals.ignored == begun);
  }
}

TEST_CASE("C10: threads that begin and end attempts while connections break lose none") {
  Bench bench;
  std::atomic<std::uint64_t> begun{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937 random(static_cast<unsigned>(thread));
      for (int step = 0; step < 5'000; ++step) {
        Admission admission = bench.breaker->Acquire();
        CircuitTicket ticket = admission.TakeTicket();
        const std::uint64_t began = bench.marks.Begin();
        ++begun;
        const ConnectionMarks::Connection connection{&kPlaces[random() % 4]};
        if (random() % 8 != 0) {
          if (bench.marks.End(began)) bench.marks.Answered(began, connection);
          ticket.Settle(Outcome::kSuccess);
          continue;
        }
        switch (bench.marks.Broke(began, connection, "Socket closed", false, ticket)) {
          case Fate::kCounts:
            ticket.Settle(Outcome::kFailure);
            break;
          case Fate::kIgnored:
            ticket.Settle(Outcome::kIgnored);
            break;
          case Fate::kHeld:
            break;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  bench.clock.now += 2s;
  auto last = bench.Begin();
  bench.Cancel(last);
  CHECK(bench.marks.held() == 0);
  const CircuitTotals totals = bench.breaker->totals();
  CHECK(totals.successes + totals.failures + totals.ignored == begun + 1);
}
