#pragma once

// Attributes of a span, a metric or a log record, without an allocation.
//
// Keys and text values are views: what they look at outlives the attributes.

#include <opentelemetry/common/attribute_value.h>
#include <opentelemetry/common/key_value_iterable.h>
#include <opentelemetry/nostd/function_ref.h>
#include <opentelemetry/nostd/string_view.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "runtime/client_roster.h"
#include "runtime/status_name.h"

namespace penstock::inline v0::otel::detail {

inline constexpr char kStatusCodeKey[] = "rpc.response.status_code";
inline constexpr char kErrorTypeKey[] = "error.type";  // the status once more, where it is an error

inline opentelemetry::nostd::string_view View(std::string_view text) noexcept { return {text.data(), text.size()}; }

// A handful of attributes without an allocation.
class Attributes final : public opentelemetry::common::KeyValueIterable {
 public:
  void Add(opentelemetry::nostd::string_view key, opentelemetry::common::AttributeValue value) noexcept {
    pairs_[size_++] = {key, value};
  }
  void AddStatus(int code, bool error) noexcept {
    const opentelemetry::nostd::string_view name = View(penstock::detail::StatusName(code));
    Add(kStatusCodeKey, name);
    if (error) Add(kErrorTypeKey, name);
  }
  void Add(const penstock::detail::ServerName& server) noexcept { AddServer(server.address, server.port); }
  void AddServer(std::string_view address, int port) noexcept {
    Add("server.address", View(address));
    if (port != 0) Add("server.port", static_cast<std::int64_t>(port));
  }

  bool ForEachKeyValue(
      opentelemetry::nostd::function_ref<bool(opentelemetry::nostd::string_view, opentelemetry::common::AttributeValue)>
          visit) const noexcept override {
    for (std::size_t i = 0; i < size_; ++i) {
      if (!visit(pairs_[i].first, pairs_[i].second)) return false;
    }
    return true;
  }
  std::size_t size() const noexcept override { return size_; }

 private:
  std::array<std::pair<opentelemetry::nostd::string_view, opentelemetry::common::AttributeValue>, 10> pairs_{};
  std::size_t size_ = 0;
};

}  // namespace penstock::inline v0::otel::detail
