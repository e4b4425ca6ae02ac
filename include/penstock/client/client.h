#pragma once

// A client that holds through a dependency's failures and rollouts.
//
// A plain gRPC stub makes one attempt and tells its end. Services that call others need more: a bound on the whole call, retries
// that do not make an outage worse, a circuit breaker, cancellation and deadlines handed down. A Client is all of that for one
// dependency, around the generated stubs.
//
//     auto ledger = penstock::Client::Create({.address = "ledger:9090", .tls = penstock::Tls{.roots = ca}});
//     if (!ledger.ok()) return Fail(ledger.error().message());
//     ledger->Call(PENSTOCK_METHOD(ledger::v1::Ledger, Transfer), request, {.parent = scope},
//                  [](const penstock::CallResult& result, TransferResponse& response) { ... });
//
// Threads: every member may be called from any thread, also from completions. Completions run on gRPC's callback threads, once
// a call, never inside Call() and never under a lock of penstock's.
// Ownership: the Client owns its connections, breaker and budget, and shares them with nobody. Destroying it cancels what is in
// flight and returns; what the calls need lives until their completions have run. It never waits, and may be destroyed
// anywhere, in its own completions too. Assigning to a Client destroys what it was.
// Time: settings.time, the steady clock by default.
// Errors: Create() tells every bad setting in one error. Calls end with a CallResult; nothing throws.

#include <cstddef>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "penstock/client/call.h"
#include "penstock/client/detail/unary_call.h"
#include "penstock/client/method.h"
#include "penstock/client/settings.h"
#include "penstock/client/stream.h"
#include "penstock/client/subscription.h"
#include "penstock/client/unary_reactor.h"
#include "penstock/core/circuit_breaker.h"
#include "penstock/core/result.h"
#include "penstock/runtime/readiness.h"
#include "penstock/telemetry.h"

namespace penstock::inline v0 {

// What a blocking call gives: the result, the answer, and copies of what the server sent beside it.
template <class Response>
struct WaitedCall {
  CallResult result;  // Without headers and trailers.
  Response response;
  std::multimap<std::string, std::string> headers;
  std::multimap<std::string, std::string> trailers;

  bool ok() const noexcept { return result.ok(); }
};

class Client {
 public:
  // Dials nothing. All that is wrong with the settings stands in one error, a line each.
  static Result<Client> Create(ClientSettings settings);

  Client(Client&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
  Client& operator=(Client&& other) noexcept {
    Client dropped(std::move(*this));
    state_ = std::exchange(other.state_, nullptr);
    return *this;
  }
  // Cancels what is in flight and returns.
  ~Client();

  // Makes a unary call. `callback` is called once, as callback(const CallResult&, Response&), on a callback thread; the
  // response is its to move from. It is destroyed once it has run. The call goes on when the handle is dropped.
  // What the call needs is kept from calls before it, the messages' memory too: a request that is copied in allocates nothing
  // where an earlier one was as large (messages of up to 256 KiB together; a thread keeps as much of each type of call).
  template <class Service, class Request, class Response, class Callback>
    requires std::invocable<Callback&, const CallResult&, Response&>
  CallHandle Call(const UnaryMethod<Service, Request, Response>& method, std::type_identity_t<Request>&& request,
                  CallOptions options, Callback callback) {
    return Make(method, std::move(request), std::move(options), std::move(callback));
  }
  template <class Service, class Request, class Response, class Callback>
    requires std::invocable<Callback&, const CallResult&, Response&>
  CallHandle Call(const UnaryMethod<Service, Request, Response>& method, const std::type_identity_t<Request>& request,
                  CallOptions options, Callback callback) {
    return Make(method, request, std::move(options), std::move(callback));
  }

  // Makes a unary call with a reactor of the caller's, that holds the messages and may be used again and again: no
  // allocation. See UnaryReactor. False, and nothing else happens: the reactor's last call has not ended.
  template <class Service, class Request, class Response>
  bool Start(const UnaryMethod<Service, Request, Response>& method, UnaryReactor<Request, Response>& reactor,
             CallOptions options = {}) {
    return reactor.Begin(*state_, method, std::move(options));
  }

  // Makes a unary call and waits for its end: for tools and tests. On a callback thread it is refused with
  // FAILED_PRECONDITION, since two blocked callbacks stop every call of the process.
  template <class Service, class Request, class Response>
  WaitedCall<Response> CallAndWait(const UnaryMethod<Service, Request, Response>& method,
                                   std::type_identity_t<Request> request, CallOptions options = {});

  // Opens a stream of each kind with a reactor of the caller's, which must live until its OnDone. The opening is retried like a
  // call while nothing has reached a server, without the settings' timeout. See stream.h. False, and nothing else happens: the
  // reactor has been opened before.
  template <class Service, class Request, class Response>
  bool Open(const ServerStreamMethod<Service, Request, Response>& method, std::type_identity_t<Request> request,
            CallOptions options, ClientReadReactor<Response>& reactor) {
    using Stream = detail::ServerStreamCall<ServerStreamMethod<Service, Request, Response>>;
    reactor.prepared().request_bytes = detail::BytesOf(request);
    return detail::OpenStream(*state_, *method.info, new Stream(method, std::move(request)), std::move(options), reactor);
  }
  // `response` must live as long as the reactor.
  template <class Service, class Request, class Response>
  bool Open(const ClientStreamMethod<Service, Request, Response>& method, CallOptions options,
            std::type_identity_t<Response>* response, ClientWriteReactor<Request>& reactor) {
    using Stream = detail::ClientStreamCall<ClientStreamMethod<Service, Request, Response>>;
    reactor.prepared().read = response;
    return detail::OpenStream(*state_, *method.info, new Stream(method), std::move(options), reactor);
  }
  template <class Service, class Request, class Response>
  bool Open(const BidiMethod<Service, Request, Response>& method, CallOptions options,
            ClientBidiReactor<Request, Response>& reactor) {
    using Stream = detail::BidiCall<BidiMethod<Service, Request, Response>>;
    return detail::OpenStream(*state_, *method.info, new Stream(method), std::move(options), reactor);
  }

  // Opens a server or bidi stream, and opens it again whenever it ends because its server goes. See subscription.h.
  template <class Service, class Request, class Response>
  [[nodiscard]] Subscription Subscribe(const ServerStreamMethod<Service, Request, Response>& method,
                                       std::type_identity_t<Request> request,
                                       std::type_identity_t<SubscriptionHooks<Request, Response>> hooks,
                                       SubscriptionOptions options = {}) {
    using Call = detail::ServerStreamSubscription<ServerStreamMethod<Service, Request, Response>>;
    auto* call = new Call(method, std::move(request), std::move(hooks));
    call->Begin(*state_, *method.info, std::move(options.call), options.give_up_after);
    return Subscription(call);
  }
  template <class Service, class Request, class Response>
  [[nodiscard]] BidiSubscription<BidiMethod<Service, Request, Response>> Subscribe(
      const BidiMethod<Service, Request, Response>& method, std::type_identity_t<Request> request,
      std::type_identity_t<SubscriptionHooks<Request, Response>> hooks, SubscriptionOptions options = {}) {
    using Method = BidiMethod<Service, Request, Response>;
    auto* call = new detail::BidiSubscriptionCall<Method>(method, std::move(request), std::move(hooks));
    call->Begin(*state_, *method.info, std::move(options.call), options.give_up_after);
    return BidiSubscription<Method>(call);
  }

  // A channel for code that takes nothing else. Its calls, of every kind, pass the breaker and are classified and counted; they are
  // never retried by penstock, and gRPC's own deadlines hold. It has connections of its own, and may outlive the client: from
  // the closing on new calls on it end with CANCELLED, and those in flight go on. It costs an interceptor: four
  // allocations and up to a tenth of a call's CPU. Never null: where the settings' `interceptors` fails, that is told to the
  // observer, and every call on the channel fails.
  std::shared_ptr<grpc::Channel> GuardedChannel();

  // From here on every call fails with CANCELLED; those in flight are cancelled. Does not wait.
  void Close() noexcept;

  // Close(), and waits until every completion has run, or until `until` (real time). True: all have. False: some have not, or it
  // was called on a callback thread, where it must not wait (then it has closed all the same).
  bool CloseAndWait(std::chrono::steady_clock::time_point until) noexcept;

  // Whether the client has been connected: false until a connection was first ready (TLS done), then true until the client
  // is closed, whatever happens to the connection. A check starts the connection where there is none and waits for it; it
  // makes no RPC and counts nothing; the first that ends without one is logged. Every call gives the same monitor, which may
  // outlive the client. For a server's readiness, never for its liveness (docs/readiness.md).
  std::shared_ptr<ReadinessMonitor> Connected() const;

  // The breaker's, as of now.
  CircuitState circuit_state() const noexcept;
  Counts circuit_counts() const noexcept;
  CircuitTotals circuit_totals() const noexcept;
  // Which backends the calls of late have used, and with what share: from a sample, a few of the first calls of each thread and
  // then one of 61. Empty before the first call has been answered. Takes a lock; for reports, not for every call.
  std::vector<ClientConnection> connections() const;
  // Tokens left in the retry budget.
  double budget_tokens() const noexcept;

  // For the parts of penstock that build on a client.
  detail::ClientState& state() const noexcept { return *state_; }

 private:
  explicit Client(detail::ClientState* state) noexcept : state_(state) {}

  template <class Method, class Request, class Callback>
  CallHandle Make(const Method& method, Request&& request, CallOptions&& options, Callback&& callback) {
    using Call = detail::CallbackCall<Method, std::remove_cvref_t<Callback>>;
    auto* call = new Call(method, std::forward<Request>(request), std::move(callback));
    call->Begin(*state_, std::move(options));
    return CallHandle(call);
  }

  detail::ClientState* state_;
};

template <class Service, class Request, class Response>
WaitedCall<Response> Client::CallAndWait(const UnaryMethod<Service, Request, Response>& method,
                                         std::type_identity_t<Request> request, CallOptions options) {
  WaitedCall<Response> waited;
  if (detail::RefusedToWait(waited.result)) return waited;
  detail::Waiter waiter;
  Call(method, std::move(request), std::move(options), [&](const CallResult& result, Response& response) {
    waited.result = result;
    waited.response = std::move(response);
    detail::CopyMetadata(result.headers, waited.headers);
    detail::CopyMetadata(result.trailers, waited.trailers);
    waited.result.headers = waited.result.trailers = nullptr;
    waiter.Done();
  });
  waiter.Wait();
  return waited;
}

}  // namespace penstock::inline v0
