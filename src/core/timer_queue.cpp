#include "penstock/core/timer_queue.h"

#include <algorithm>

namespace penstock::inline v0 {

namespace {
constexpr std::size_t kChildren = 4;
}  // namespace

bool TimerQueue::Arm(Timer& timer, TimePoint due) {
  if (timer.armed()) {
    RemoveAt(timer.place_);
    timer.place_ = Timer::kNowhere;
  }
  heap_.push_back(&timer);
  timer.due_ = due;
  timer.order_ = next_order_++;
  timer.place_ = heap_.size() - 1;
  SiftUp(timer.place_);
  return timer.place_ == 0;
}

bool TimerQueue::Disarm(Timer& timer) noexcept {
  if (!timer.armed()) return false;
  RemoveAt(timer.place_);
  timer.place_ = Timer::kNowhere;
  return true;
}

Timer* TimerQueue::TakeDue(TimePoint now) noexcept {
  if (heap_.empty() || heap_.front()->due_ > now) return nullptr;
  Timer* due = heap_.front();
  Disarm(*due);
  return due;
}

TimePoint TimerQueue::NextDue() const noexcept { return heap_.empty() ? TimePoint::max() : heap_.front()->due_; }

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
