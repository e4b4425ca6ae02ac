#pragma once

// The method names that have been seen, as many as may become label values; and other names that come from outside.
//
// A server or a generic client may be asked for any method at all; metrics must not grow a series for each. The first
// so many names are kept, all others are one.
//
// Threads: Find() from any thread, lock-free but for a new name while there is room.
// Ownership: the names live as long as the table.
// Time: none.
// Errors: none.

#include <array>
#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

namespace penstock::inline v0::detail {

// "/package.Service/Method" without the slash in front: the method's name in telemetry, and the span's.
inline std::string_view FullName(std::string_view method) noexcept {
  return method.starts_with('/') ? method.substr(1) : method;
}

class NameTable {
 public:
  static constexpr std::size_t kMostNames = 1000;
  static constexpr std::string_view kOther = "_OTHER";  // OpenTelemetry's word for it

  // The name as the table keeps it, or kOther.
  std::string_view Find(std::string_view name) {
    // acquire: pairs with the release in Add(); whoever finds the table full finds all its names as well.
    const bool full = full_.load(std::memory_order_acquire);
    const std::size_t start = std::hash<std::string_view>()(name) % kCells;
    for (std::size_t i = 0; i < kCells; ++i) {
      std::atomic<const std::string*>& cell = cells_[(start + i) % kCells];
      // acquire: pairs with the release in Add(); makes the name's text visible.
      const std::string* known = cell.load(std::memory_order_acquire);
      if (known == nullptr) return full ? kOther : Add(name, start);
      if (*known == name) return *known;
    }
    return kOther;
  }

 private:
  // A quarter full at most, so that a search is short.
  static constexpr std::size_t kCells = 4096;

  std::string_view Add(std::string_view name, std::size_t start) {
    std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < kCells; ++i) {
      std::atomic<const std::string*>& cell = cells_[(start + i) % kCells];
      // relaxed: written under the mutex.
      const std::string* known = cell.load(std::memory_order_relaxed);
      if (known != nullptr && *known != name) continue;
      if (known == nullptr) {
        if (names_.size() == kMostNames) return kOther;
        known = &names_.emplace_back(name);
        cell.store(known, std::memory_order_release);  // pairs with the acquire in Find()
        if (names_.size() == kMostNames) full_.store(true, std::memory_order_release);  // so does this
      }
      return *known;
    }
    return kOther;
  }

  std::array<std::atomic<const std::string*>, kCells> cells_{};
  std::atomic<bool> full_{false};
  std::mutex mutex_;
  std::deque<std::string> names_;  // under mutex_; never moves
};

}  // namespace penstock::inline v0::detail
