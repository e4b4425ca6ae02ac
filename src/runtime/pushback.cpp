#include "runtime/pushback.h"

#include <chrono>
#include <cstdint>

namespace penstock::inline v0::detail {

Pushback ParsePushback(std::string_view value) noexcept {
  constexpr std::int64_t kMost = std::chrono::duration_cast<std::chrono::milliseconds>(Duration::max()).count();
  if (value.empty()) return {Pushback::Kind::kStop, {}};
  std::int64_t milliseconds = 0;
  for (const char character : value) {
    if (character < '0' || character > '9') return {Pushback::Kind::kStop, {}};
    const int digit = character - '0';
    // Stays beyond kMost: what follows must still be digits, but no longer matters.
    milliseconds = milliseconds > (kMost - digit) / 10 ? kMost + 1 : milliseconds * 10 + digit;
  }
  if (milliseconds > kMost) return {Pushback::Kind::kAfter, Duration::max()};
  return {Pushback::Kind::kAfter, std::chrono::milliseconds(milliseconds)};
}

}  // namespace penstock::inline v0::detail
