#pragma once

// A unary call that its user embeds and uses again.
//
// Where every allocation counts, the user's own object holds the call: it derives from UnaryReactor, which holds the messages, and
// starts the next call from OnDone.
//
//     class Poll final : public UnaryReactor<GetAccountRequest, Account> {
//       void OnDone(const CallResult& result) override { Show(result, response()); }
//     };
//     poll.request().set_id("7");
//     client.Start(PENSTOCK_METHOD(ledger::v1::Ledger, GetAccount), poll);
//
// Threads: Start, request() and response() by one thread at a time, never between the start and OnDone. Cancel() on any
// thread until OnDone begins.
// Ownership: the user's. From the start until OnDone the reactor must stay where it is; when OnDone begins nobody refers to
// it any more, and it may be started again or destroyed, in OnDone too. Until then it holds its last attempt's gRPC context, and
// so that channel and the call's credentials, but nothing else of the options.
// Time: as Client::Call.
// Errors: as Client::Call. Starting a reactor that has not ended yet is refused and changes nothing.

#include <atomic>
#include <cstddef>
#include <cstring>
#include <utility>

#include "penstock/client/call.h"
#include "penstock/client/detail/unary_call.h"
#include "penstock/client/detail/unary_core.h"
#include "penstock/client/method.h"
#include "penstock/runtime/callback_thread.h"

namespace penstock::inline v0 {

class Client;

template <class Request, class Response>
class UnaryReactor : private detail::UnaryCore {
 public:
  virtual ~UnaryReactor() = default;

  // Sent by the next start; kept, so that it may be sent again.
  Request& request() noexcept { return request_; }
  // For OnDone, to read or to move from.
  Response& response() noexcept { return response_; }

  // Once a start, last of all. `result` (but not its headers and trailers) outlives the reactor until OnDone returns.
  virtual void OnDone(const CallResult& result) = 0;

  // Ends the call soon with CANCELLED; does nothing when none is under way.
  void Cancel() noexcept {
    if (!TryAddReference()) return;
    UnaryCore::Cancel(detail::CancelReason::kCaller);
    Release();
  }

 protected:
  UnaryReactor() = default;

 private:
  friend class Client;

  template <class Service>
  bool Begin(detail::ClientState& state, const UnaryMethod<Service, Request, Response>& method, CallOptions&& options) {
    // acquire: pairs with the release in Complete(): the last call refers to nothing here any more.
    if (!idle_.exchange(false, std::memory_order_acquire)) return false;
    using Method = UnaryMethod<Service, Request, Response>;
    static_assert(sizeof(method.start) == sizeof(start_));
    std::memcpy(start_, &method.start, sizeof(start_));
    invoke_ = [](UnaryReactor& self, void* async, grpc::ClientContext* context) {
      decltype(Method::start) start;
      std::memcpy(&start, self.start_, sizeof(start));
      (static_cast<typename Method::Async*>(async)->*start)(
          context, &self.request_, &self.response_, [&self](grpc::Status status) { self.AttemptDone(std::move(status)); });
    };
    response_.Clear();
    UnaryCore::Begin(state, *method.info, std::move(options), detail::BytesOf(request_), 1);
    return true;
  }

  void StartAttempt(void* async, const std::shared_ptr<grpc::Channel>&, grpc::ClientContext* context, bool further) final {
    if (further) response_.Clear();
    invoke_(*this, async, context);
  }
  void Complete(const CallResult& result) final {
    // release: see Begin(). Not before: until here the last call's own work goes on. Not later: OnDone may start the next one.
    idle_.store(true, std::memory_order_release);
    OnDone(result);
  }
  bool completes_unreferenced() const noexcept final { return true; }
  void Unreferenced() noexcept final {
    detail::PostToCallbackThread([this] { DeliverUnreferenced(); });
  }

  std::atomic<bool> idle_{true};
  // The bytes of a pointer to a member function of whichever service's stub.
  std::byte start_[sizeof(void (UnaryReactor::*)())] = {};
  void (*invoke_)(UnaryReactor& self, void* async, grpc::ClientContext* context) = nullptr;
  Request request_;
  Response response_;
};

}  // namespace penstock::inline v0
