#pragma once

// Runs what the user gave the client: marked as such, and kept from throwing into gRPC.

#include <fmt/format.h>

#include <exception>
#include <string>

#include "penstock/runtime/callback_thread.h"

namespace penstock::inline v0::detail {

// In a handler: what it caught, in words.
inline std::string WhatWasThrown() noexcept {
  try {
    throw;
  } catch (const std::exception& exception) {
    return exception.what();
  } catch (...) {
    return "something that is no std::exception";
  }
}

// Runs `code`, which errors name `name`. Returns what it threw, in words; empty when it returned.
template <class Code>
std::string RunUserCode(const char* name, Code& code) noexcept {
  try {
    UserCodeScope in_user_code;
    code();
    return {};
  } catch (...) {
    return fmt::format("{} threw: {}", name, WhatWasThrown());
  }
}

}  // namespace penstock::inline v0::detail
