#include "penstock/client/call.h"

#include <limits>

#include "runtime/relay.h"

namespace penstock::inline v0 {

Parent::Parent(const grpc::CallbackServerContext* context) {
  if (const auto* owner = dynamic_cast<const ScopeOwner*>(context)) {
    scope_ = owner->Scope();
  } else {
    context_ = context;
  }
}

void Parent::KeepRelayed() {
  if (context_ == nullptr || scope_ != nullptr || kept_ != nullptr) return;
  CallScope::Metadata relayed = detail::RelayedMetadata(context_->client_metadata());
  if (!relayed.empty()) kept_ = CallScope::Create(TimePoint::max(), std::move(relayed));
}

TimePoint Deadline::At(TimePoint now) const noexcept {
  switch (kind_) {
    case Kind::kNone:
      return TimePoint::max();
    case Kind::kSteady:
      return steady_;
    case Kind::kWall:
      break;
  }
  // What is left on the wall clock, held at the ends of the range: the wall clock's own minimum is further from now than
  // a length can say.
  const std::int64_t point = std::chrono::nanoseconds(wall_.time_since_epoch()).count();
  const std::int64_t wall_now = std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
  if (point == std::numeric_limits<std::int64_t>::max()) return TimePoint::max();
  std::int64_t left = 0;
  if (__builtin_sub_overflow(point, wall_now, &left)) left = std::numeric_limits<std::int64_t>::min();
  return SaturatingAdd(now, Duration(left));
}

const char* Name(EndReason reason) noexcept {
  switch (reason) {
    case EndReason::kAnswered:
      return "answered";
    case EndReason::kStopped:
      return "stopped";
    case EndReason::kExhausted:
      return "exhausted";
    case EndReason::kThrottled:
      return "throttled";
    case EndReason::kExpired:
      return "expired";
    case EndReason::kRejected:
      return "rejected";
    case EndReason::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

const char* Name(Reached reached) noexcept {
  switch (reached) {
    case Reached::kNotSent:
      return "not sent";
    case Reached::kMaybeProcessed:
      return "maybe processed";
    case Reached::kResponded:
      return "responded";
  }
  return "unknown";
}

}  // namespace penstock::inline v0
