#pragma once

// One call at the server, from its arrival to its end.
//
// gRPC hands a handler a CallbackServerContext. On a penstock server that context is a ServerCall: it also knows its
// method, who calls, and the scope that the calls made on its behalf hang on.
//
//     const ServerCall* call = ServerCall::Of(context);
//     if (call != nullptr) fmt::print("{} by {}\n", call->method(), call->identity().subject);
//
// Threads: every member may be called from any thread while the call's handler or reactor runs (before its OnDone).
// Ownership: made and destroyed by the server.
// Time: deadline() is on the server's clock.
// Errors: none.

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/core/clock.h"
#include "penstock/runtime/call_scope.h"
#include "penstock/runtime/method_kind.h"

namespace penstock::inline v0 {

class ServerCall;

namespace detail {
class ServerCore;
struct MethodState;
class ReactorBase;
void EndScope(ServerCall* call, CallScope::Ending ending) noexcept;
std::optional<grpc::Status> Admit(ServerCall* call) noexcept;
grpc::Status StatusOfException(ServerCall* call, const char* where) noexcept;
grpc::Status Conclude(ServerCall* call, grpc::Status status) noexcept;
grpc::Status Overloaded(grpc::CallbackServerContext* context, const char* why) noexcept;
}  // namespace detail

// Who calls, as the authenticator found out.
struct Identity {
  // How it was found out ("bearer", "mtls"); empty for a caller who was not asked.
  std::string scheme;
  // Who it is: a user, a service account, a certificate's name.
  std::string subject;
  // What else is known: roles, a tenant.
  std::multimap<std::string, std::string> attributes;

  bool authenticated() const noexcept { return !scheme.empty(); }
};

// Why a call reached no handler.
enum class Refusal { kNone, kOverloaded, kUnauthenticated, kFiltered };

// How a call ended.
struct ServerCallEnd {
  // What the handler finished with; CANCELLED or DEADLINE_EXCEEDED where the call ended before its status could be sent, by what
  // ended it: a client gives up at its deadline a moment before the server's clock has it, which is told as the deadline; UNKNOWN
  // where plain gRPC code finished it.
  grpc::StatusCode code = grpc::StatusCode::OK;
  // From the arrival of its headers until everything about it was done.
  Duration duration{};
  Refusal refusal = Refusal::kNone;
  // An exception left the handler or a method of the reactor.
  bool threw = false;
  // Neither Handle() nor Start() saw it: its handler is plain gRPC code, which nothing guards, or none ran, since the request
  // did not come whole or could not be parsed.
  bool unguarded = false;
};

// What an observer keeps of one call.
class ServerCallObservation {
 public:
  virtual ~ServerCallObservation() = default;

  // Once, on a gRPC thread, after the reactor's OnDone. Must not block.
  virtual void OnEnded(const ServerCall& call, const ServerCallEnd& end) noexcept = 0;
};

// Sees every call that reaches a service of the server, refused ones and health checks too: tracing and metrics.
class ServerObserver {
 public:
  virtual ~ServerObserver() = default;

  // As the call's headers arrive, before authentication, on a gRPC thread; must not block. Null to see no more of it. What
  // it throws is logged, and the call goes on unobserved.
  virtual std::unique_ptr<ServerCallObservation> OnStarted(ServerCall& call) = 0;

  // A call of a method that no service of the server has: it ends with UNIMPLEMENTED. `method` is what the client sent, any
  // text: nothing to name a metric by. On a gRPC thread; must not block.
  virtual void OnUnknownMethod(std::string_view /*method*/, const grpc::CallbackServerContext& /*context*/) noexcept {}
};

class ServerCall final : public grpc::CallbackServerContext, public ScopeOwner {
 public:
  // The context as the call it is; null when a server that is not penstock's made it.
  static ServerCall* Of(grpc::CallbackServerContext* context) noexcept;

  explicit ServerCall(detail::ServerCore& core) noexcept : core_(core) {}
  ~ServerCall() override;

  // `/package.Service/Method`.
  std::string_view method() const noexcept;
  MethodKind kind() const noexcept { return kind_; }
  // Nobody's before authentication.
  const Identity& identity() const noexcept { return identity_; }
  // TimePoint::max() for none; also for one too far for the clock.
  TimePoint deadline() const noexcept;

  // What the calls made on this one's behalf hang on: they inherit its deadline, trace and baggage, and end with it. A
  // client's `.parent = context` takes it. Made at the first call of this function. A handler of Handle() that returns its
  // status is not told of cancellation; its scope ends as it returns.
  std::shared_ptr<CallScope> Scope() const override;

  // Adds a trailer; of gRPC's own keys only `grpc-retry-pushback-ms`, milliseconds. False, and nothing is added: gRPC could not send it (upper case in the key, a line feed in the value;
  // AddTrailingMetadata() would abort the process); the trailers would come to more than 6 KiB (keys, values and 32 bytes
  // each: clients drop a connection over 8 KiB); or the call has been finished, by whomever.
  bool AddTrailer(const std::string& key, const std::string& value);

  // For an observer, before the handler runs: the traceparent that calls made on this one's behalf carry, instead of the one
  // that came in.
  void SetTraceParent(std::string traceparent) { trace_parent_ = std::move(traceparent); }

 private:
  friend class detail::ServerCore;
  friend class detail::ReactorBase;
  friend void detail::EndScope(ServerCall* call, CallScope::Ending ending) noexcept;
  friend std::optional<grpc::Status> detail::Admit(ServerCall* call) noexcept;
  friend grpc::Status detail::StatusOfException(ServerCall* call, const char* where) noexcept;
  friend grpc::Status detail::Conclude(ServerCall* call, grpc::Status status) noexcept;
  friend grpc::Status detail::Overloaded(grpc::CallbackServerContext* context, const char* why) noexcept;

  detail::ServerCore& core_;
  detail::MethodState* method_ = nullptr;  // set as it arrives
  MethodKind kind_ = MethodKind::kUnary;
  bool guarded_ = false;
  bool capped_ = false;  // counted against a cap
  Refusal refusal_ = Refusal::kNone;
  std::atomic<bool> threw_{false};
  std::atomic<int> finished_with_{-1};
  TimePoint arrived_{};
  std::string peer_;  // kept for the access log, where there is one
  Identity identity_;
  std::string trace_parent_;
  std::vector<std::unique_ptr<ServerCallObservation>> observations_;

  mutable std::mutex mutex_;  // guards what follows
  mutable std::shared_ptr<CallScope> scope_;
  bool scope_ended_ = false;
  CallScope::Ending scope_ending_{};
  bool expired_ = false;  // it was its deadline that ended the scope
  // gRPC's own are no place for them: another thread may be finishing the call.
  std::vector<std::pair<std::string, std::string>> trailers_;
  std::size_t trailer_bytes_ = 0;
  bool concluded_ = false;
};

}  // namespace penstock::inline v0
