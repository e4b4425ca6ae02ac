#include "penstock/client/settings.h"

#include <fmt/format.h>

#include <limits>
#include <map>
#include <string_view>

#include "client/channel.h"
#include "client/client_state.h"
#include "penstock/core/backoff.h"
#include "runtime/problems.h"

namespace penstock::inline v0::detail {

namespace {

void CheckPositive(std::string_view field, Duration length, std::vector<std::string>& problems) {
  if (length <= Duration::zero()) problems.push_back(fmt::format("{}: {}; expected more than 0", field, Milliseconds(length)));
}

void CheckAttempts(std::string_view field, std::uint32_t attempts, std::vector<std::string>& problems) {
  if (attempts < 1) problems.push_back(fmt::format("{}: {}; expected 1 or more", field, attempts));
}

void CheckRepeatability(std::string_view field, Repeatability repeatability, std::vector<std::string>& problems) {
  switch (repeatability) {
    case Repeatability::kFromProto:
    case Repeatability::kRepeatable:
    case Repeatability::kUnmarked:
    case Repeatability::kOnceOnly:
      return;
  }
  problems.push_back(fmt::format("{}: {}; expected one of the enumeration", field, static_cast<int>(repeatability)));
}

void CheckSize(std::string_view field, std::size_t bytes, std::vector<std::string>& problems) {
  constexpr std::size_t kMost = std::numeric_limits<std::int32_t>::max();
  if (bytes > kMost) problems.push_back(fmt::format("{}: {}; expected at most {}", field, bytes, kMost));
}

void CheckMethods(const std::vector<MethodSettings>& methods, std::vector<std::string>& problems) {
  std::map<std::string_view, int> given;
  for (const MethodSettings& method : methods) {
    const std::string field = fmt::format("methods[{}]", method.method.path().substr(1));
    if (++given[method.method.path()] == 2) problems.push_back(field + ": is given twice; expected each method at most once");
    if (method.timeout && method.method.unary()) CheckPositive(field + ".timeout", *method.timeout, problems);
    if (method.timeout && !method.method.unary()) {
      problems.push_back(fmt::format("{}.timeout: {}; expected none, since a stream's is that of its CallOptions", field,
                                     Milliseconds(*method.timeout)));
    }
    if (method.max_attempts) CheckAttempts(field + ".max_attempts", *method.max_attempts, problems);
    CheckRepeatability(field + ".repeatability", method.repeatability, problems);
  }
}

}  // namespace

void CheckSettings(const ClientSettings& settings, std::vector<std::string>& problems) {
  CheckConnection(settings, problems);
  CheckPositive("timeout", settings.timeout, problems);
  CheckAttempts("max_attempts", settings.max_attempts, problems);
  CheckSettings(Backoff{.base = settings.backoff_base, .max = settings.backoff_max}, "backoff_", problems);
  CheckSettings(settings.budget, "budget.", problems);
  CheckSettings(settings.breaker, "breaker.", problems);
  if (settings.deadline_floor < Duration::zero()) {
    problems.push_back(fmt::format("deadline_floor: {}; expected 0 or more", Milliseconds(settings.deadline_floor)));
  }
  CheckMethods(settings.methods, problems);
  CheckSize("max_send_bytes", settings.max_send_bytes, problems);
  CheckSize("max_receive_bytes", settings.max_receive_bytes, problems);
  if (settings.compression < 0 || settings.compression >= GRPC_COMPRESS_ALGORITHMS_COUNT) {
    problems.push_back(fmt::format("compression: {}; expected one of gRPC's algorithms", static_cast<int>(settings.compression)));
  }
}

}  // namespace penstock::inline v0::detail
