#pragma once

// The base of a service: what its methods return, so that nothing a handler does harms the server.
//
// A handler of gRPC's own that throws answers UNIMPLEMENTED, is counted nowhere and passes no authentication. Methods of a
// penstock service return Handle() or Start(), in which every call meets, in this order: tracing and metrics, the access
// log, the caps, authentication, the filters, the barrier against exceptions, the handler.
//
//     class LedgerService final : public penstock::Service<ledger::v1::Ledger> {
//       grpc::ServerUnaryReactor* GetAccount(grpc::CallbackServerContext* context, const GetAccountRequest* request,
//                                            Account* response) override {
//         return Handle(context, [&] { *response = store_.Get(request->id()); return grpc::Status::OK; });
//       }
//       grpc::ServerWriteReactor<Account>* WatchAccount(grpc::CallbackServerContext* context,
//                                                       const WatchAccountRequest* request) override {
//         return Start<Watcher>(context, store_, *request);
//       }
//     };
//
// Threads: methods run on gRPC's callback threads, many at once, and must not block: HandleOn() is for those that do.
// Ownership: a service outlives the servers it is given to. Requests and responses are gRPC's and live until the call is
// finished.
// Time: none.
// Errors: an exception ends the call with INTERNAL and no text; a thrown grpc::Status ends it with that status; where the
// handler has handed its Reply on, once that is let go of. A method
// that returns neither Handle() nor Start() is served unguarded, and named in the log once.

#include <grpcpp/impl/service_type.h>

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "penstock/runtime/call_scope.h"
#include "penstock/server/call.h"
#include "penstock/server/detail/guard.h"
#include "penstock/server/message_pool.h"
#include "penstock/server/reactors.h"
#include "penstock/server/work_pool.h"

namespace penstock::inline v0 {

// The answer of a unary call that is finished later, wherever that is. Exactly one Finish(); a reply that is dropped
// without one ends the call with INTERNAL. Until then the request and the response are there, also where the handler throws
// after it has handed the reply on: then the call ends with the exception's status once the reply is finished or dropped, and
// the calls that were made on its behalf end at once.
class Reply {
 public:
  explicit Reply(detail::ReplyReactor* reactor) noexcept : reactor_(reactor) {}
  Reply(Reply&& other) noexcept : reactor_(std::exchange(other.reactor_, nullptr)) {}
  Reply& operator=(Reply&& other) noexcept {
    std::swap(reactor_, other.reactor_);
    return *this;
  }
  ~Reply() {
    if (reactor_ != nullptr) reactor_->Release();
  }

  // From any thread; the request and the response must not be touched after it. The first one counts.
  void Finish(grpc::Status status) noexcept {
    if (reactor_ == nullptr) return;
    detail::ReplyReactor* reactor = std::exchange(reactor_, nullptr);
    reactor->FinishWith(std::move(status));
    reactor->Release();
  }

  // Whether the client gave up or the deadline passed. Finish() is due all the same. False after it.
  bool cancelled() const noexcept { return reactor_ != nullptr && reactor_->cancelled(); }

 private:
  detail::ReplyReactor* reactor_;
};

// What a server takes. Made by deriving from Service<>.
class AnyService {
 public:
  virtual ~AnyService() = default;
  virtual grpc::Service& grpc_service() noexcept = 0;
  // `package.Service`.
  virtual const char* full_name() const noexcept = 0;

 protected:
  // The answer of a unary method.
  //
  // function() -> grpc::Status: answered when it returns. The cheapest form.
  // function(Reply): answered by Reply::Finish, later and from anywhere, as when another service has to be asked first.
  template <class Function>
  static grpc::ServerUnaryReactor* Handle(grpc::CallbackServerContext* context, Function&& function) noexcept {
    ServerCall* call = ServerCall::Of(context);
    if constexpr (std::is_invocable_r_v<grpc::Status, Function&>) {
      const detail::UserCodeScope in_user_code;
      std::optional<grpc::Status> refused = detail::Admit(call);
      grpc::Status status = refused ? *std::move(refused) : detail::RunGuarded(call, function);
      detail::EndScope(call, CallScope::Ending::kFinished);
      grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
      reactor->Finish(detail::Conclude(call, std::move(status)));
      return reactor;
    } else {
      static_assert(std::is_invocable_v<Function&, Reply>, "Handle takes a function() -> grpc::Status or function(penstock::Reply)");
      if (std::optional<grpc::Status> refused = detail::Admit(call)) return Refused(context, *std::move(refused));
      auto* reactor = new detail::ReplyReactor(context);
      reactor->Run([&](detail::ReplyReactor* self) { function(Reply(self)); });
      return reactor;
    }
  }

  // The answer of a unary method whose handler blocks: function() -> grpc::Status runs on a thread of the pool, and may make
  // blocking calls (Client::CallAndWait). A full pool refuses the call with RESOURCE_EXHAUSTED and a pushback.
  template <class Function>
  static grpc::ServerUnaryReactor* HandleOn(WorkPool& pool, grpc::CallbackServerContext* context, Function function) noexcept {
    ServerCall* call = ServerCall::Of(context);
    if (std::optional<grpc::Status> refused = detail::Admit(call)) return Refused(context, *std::move(refused));
    // Not the default reactor: the handler may wait for a call of its own, which is to hear of the cancellation.
    auto* reactor = new detail::ReplyReactor(context);
    reactor->Run([&](detail::ReplyReactor* self) {
      bool taken = false;
      try {
        taken = pool.Submit([call, self, function = std::move(function)]() mutable {
          Reply(self).Finish(detail::RunGuarded(call, function));
        });
      } catch (...) {
        self->Release();  // nobody will run it
        throw;
      }
      if (!taken) Reply(self).Finish(detail::Overloaded(context, "every worker is busy and the queue is full"));
    });
    return reactor;
  }

  // The answer of a streaming method, or of a unary one that wants to hear of cancellation and shutdown: makes the reactor
  // with these arguments. Its constructor may start reads and writes, finish, and throw.
  template <class Reactor, class... Arguments>
  static typename Reactor::GrpcReactor* Start(grpc::CallbackServerContext* context, Arguments&&... arguments) noexcept {
    static_assert(std::is_base_of_v<detail::ReactorBase, Reactor>,
                  "Start makes reactors that derive from penstock::ServerUnaryReactor, ServerReadReactor, "
                  "ServerWriteReactor or ServerBidiReactor");
    return detail::StartReactor<Reactor>(context, std::forward<Arguments>(arguments)...);
  }

 private:
  static grpc::ServerUnaryReactor* Refused(grpc::CallbackServerContext* context, grpc::Status status) noexcept {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(detail::Conclude(ServerCall::Of(context), std::move(status)));
    return reactor;
  }
};

// What protoc made of a service: `ledger::v1::Ledger`, not one of the classes in it.
template <class T>
concept GeneratedGrpcService = requires { T::service_full_name(); };

template <GeneratedGrpcService GeneratedService>
class Service : public GeneratedService::CallbackService, public AnyService {
 public:
  grpc::Service& grpc_service() noexcept final { return *this; }
  const char* full_name() const noexcept final { return GeneratedService::service_full_name(); }

 protected:
  // Has the messages of a unary method come from a pool. In the constructor, with the method's
  // &…::SetMessageAllocatorFor_….
  template <class Owner, class Request, class Response>
  void PoolMessages(void (Owner::*set_allocator)(grpc::MessageAllocator<Request, Response>*)) {
    auto pool = std::make_shared<MessagePool<Request, Response>>();
    (this->*set_allocator)(pool.get());
    pools_.push_back(std::move(pool));
  }

 private:
  std::vector<std::shared_ptr<void>> pools_;
};

}  // namespace penstock::inline v0
