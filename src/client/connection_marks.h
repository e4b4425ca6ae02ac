#pragma once

// One broken connection is one failure (behaviour.md C10), decided without gRPC.
//
// A connection that dies ends every attempt on it with UNAVAILABLE, which says one thing about the dependency, not
// sixty-four. But a live server that refuses sixty-four calls looks the same, attempt by attempt; only what the
// connection's other attempts come to tells the two apart. So the first failure on a connection counts and marks it,
// and those of attempts that had begun before are held back:
//
//   the last attempt from before the mark has ended    -> the connection was dead: the held ones are ignored
//   an attempt that began after the mark is answered   -> it lives: the mark goes, the held ones count
//   more attempts from before are answered than gRPC
//   may still have been delivering as it broke         -> it lives
//
// The last rule allows for answers that had been read before the connection broke and are told after it, by another
// callback thread. Attempts that begin between the break and gRPC's noticing it run into the dead connection too. They
// count, unless their message is one of gRPC's own for a broken transport: then they are held as well, until it is seen
// whether the connection still fails attempts that began after even those (a server that relays such messages does; a
// dead one is not picked again), or for a second.
//
// A connection that is going away fails what meets its GOAWAY and answers what is under way: that says nothing of the
// dependency. So the first such failure, known by gRPC's own text, is held as well, and answers to attempts from before the
// mark count for nothing; a server that sends that text itself is found out as one that relays the others is, but only by attempts
// that began 50 ms later: a channel picks a connection for a moment longer than it has been leaving.
//
// Attempts for which no connection was picked fail with what the last connect failed with, as long as gRPC waits before
// the next. One is counted for each such wait, which is reckoned here by gRPC's own rule (first, times 1.6 up to the
// highest, each varied by a fifth; taken at its shortest).
//
//     std::uint64_t began = marks.Begin();
//     if (marks.End(began)) marks.Answered(began, connection);
//
// Threads: every member may be called from any thread. Begin() and End() add to a counter of the thread's own line. The others
// take a mutex: Broke() and Killed() always, Answered() and Withdrawn() only where a connection was marked lately, since End() says
// when they are due.
// Ownership: holds on to the identity of a connection that was marked or on which calls were killed, so that its address is not used
// again, and to held tickets.
// Time: real time, since connections are.
// Errors: none. Bounded: 16 marks, with 4,096 tickets from before the mark and as many from after it; 16 connections with killed
// calls. The oldest makes room; a ticket beyond the bound is ignored.

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/core/circuit_breaker.h"
#include "penstock/core/clock.h"
#include "runtime/transport_text.h"

namespace penstock::inline v0::detail {

class ConnectionMarks {
 public:
  struct Settings {
    // As the connections' own.
    Duration reconnect_first = std::chrono::milliseconds(100);
    Duration reconnect_highest = std::chrono::seconds(1);
    // How many answers may be told after their connection's break was: one less than gRPC has callback threads.
    std::uint32_t late_answers = 1;
    const Clock* clock = &SteadyClock();
    // Which message of gRPC's own this is, if any.
    TransportText (*text_of)(std::string_view message) noexcept = [](std::string_view) noexcept { return TransportText::kNone; };
    // Called without any lock for each held ticket that was settled as a failure after all.
    std::function<void()> counted_late = [] {};
  };

  // What tells a connection from others; null where none was picked.
  struct Connection {
    const void* identity = nullptr;
    std::shared_ptr<const void> hold{};
  };

  enum class Fate : std::uint8_t {
    kCounts,   // The caller settles the ticket as a failure.
    kHeld,     // The ticket was taken.
    kIgnored,  // The caller settles the ticket as ignored.
  };

  explicit ConnectionMarks(Settings settings) : settings_(std::move(settings)) {}
  // Ignores what is still held.
  ~ConnectionMarks() = default;
  ConnectionMarks(const ConnectionMarks&) = delete;
  ConnectionMarks& operator=(const ConnectionMarks&) = delete;

  // An attempt begins. What it returns, never 0, says when.
  std::uint64_t Begin() noexcept;

  // It has ended. True: one of the next two has to be told as well.
  bool End(std::uint64_t began) noexcept;

  // After End() said so: it was answered on this connection, or ended in a way that says nothing of it (a
  // cancellation).
  void Answered(std::uint64_t began, const Connection& connection);
  void Withdrawn();

  // It has ended with UNAVAILABLE, counted as a failure; instead of End(). Answered with metadata it cannot be a broken
  // connection's.
  Fate Broke(std::uint64_t began, const Connection& connection, std::string_view message, bool has_metadata,
             CircuitTicket& ticket);

  // It was killed by a server that shuts down (C3); instead of End(). True for the first on its connection: it takes a token. The
  // others met the same shutdown, for as long as one can last; a connection that kills calls for longer lives, and each takes one.
  bool Killed(std::uint64_t began, const Connection& connection);

  // For tests.
  std::size_t marks() const;
  std::size_t held() const;

 private:
  static constexpr std::size_t kStripes = 16;
  static constexpr std::size_t kSlots = 16;
  static constexpr std::size_t kMostMarks = 16;
  static constexpr std::size_t kMostHeld = 4096;
  static constexpr Duration kLongestLate = std::chrono::seconds(1);
  // For how long a channel may go on picking a connection whose GOAWAY it has read: its picker is replaced on another thread.
  static constexpr Duration kStalePicker = std::chrono::milliseconds(50);
  // From the first call that a shutdown kills on a connection to the last: the GOAWAY ends it, a few milliseconds later.
  static constexpr Duration kLongestShutdown = std::chrono::seconds(1);

  using Tickets = std::vector<CircuitTicket>;

  struct Mark {
    Connection connection;
    std::string message;
    TransportText text = TransportText::kNone;
    std::uint64_t first = 0;       // the epoch that began with the first mark
    std::uint64_t epoch = 0;       // ... with the latest; those from before are waited for
    bool dead = false;             // all of them have ended
    std::uint32_t answered = 0;    // how many of them were answered
    Tickets held;                  // from before the mark
    Tickets late;                  // from after it, with a broken transport's message
    std::uint64_t late_epoch = 0;  // the epoch that began with the first of those; 0: none
    TimePoint late_since{};
    bool late_renewed = false;  // late_epoch has begun again, kStalePicker after late_since
  };

  struct Kill {
    Connection connection;
    TimePoint since{};
  };

  struct alignas(64) Stripe {
    std::array<std::atomic<std::uint32_t>, kSlots> running{};
  };

  static std::uint64_t EpochOf(std::uint64_t word) noexcept { return word >> 8; }
  static std::size_t SlotOf(std::uint64_t word) noexcept { return word & 0xff; }
  static std::size_t StripeOfThread() noexcept;

  bool Running(std::size_t slot) const noexcept;
  bool RunningBefore(std::uint64_t epoch) const noexcept;
  std::uint64_t NextEpoch() noexcept;
  Mark* Find(const void* identity) noexcept;
  void Erase(Mark& mark) noexcept;
  Fate BrokeUnpicked(std::uint64_t began, Tickets& ignored);
  Fate BrokeAgain(Mark& mark, std::uint64_t began, std::string_view message, CircuitTicket& ticket, Tickets& counted,
                  Tickets& ignored);
  // Null where attempts cannot be told apart any more.
  Mark* MarkNow(const Connection& connection, std::string_view message, Tickets& ignored);
  static Fate Hold(CircuitTicket& ticket, Tickets& held);
  void AnsweredOn(Mark& mark, std::uint64_t began, Tickets& counted);
  void Review(Tickets& ignored);
  void Settle(Tickets& counted, Tickets& ignored) noexcept;

  const Settings settings_;
  // The epoch, and the slot in which its attempts are counted: epoch << 8 | slot.
  std::atomic<std::uint64_t> now_{std::uint64_t{1} << 8};
  // Whether End() has to be followed by more.
  std::atomic<bool> watching_{false};
  std::array<Stripe, kStripes> stripes_;

  mutable std::mutex mutex_;
  // All guarded by mutex_.
  std::array<std::uint64_t, kSlots> epochs_{1};
  std::vector<Mark> marks_;  // oldest first
  std::vector<Kill> kills_;  // oldest first
  TimePoint next_unpicked_ = TimePoint::min();
  Duration wait_{};
};

}  // namespace penstock::inline v0::detail
