#include "client/connection_marks.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "penstock/core/detail/thread_slot.h"

namespace penstock::inline v0::detail {

std::size_t ConnectionMarks::StripeOfThread() noexcept { return thread_slot % kStripes; }

std::uint64_t ConnectionMarks::Begin() noexcept {
  std::atomic<std::uint32_t>* running = nullptr;
  const std::size_t stripe = StripeOfThread();
  // seq_cst, with NextEpoch(): either the count is seen by whoever opens an epoch, or the new epoch is seen here.
  std::uint64_t word = now_.load(std::memory_order_seq_cst);
  for (;;) {
    running = &stripes_[stripe].running[SlotOf(word)];
    running->fetch_add(1, std::memory_order_seq_cst);
    const std::uint64_t again = now_.load(std::memory_order_seq_cst);
    if (again == word) return word;
    running->fetch_sub(1, std::memory_order_seq_cst);
    word = again;
  }
}

bool ConnectionMarks::End(std::uint64_t began) noexcept {
  // seq_cst, with MarkNow(): either the end is seen by whoever marks, or the mark is seen here.
  stripes_[StripeOfThread()].running[SlotOf(began)].fetch_sub(1, std::memory_order_seq_cst);
  return watching_.load(std::memory_order_seq_cst);
}

bool ConnectionMarks::Running(std::size_t slot) const noexcept {
  // Each attempt adds and subtracts on any stripe: only the sum means something, and it wraps.
  std::uint32_t sum = 0;
  for (const Stripe& stripe : stripes_) sum += stripe.running[slot].load(std::memory_order_seq_cst);
  return sum != 0;
}

bool ConnectionMarks::RunningBefore(std::uint64_t epoch) const noexcept {
  for (std::size_t slot = 0; slot < kSlots; ++slot) {
    if (epochs_[slot] != 0 && epochs_[slot] < epoch && Running(slot)) return true;
  }
  return false;
}

// Begins an epoch: attempts from here on are told apart from those before. 0 when every slot still has attempts
// running.
std::uint64_t ConnectionMarks::NextEpoch() noexcept {
  const std::uint64_t word = now_.load(std::memory_order_relaxed);  // Written under the mutex alone.
  for (std::size_t slot = 0; slot < kSlots; ++slot) {
    if (slot == SlotOf(word) || Running(slot)) continue;
    const std::uint64_t epoch = EpochOf(word) + 1;
    epochs_[slot] = epoch;
    now_.store(epoch << 8 | slot, std::memory_order_seq_cst);
    return epoch;
  }
  return 0;
}

ConnectionMarks::Mark* ConnectionMarks::Find(const void* identity) noexcept {
  const auto found =
      std::find_if(marks_.begin(), marks_.end(), [&](const Mark& m) { return m.connection.identity == identity; });
  return found == marks_.end() ? nullptr : &*found;
}

void ConnectionMarks::Erase(Mark& mark) noexcept { marks_.erase(marks_.begin() + (&mark - marks_.data())); }

namespace {

void MoveAll(std::vector<CircuitTicket>& from, std::vector<CircuitTicket>& to) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  from.clear();
}

}  // namespace

void ConnectionMarks::Answered(std::uint64_t began, const Connection& connection) {
  Tickets counted, ignored;
  {
    const std::lock_guard lock(mutex_);
    if (connection.identity != nullptr) {
      wait_ = {};  // It is connected: the next failure to connect is a new one.
      next_unpicked_ = TimePoint::min();
      if (Mark* mark = Find(connection.identity)) AnsweredOn(*mark, began, counted);
    }
    Review(ignored);
  }
  Settle(counted, ignored);
}

void ConnectionMarks::Withdrawn() {
  Tickets counted, ignored;
  {
    const std::lock_guard lock(mutex_);
    Review(ignored);
  }
  Settle(counted, ignored);
}

void ConnectionMarks::AnsweredOn(Mark& mark, std::uint64_t began, Tickets& counted) {
  if (EpochOf(began) < mark.first && (mark.text == TransportText::kGoaway || ++mark.answered <= settings_.late_answers)) return;
  MoveAll(mark.held, counted);
  MoveAll(mark.late, counted);
  Erase(mark);
}

ConnectionMarks::Fate ConnectionMarks::Broke(std::uint64_t began, const Connection& connection,
                                             std::string_view message, bool has_metadata, CircuitTicket& ticket) {
  stripes_[StripeOfThread()].running[SlotOf(began)].fetch_sub(1, std::memory_order_seq_cst);
  Tickets counted, ignored;
  Fate fate = Fate::kCounts;
  {
    const std::lock_guard lock(mutex_);
    Mark* const mark = connection.identity == nullptr ? nullptr : Find(connection.identity);
    if (connection.identity == nullptr) {
      fate = BrokeUnpicked(began, ignored);
    } else if (has_metadata) {
      if (mark != nullptr) AnsweredOn(*mark, began, counted);
    } else if (mark == nullptr) {
      Mark* const made = MarkNow(connection, message, ignored);
      const bool leaving = made != nullptr && made->text == TransportText::kGoaway;
      fate = leaving ? Hold(ticket, made->held) : Fate::kCounts;
    } else {
      fate = BrokeAgain(*mark, began, message, ticket, counted, ignored);
    }
    Review(ignored);
  }
  // A probe's slot waits for its result: it is never kept waiting here.
  if (ticket.held() && ticket.is_probe()) fate = Fate::kCounts;
  Settle(counted, ignored);
  return fate;
}

bool ConnectionMarks::Killed(std::uint64_t began, const Connection& connection) {
  stripes_[StripeOfThread()].running[SlotOf(began)].fetch_sub(1, std::memory_order_seq_cst);
  Tickets counted, ignored;
  bool first = true;
  {
    const std::lock_guard lock(mutex_);
    const TimePoint now = settings_.clock->Now();
    const auto known = std::find_if(kills_.begin(), kills_.end(),
                                    [&](const Kill& kill) { return kill.connection.identity == connection.identity; });
    first = known == kills_.end() || now - known->since >= kLongestShutdown;
    if (known == kills_.end() && connection.identity != nullptr) {
      if (kills_.size() >= kMostMarks) kills_.erase(kills_.begin());
      kills_.push_back({connection, now});
    }
    Review(ignored);
  }
  Settle(counted, ignored);
  return first;
}

ConnectionMarks::Fate ConnectionMarks::Hold(CircuitTicket& ticket, Tickets& held) {
  if (ticket.is_probe()) return Fate::kCounts;
  if (held.size() >= kMostHeld) return Fate::kIgnored;
  held.push_back(std::move(ticket));
  return Fate::kHeld;
}

ConnectionMarks::Fate ConnectionMarks::BrokeUnpicked(std::uint64_t began, Tickets& ignored) {
  // There is no connection left that this attempt could have been given: the marked ones are dead.
  for (Mark& mark : marks_) {
    if (EpochOf(began) >= mark.epoch) MoveAll(mark.late, ignored);
  }
  const TimePoint now = settings_.clock->Now();
  if (now < next_unpicked_) return Fate::kIgnored;
  wait_ = wait_ == Duration::zero() ? settings_.reconnect_first : std::min(wait_ * 8 / 5, settings_.reconnect_highest);
  next_unpicked_ = now + wait_ * 4 / 5;
  return Fate::kCounts;
}

ConnectionMarks::Fate ConnectionMarks::BrokeAgain(Mark& mark, std::uint64_t began, std::string_view message,
                                                  CircuitTicket& ticket, Tickets& counted, Tickets& ignored) {
  const TransportText text = settings_.text_of(message);
  const bool transport_text = text != TransportText::kNone;
  const bool alike = message == mark.message || (transport_text && mark.text != TransportText::kNone);
  const std::uint64_t epoch = EpochOf(began);
  if (epoch < mark.epoch) {
    if (!alike) {
      AnsweredOn(mark, began, counted);
      return Fate::kCounts;
    }
    return Hold(ticket, mark.held);
  }
  if (transport_text && !ticket.is_probe() && (mark.late_epoch == 0 || epoch < mark.late_epoch)) {
    if (mark.late_epoch == 0) {
      mark.late_epoch = NextEpoch();
      mark.late_since = settings_.clock->Now();
      if (mark.late_epoch == 0) return Fate::kCounts;
    }
    return Hold(ticket, mark.late);
  }
  if (mark.text == TransportText::kGoaway && transport_text && !ticket.is_probe() && !mark.late_renewed) {
    // It began after the first late one, but maybe still by a picker that has not heard of the GOAWAY.
    if (settings_.clock->Now() - mark.late_since >= kStalePicker) {
      const std::uint64_t next = NextEpoch();
      if (next == 0) return Fate::kCounts;
      mark.late_epoch = next;
      mark.late_renewed = true;
    }
    return Hold(ticket, mark.late);
  }
  // The connection still takes attempts, and refuses them: marked anew.
  MoveAll(mark.late, counted);
  const Connection connection = mark.connection;
  if (mark.dead) {
    Erase(mark);
    MarkNow(connection, message, ignored);
    return Fate::kCounts;
  }
  mark.late_epoch = 0;
  mark.late_renewed = false;
  if (const std::uint64_t next = NextEpoch()) {
    mark.epoch = next;
    mark.message = message;
    mark.text = text;
  }
  return Fate::kCounts;
}

ConnectionMarks::Mark* ConnectionMarks::MarkNow(const Connection& connection, std::string_view message,
                                               Tickets& ignored) {
  if (marks_.size() >= kMostMarks) {
    MoveAll(marks_.front().held, ignored);
    MoveAll(marks_.front().late, ignored);
    marks_.erase(marks_.begin());
  }
  // seq_cst: see End().
  watching_.store(true, std::memory_order_seq_cst);
  const std::uint64_t epoch = NextEpoch();
  if (epoch == 0) return nullptr;
  Mark mark;
  mark.connection = connection;
  mark.message = message;
  mark.text = settings_.text_of(message);
  mark.first = mark.epoch = epoch;
  return &marks_.emplace_back(std::move(mark));
}

void ConnectionMarks::Review(Tickets& ignored) {
  bool watching = false;
  for (Mark& mark : marks_) {
    if (!mark.dead) mark.dead = !RunningBefore(mark.epoch);
    // Also of one that was dead already: who broke last of all ends before it comes by the mutex, and another may have been in
    // between.
    if (mark.dead) MoveAll(mark.held, ignored);
    if (!mark.late.empty() && settings_.clock->Now() - mark.late_since >= kLongestLate) MoveAll(mark.late, ignored);
    watching |= !mark.dead || !mark.late.empty();
  }
  // Also while connecting is reckoned with, so that a connection is noticed.
  watching |= wait_ != Duration::zero();
  // seq_cst: see End(). Raised again by whoever marks next.
  watching_.store(watching, std::memory_order_seq_cst);
}

void ConnectionMarks::Settle(Tickets& counted, Tickets& ignored) noexcept {
  for (CircuitTicket& ticket : ignored) ticket.Settle(Outcome::kIgnored);
  for (CircuitTicket& ticket : counted) {
    ticket.Settle(Outcome::kFailure);
    settings_.counted_late();
  }
}

std::size_t ConnectionMarks::marks() const {
  const std::lock_guard lock(mutex_);
  return marks_.size();
}

std::size_t ConnectionMarks::held() const {
  const std::lock_guard lock(mutex_);
  std::size_t all = 0;
  for (const Mark& mark : marks_) all += mark.held.size() + mark.late.size();
  return all;
}

}  // namespace penstock::inline v0::detail
