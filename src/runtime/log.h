#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "penstock/runtime.h"

namespace penstock::inline v0::detail {

void LogLine(LogSeverity severity, const std::string& line) noexcept;

template <class... Arguments>
void Log(LogSeverity severity, fmt::format_string<Arguments...> format, Arguments&&... arguments) noexcept {
  try {
    LogLine(severity, fmt::format(format, std::forward<Arguments>(arguments)...));
  } catch (...) {
    // Nothing can be said about a line that cannot be made.
  }
}

}  // namespace penstock::inline v0::detail
