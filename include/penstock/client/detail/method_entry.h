#pragma once

// A method as one client knows it.

#include <cstdint>
#include <optional>

#include "penstock/client/method.h"
#include "penstock/client/settings.h"
#include "penstock/core/clock.h"

namespace penstock::inline v0::detail {

struct MethodEntry {
  const MethodInfo* info = nullptr;
  // The service's AsyncInterface on each of the client's channels; with fault injection one more, on a channel that fails
  // every call at once.
  void* const* asyncs = nullptr;
  std::uint32_t channels = 1;
  std::uint32_t max_attempts = 1;
  Duration timeout{};
  // Never kFromProto.
  Repeatability repeatability = Repeatability::kUnmarked;
  std::optional<bool> wait_for_ready;
};

}  // namespace penstock::inline v0::detail
