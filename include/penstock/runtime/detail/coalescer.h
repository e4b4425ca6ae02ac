#pragma once

// Lets streams that have something to write wait for each other, so that one hop starts them all.
//
// Answers that are written from a reaction come one by one, while most of what will be answered has been received already. A
// stream whose first answer waits until the callbacks that are under way have run writes them in one piece.
//
//     if (Coalescer::Get().Pays()) Coalescer::Get().Add(*this);      // StartCoalesced() follows
//
// Threads: Pays() and Add() from any; StartCoalesced() runs on one of gRPC's callback threads, never inline.
// Ownership: the caller's; he keeps it alive until its StartCoalesced() has run.
// Time: a hop, some tens of microseconds (callback_thread.h).
// Errors: none.

#include <atomic>
#include <cstddef>
#include <functional>
#include <mutex>

namespace penstock::inline v0::detail {

class Coalesced {
 public:
  // Gives the number of messages that have waited for it.
  virtual std::size_t StartCoalesced() noexcept = 0;

 protected:
  ~Coalesced() = default;

 private:
  friend class Coalescer;
  Coalesced* next_ = nullptr;
};

class Coalescer {
 public:
  // A hop costs about what eight writes of their own do. After one that had fewer messages to start, some start at once; then it is
  // tried again. (Measured with 64 streams, on which most hops have one message to start, and the others hundreds.)
  static constexpr std::size_t kWorthwhile = 8;
  static constexpr int kAtOnce = 16;

  // `post` runs its argument later, on another thread.
  explicit Coalescer(void (*post)(std::function<void()>)) noexcept : post_(post) {}

  // The process's.
  static Coalescer& Get() noexcept;

  // Asked once by each that could wait; false: start at once.
  bool Pays() noexcept;
  // Not again before its StartCoalesced() has begun.
  void Add(Coalesced& waiting) noexcept;

 private:
  void Start() noexcept;

  void (*const post_)(std::function<void()>);
  std::atomic<int> at_once_{0};  // So many more.
  std::mutex mutex_;
  Coalesced* first_ = nullptr;
  Coalesced* last_ = nullptr;
};

}  // namespace penstock::inline v0::detail
