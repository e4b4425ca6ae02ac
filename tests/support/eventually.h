#pragma once

// Waits for what other threads or processes bring about.

#include <chrono>
#include <thread>

namespace penstock::test {

// False when `limit` was not enough.
template <class Condition>
bool Eventually(Condition&& condition, std::chrono::milliseconds limit = std::chrono::seconds(30)) {
  for (const auto until = std::chrono::steady_clock::now() + limit; !condition();) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace penstock::test
