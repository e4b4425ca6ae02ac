#pragma once

// Runs what the user gave the client: marked as such, and kept from throwing into gRPC.

#include <fmt/format.h>

#include <exception>
#include <string>

#include "penstock/runtime/callback_thread.h"

namespace penstock::inline v0::detail {

// Runs `code`, which errors name `name`. Returns what it threw, in words; empty when it returned.
template <class Code>
std::string RunUserCode(const char* name, Code& code) noexcept {
  try {
    UserCodeScope in_user_code;
    code();
    return {};
  } catch (const std::exception& exception) {
    return fmt::format("{} threw: {}", name, exception.what());
  } catch (...) {
    return fmt::format("{} threw something that is no std::exception", name);
  }
}

}  // namespace penstock::inline v0::detail
