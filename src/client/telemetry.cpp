#include "penstock/telemetry.h"

namespace penstock::inline v0 {

void OutgoingMetadata::Set(std::string_view key, std::string value) {
  std::erase_if(pairs_, [key](const auto& pair) { return pair.first == key; });
  pairs_.emplace_back(std::string(key), std::move(value));
}

}  // namespace penstock::inline v0
