#pragma once

// What a call is made with, and what comes of it.
//
//     client->Call(method, request, {.parent = scope, .deadline = system_clock::now() + 2s, .metadata = {{"tenant", "7"}}},
//                  [](const CallResult& result, Response& response) {
//                    if (result.reason == EndReason::kRejected) return TryLater(result.rejected_for);
//                  });
//
// Threads: plain values; CallHandle may be used from any thread.
// Ownership: options are taken by the call; a result's status is the reader's to move or copy.
// Time: deadlines are points, on the wall clock or on the client's own.
// Errors: docs/errors.md says what each end of a call means.

#include <grpc/impl/codegen/compression_types.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/client/classify.h"
#include "penstock/client/detail/live_call.h"
#include "penstock/client/settings.h"
#include "penstock/core/clock.h"
#include "penstock/runtime/call_scope.h"

namespace penstock::inline v0 {

// A point at which a call ends at the latest: none, one on the wall clock, or one on the clock of the client (the steady
// clock, or a test's). Any value is fine; one that has passed ends the call at once.
class Deadline {
 public:
  constexpr Deadline() = default;
  constexpr Deadline(TimePoint point) : kind_(Kind::kSteady), steady_(point) {}                              // NOLINT
  constexpr Deadline(std::chrono::system_clock::time_point point) : kind_(Kind::kWall), wall_(point) {}  // NOLINT

  // On the client's clock, which reads `now`; TimePoint::max() for none and for what lies beyond the clock.
  TimePoint At(TimePoint now) const noexcept;
  bool set() const noexcept { return kind_ != Kind::kNone; }

 private:
  enum class Kind : unsigned char { kNone, kSteady, kWall };
  Kind kind_ = Kind::kNone;
  TimePoint steady_{};
  std::chrono::system_clock::time_point wall_{};
};

// The server call that a call is made for. The call takes its remaining deadline, its trace context and its baggage, and
// is cancelled with it.
class Parent {
 public:
  Parent() = default;
  // The context that the handler was given; must live until Call() returns, no longer. Of penstock's server: its scope is
  // taken. Of a plain callback server: what is needed of it is copied, and its cancellation reaches the first attempt only.
  Parent(const grpc::CallbackServerContext* context);  // NOLINT: implicit on purpose
  // ServerCall::Scope(), for a call that is made when the context may be gone.
  Parent(std::shared_ptr<CallScope> scope) : scope_(std::move(scope)) {}  // NOLINT: implicit on purpose

  const std::shared_ptr<CallScope>& scope() const noexcept { return scope_; }
  // Of a plain callback server only.
  const grpc::CallbackServerContext* context() const noexcept { return context_; }
  bool set() const noexcept { return scope_ != nullptr || context_ != nullptr; }

  // For the library: copies what a plain context brings of trace and baggage, while it lives.
  void KeepRelayed();
  // For the library: what was copied stays.
  void ForgetContext() noexcept { context_ = nullptr; }
  // The scope, or that copy, which has neither deadline nor end; null: there is nothing to relay.
  const CallScope* relaying() const noexcept { return scope_ != nullptr ? scope_.get() : kept_.get(); }

 private:
  std::shared_ptr<CallScope> scope_;
  std::shared_ptr<CallScope> kept_;
  const grpc::CallbackServerContext* context_ = nullptr;
};

struct CallOptions {
  Parent parent{};
  // The call takes trace and baggage of its parent, but neither deadline nor cancellation: it may outlive it. Needs a
  // deadline or a timeout of its own, else the call fails with INVALID_ARGUMENT.
  bool detached = false;
  // The earliest of this, the parent's and the timeout counts.
  Deadline deadline{};
  // Instead of the method's; above 0.
  std::optional<Duration> timeout{};
  std::optional<std::uint32_t> max_attempts{};
  Repeatability repeatability = Repeatability::kFromProto;
  // Waits for a connection instead of failing while there is none.
  std::optional<bool> wait_for_ready{};
  // A pair that gRPC cannot send (an upper-case key, a TAB in a value) fails the call with INVALID_ARGUMENT. How much a server takes
  // is its affair: by default gRPC's takes 8 KiB of headers, its own included, and ends the whole connection beyond that.
  std::vector<std::pair<std::string, std::string>> metadata{};
  std::shared_ptr<grpc::CallCredentials> credentials{};
  std::optional<grpc_compression_algorithm> compression{};
  // :authority of this call; empty: the client's.
  std::string authority{};
};

// Why a call ended.
enum class EndReason : unsigned char {
  kAnswered,   // The server answered OK.
  kStopped,    // The status is not one to retry, or the method not one to repeat.
  kExhausted,  // max_attempts were made.
  kThrottled,  // Too few tokens in the retry budget for another attempt.
  kExpired,    // The deadline has passed, or another attempt would begin after it.
  kRejected,   // The breaker is open. No server was asked by the attempt that was turned away.
  kCancelled,  // By the caller, by the end of the parent, or by the client's closing.
};

// How far the request got, at most, in any attempt.
enum class Reached : unsigned char {
  kNotSent,         // No connection was ever picked: no server has seen it.
  kMaybeProcessed,  // It may have reached a server.
  kResponded,       // A server has answered.
};

const char* Name(EndReason reason) noexcept;
const char* Name(Reached reached) noexcept;

struct CallResult {
  grpc::Status status;
  EndReason reason = EndReason::kStopped;
  Reached reached = Reached::kNotSent;
  // Attempts made: RPCs that were started.
  std::uint32_t attempts = 0;
  // For kRejected: how much longer the breaker stays open; 0 when it is half-open and every probe slot is taken.
  Duration rejected_for{};
  // Of the attempt whose status this is; null when the status is no attempt's. Valid until the completion returns.
  const ServerMetadata* headers = nullptr;
  const ServerMetadata* trailers = nullptr;

  bool ok() const noexcept { return status.ok(); }
};

// A hold on a call, to cancel it by. May be dropped at any time; the call goes on.
class CallHandle {
 public:
  CallHandle() = default;
  explicit CallHandle(detail::LiveCall* adopted) noexcept : call_(adopted) {}
  CallHandle(CallHandle&& other) noexcept : call_(std::exchange(other.call_, nullptr)) {}
  CallHandle& operator=(CallHandle&& other) noexcept {
    std::swap(call_, other.call_);
    return *this;
  }
  ~CallHandle() {
    if (call_ != nullptr) call_->Release();
  }

  // Ends the call soon with CANCELLED; once it has ended this does nothing. Any thread, any time, any number of times;
  // never runs the completion itself.
  void Cancel() noexcept {
    if (call_ != nullptr) call_->Cancel(detail::CancelReason::kCaller);
  }

 private:
  detail::LiveCall* call_ = nullptr;
};

}  // namespace penstock::inline v0
