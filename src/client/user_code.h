#pragma once

// Runs what the user gave the client: marked as such, and kept from throwing into gRPC.

#include <fmt/format.h>

#include <string>

#include "penstock/runtime/callback_thread.h"
#include "runtime/thrown.h"

namespace penstock::inline v0::detail {

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
