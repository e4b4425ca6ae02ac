#include "penstock/core/timer_queue.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

namespace penstock::inline v0 {

namespace {
constexpr std::size_t kChildren = 4;
}  // namespace

void TimerQueue::Arm(Timer& timer, TimePoint due) {
  Disarm(timer);
  timer.due_ = due;
  timer.order_ = next_order_++;
  ++size_;
  Put(timer);
}

bool TimerQueue::Disarm(Timer& timer) noexcept {
  if (!timer.armed()) return false;
  if (timer.place_ >= kInWheel) {
    Unlink(timer);
  } else {
    RemoveAt(timer.place_);
  }
  timer.place_ = Timer::kNowhere;
  --size_;
  return true;
}

Timer* TimerQueue::TakeDue(TimePoint now) noexcept {
  const std::int64_t until = now.time_since_epoch().count();
  while (heap_.empty() && Turn(until)) {
  }
  if (heap_.empty()) {
    // Nothing in the wheel begins by now: what is soon due goes to the heap from here on.
    step_ = std::max(step_, until & ~((std::int64_t{1} << kStepBits) - 1));
    return nullptr;
  }
  Timer* due = heap_.front();
  if (due->due_ > now) return nullptr;
  Disarm(*due);
  return due;
}

TimePoint TimerQueue::NextDue() noexcept {
  while (heap_.empty() && Turn(std::numeric_limits<std::int64_t>::max())) {
  }
  return heap_.empty() ? TimePoint::max() : heap_.front()->due_;
}

void TimerQueue::Put(Timer& timer) {
  const std::int64_t due = timer.due_.time_since_epoch().count();
  const std::uint64_t differing = static_cast<std::uint64_t>(due ^ step_) >> kStepBits;
  if (due < step_ || differing == 0) {
    heap_.push_back(&timer);
    timer.place_ = heap_.size() - 1;
    SiftUp(timer.place_);
    return;
  }
  // The level whose slot tells the two apart.
  const int level = (std::bit_width(differing) - 1) / kSlotBits;
  const std::size_t slot = static_cast<std::size_t>(due >> (kStepBits + level * kSlotBits)) % kSlots;
  Level& of = levels_[static_cast<std::size_t>(level)];
  if (of.slots.empty()) of.slots.resize(kSlots);
  Timer*& first = of.slots[slot];
  timer.place_ = kInWheel + static_cast<std::size_t>(level) * kSlots + slot;
  timer.previous_ = nullptr;
  timer.next_ = first;
  if (first != nullptr) {
    first->previous_ = &timer;
  } else {
    of.used[slot / 64] |= std::uint64_t{1} << slot % 64;
  }
  first = &timer;
}

void TimerQueue::Unlink(Timer& timer) noexcept {
  if (timer.next_ != nullptr) timer.next_->previous_ = timer.previous_;
  if (timer.previous_ != nullptr) {
    timer.previous_->next_ = timer.next_;
    return;
  }
  const std::size_t place = timer.place_ - kInWheel;
  Level& level = levels_[place / kSlots];
  const std::size_t slot = place % kSlots;
  level.slots[slot] = timer.next_;
  if (timer.next_ == nullptr) level.used[slot / 64] &= ~(std::uint64_t{1} << slot % 64);
}

bool TimerQueue::Turn(std::int64_t until) {
  for (int at = 0; at < kLevels; ++at) {
    Level& level = levels_[static_cast<std::size_t>(at)];
    const int shift = kStepBits + at * kSlotBits;
    // The slots of a level that have timers come after the one that the current step is in.
    const std::size_t current = static_cast<std::size_t>(step_ >> shift) % kSlots;
    std::size_t word = current / 64;
    std::uint64_t used = level.used[word] & ~std::uint64_t{0} << current % 64;
    while (used == 0 && ++word < level.used.size()) used = level.used[word];
    if (used == 0) continue;
    const std::size_t slot = word * 64 + static_cast<std::size_t>(std::countr_zero(used));
    const std::int64_t begins = (((step_ >> shift) & ~static_cast<std::int64_t>(kSlots - 1)) | static_cast<std::int64_t>(slot)) << shift;
    if (begins > until) return false;
    step_ = begins;
    Timer* timer = std::exchange(level.slots[slot], nullptr);
    level.used[slot / 64] &= ~(std::uint64_t{1} << slot % 64);
    while (timer != nullptr) Put(*std::exchange(timer, timer->next_));
    return true;
  }
  return false;
}

bool TimerQueue::Before(const Timer& left, const Timer& right) const noexcept {
  return left.due_ != right.due_ ? left.due_ < right.due_ : left.order_ < right.order_;
}

void TimerQueue::Place(Timer& timer, std::size_t at) noexcept {
  heap_[at] = &timer;
  timer.place_ = at;
}

void TimerQueue::SiftUp(std::size_t at) noexcept {
  Timer* moving = heap_[at];
  while (at != 0) {
    const std::size_t parent = (at - 1) / kChildren;
    if (!Before(*moving, *heap_[parent])) break;
    Place(*heap_[parent], at);
    at = parent;
  }
  Place(*moving, at);
}

void TimerQueue::SiftDown(std::size_t at) noexcept {
  Timer* moving = heap_[at];
  for (;;) {
    const std::size_t first = at * kChildren + 1;
    if (first >= heap_.size()) break;
    std::size_t least = first;
    const std::size_t end = std::min(first + kChildren, heap_.size());
    for (std::size_t child = first + 1; child < end; ++child) {
      if (Before(*heap_[child], *heap_[least])) least = child;
    }
    if (!Before(*heap_[least], *moving)) break;
    Place(*heap_[least], at);
    at = least;
  }
  Place(*moving, at);
}

void TimerQueue::RemoveAt(std::size_t at) noexcept {
  Timer* last = heap_.back();
  heap_.pop_back();
  if (at == heap_.size()) return;
  Place(*last, at);
  SiftUp(at);
  SiftDown(last->place_);
}

}  // namespace penstock::inline v0
