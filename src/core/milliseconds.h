#pragma once

// A length as messages tell it, everywhere the same: in milliseconds.
//
//     Milliseconds(std::chrono::microseconds(1500));  // "1.5 ms"
//
// Threads: a pure function.
// Ownership: a value.
// Time: none.
// Errors: none.

#include <fmt/format.h>

#include <chrono>
#include <string>

#include "penstock/core/clock.h"

namespace penstock::inline v0::detail {

inline std::string Milliseconds(Duration length) {
  return fmt::format("{} ms", std::chrono::duration<double, std::milli>(length).count());
}

}  // namespace penstock::inline v0::detail
