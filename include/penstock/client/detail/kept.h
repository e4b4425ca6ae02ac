#pragma once

// What calls leave behind for later ones: each thread keeps a few, and hands on what is too much for it.
//
// Where a thread takes as much as it gives, as a callback thread does that makes the next call in a completion, nothing is
// shared. Where calls begin on one thread and complete on another, the second one's list fills up: a whole list at a time goes
// to a shelf that all threads have, and the first one finds it there. So that costs one lock for as many calls as a list holds.
//
// Threads: a KeptList is its thread's own; a KeptShelf is everybody's.
// Ownership: of the nodes, until Take(). A shelf is never destroyed with what it holds: it lives in static memory.
// Errors: none.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

namespace penstock::inline v0::detail {

// False under AddressSanitizer: so that a use after the end is seen.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kKeepsCallMemory = false;
#else
inline constexpr bool kKeepsCallMemory = true;
#endif

// Lies in the memory that is kept.
struct KeptNode {
  KeptNode* next = nullptr;
  std::size_t bytes = 0;  // That count against the list's bound.
};

struct KeptChain {
  KeptNode* first = nullptr;
  std::uint32_t count = 0;
  std::size_t bytes = 0;
};

class KeptShelf {
 public:
  constexpr KeptShelf() = default;
  KeptShelf(const KeptShelf&) = delete;
  KeptShelf& operator=(const KeptShelf&) = delete;

  // False, and the chain is as it was: there is no room.
  bool Put(KeptChain& chain) noexcept {
    std::lock_guard lock(mutex_);
    const std::uint32_t count = count_.load(std::memory_order_relaxed);
    if (count == chains_.size()) return false;
    chains_[count] = std::exchange(chain, {});
    count_.store(count + 1, std::memory_order_relaxed);
    return true;
  }

  // An empty one: there is none.
  KeptChain Get() noexcept {
    // relaxed: a look that spares the lock where the shelf is empty; the lock orders the rest.
    if (count_.load(std::memory_order_relaxed) == 0) return {};
    std::lock_guard lock(mutex_);
    const std::uint32_t count = count_.load(std::memory_order_relaxed);
    if (count == 0) return {};
    count_.store(count - 1, std::memory_order_relaxed);
    return std::exchange(chains_[count - 1], {});
  }

 private:
  std::mutex mutex_;
  std::atomic<std::uint32_t> count_{0};
  std::array<KeptChain, 4> chains_{};
};

// Trivial to destroy, so that it can be used as long as the thread runs: its owner empties it at the thread's end, of a thread that
// only takes as well, since what it takes from the shelf is more than it uses.
class KeptList {
 public:
  // Null: nothing is kept. `ends` is called where the thread comes by more than that node, and sees to End().
  template <class Ends>
  KeptNode* Take(KeptShelf& shelf, const Ends& ends) noexcept {
    if (chain_.first == nullptr) {
      if (over_ || (chain_ = shelf.Get()).first == nullptr) return nullptr;
      ends();
    }
    KeptNode* const node = chain_.first;
    chain_.first = node->next;
    --chain_.count;
    chain_.bytes -= node->bytes;
    return node;
  }

  // False: there is no room for it, here or on the shelf.
  bool Give(KeptNode* node, KeptShelf& shelf, std::size_t most_bytes) noexcept {
    if (over_ || node->bytes > most_bytes) return false;
    if ((chain_.count == kMost || chain_.bytes + node->bytes > most_bytes) && !shelf.Put(chain_)) return false;
    node->next = chain_.first;
    chain_.first = node;
    ++chain_.count;
    chain_.bytes += node->bytes;
    return true;
  }

  // The thread is ending: nothing is kept from here on, and `free` is called for each node that was.
  template <class Free>
  void End(const Free& free) noexcept {
    over_ = true;
    for (KeptNode* node = std::exchange(chain_, {}).first; node != nullptr;) free(std::exchange(node, node->next));
  }

 private:
  static constexpr std::uint32_t kMost = 64;

  KeptChain chain_;
  bool over_ = false;
};

}  // namespace penstock::inline v0::detail
