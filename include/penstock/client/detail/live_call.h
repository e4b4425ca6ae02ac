#pragma once

// What every call and stream of a client is to the client: something that is counted, held and can be cancelled.
//
// Reference counting is intrusive, so that a call is one allocation. References are held by the attempt that runs (or
// whoever drives the call between attempts), by each armed timer, by a listener on a parent, and by the user's handle.

#include <atomic>
#include <cstdint>

namespace penstock::inline v0::detail {

class CallRegistry;

// The first one given stays. The numbers are stored in a CallWord.
enum class CancelReason : unsigned char {
  kNone = 0,
  kCaller = 1,
  kDeadline = 2,
  kParent = 3,
  kClosed = 4,
  kServerFault = 5,  // The client itself, for what the server did; what the stream then ends with is not the caller's doing.
};

class LiveCall {
 public:
  LiveCall() = default;
  LiveCall(const LiveCall&) = delete;
  LiveCall& operator=(const LiveCall&) = delete;

  // Asks the call to end. Any thread that holds a reference; runs no user code; does nothing once the call has ended.
  virtual void Cancel(CancelReason reason) noexcept = 0;

  void AddReference() noexcept {
    // relaxed: whoever adds one holds one already, so nothing is published here.
    references_.fetch_add(1, std::memory_order_relaxed);
  }

  // For who holds none: false when nobody does any more.
  bool TryAddReference() noexcept {
    // relaxed: only a guess, confirmed by the exchange.
    std::uint32_t seen = references_.load(std::memory_order_relaxed);
    while (seen != 0) {
      if (references_.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire, std::memory_order_relaxed)) return true;
    }
    return false;
  }

  // The last one calls Unreferenced().
  void Release() noexcept {
    if (DropReference()) Unreferenced();
  }

  // Whether this call is one of the few whose connection is noted (D4). Once it is listed.
  bool sampled() const noexcept { return sampled_; }

 protected:
  ~LiveCall() = default;

  // True for the last one, which then owns the object alone.
  bool DropReference() noexcept {
    // release: what this holder did happens before the end of the object; acquire: pairs with the releases of the others.
    return references_.fetch_sub(1, std::memory_order_acq_rel) == 1;
  }
  void ResetReferences(std::uint32_t count) noexcept {
    // relaxed: before the call starts nobody else knows it.
    references_.store(count, std::memory_order_relaxed);
  }

 private:
  friend class CallRegistry;

  // On the thread of the last holder, which may be any.
  virtual void Unreferenced() noexcept = 0;

  std::atomic<std::uint32_t> references_{0};
  std::uint16_t shard_ = 0;
  bool sampled_ = false;
  LiveCall* previous_ = nullptr;
  LiveCall* next_ = nullptr;
};

}  // namespace penstock::inline v0::detail
