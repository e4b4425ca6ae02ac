#pragma once

// What user code threw, in words, for logs and errors.
//
//     try { classify(...); } catch (...) { fault = fmt::format("Classify threw: {}", WhatWasThrown()); }
//
// Threads: pure.
// Ownership: a value.
// Time: none.
// Errors: none; an exception whose what() is null has no text, and says so.

#include <exception>
#include <string>

namespace penstock::inline v0::detail {

// In a handler: what it caught.
inline std::string WhatWasThrown() noexcept {
  try {
    throw;
  } catch (const std::exception& exception) {
    const char* what = exception.what();
    return what != nullptr ? what : "an exception without a text";
  } catch (...) {
    return "something that is no std::exception";
  }
}

}  // namespace penstock::inline v0::detail
