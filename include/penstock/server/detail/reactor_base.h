#pragma once

// What the four server reactors share: the word that orders starts and the one finish (reactor_word.h), the hooks, the
// place in the server's registry.

#include <grpcpp/support/server_callback.h>
#include <grpcpp/support/status.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "penstock/runtime/callback_thread.h"
#include "penstock/server/call.h"
#include "penstock/server/detail/guard.h"
#include "penstock/server/detail/reactor_word.h"

namespace penstock::inline v0 {

namespace detail {
class ReactorBase;
class ReactorRegistry;
}  // namespace detail

// While one lives, the reactor it was taken from does not end: a finish, whoever made it, waits until it is gone. For work
// on another thread. Let go of it soon: what waits for it holds the server's shutdown.
class CallHold {
 public:
  CallHold() = default;
  CallHold(CallHold&& other) noexcept : reactor_(std::exchange(other.reactor_, nullptr)) {}
  CallHold& operator=(CallHold&& other) noexcept {
    std::swap(reactor_, other.reactor_);
    return *this;
  }
  ~CallHold();

  // False when there was nothing to hold any more: the call is ending.
  explicit operator bool() const noexcept { return reactor_ != nullptr; }

 private:
  friend class detail::ReactorBase;
  explicit CallHold(detail::ReactorBase* reactor) noexcept : reactor_(reactor) {}

  detail::ReactorBase* reactor_ = nullptr;
};

namespace detail {

class ReactorBase {
 public:
  ReactorBase(const ReactorBase&) = delete;
  ReactorBase& operator=(const ReactorBase&) = delete;

  // Ends the call with `status`, once: false when it is ending already (the client or the server's shutdown was first). From
  // any thread, for as long as the reactor lives.
  bool Finish(grpc::Status status);

  // Keeps the reactor from ending; empty when it is ending already. From a method of the reactor, or from anywhere else that
  // knows the reactor to be alive (under a lock that its OnDone takes too).
  CallHold Hold() noexcept;

  // The call's context; valid until OnDone has returned.
  grpc::CallbackServerContext* context() const noexcept { return context_; }
  // Null on a server that is not penstock's.
  ServerCall* call() const noexcept { return call_; }

 protected:
  // Within Start() only, which says for which call the reactor is made.
  ReactorBase() noexcept;
  virtual ~ReactorBase();

  // The client went away, or the call's deadline passed. A stream is finished with CANCELLED once this has returned; a unary
  // call is its own to finish.
  virtual void OnCancelled() {}

  // The server is going to stop; of a reactor that opens after the others were told, as it opens. A stream is finished with
  // UNAVAILABLE once this has returned, unless it finished itself in here; a last write started in here still goes out. A unary
  // call goes on, and should come to its end.
  virtual void OnShutdown() {}

  // Everything is over. The reactor is deleted once this has returned.
  virtual void OnDone() {}

  // --- for the four reactors ---

  static constexpr std::uint32_t kReading = ReactorWord::kReading;
  static constexpr std::uint32_t kWriting = ReactorWord::kWriting;
  static constexpr std::uint32_t kWritten = ReactorWord::kWritten;
  static constexpr std::uint32_t kHeaders = ReactorWord::kHeaders;

  bool Enter(std::uint32_t flag, std::uint32_t unless) noexcept { return word_.Enter(flag, unless); }
  bool Claim(std::uint32_t unless = 0) noexcept { return word_.Claim(unless); }
  void Set(std::uint32_t flag) noexcept { word_.Set(flag); }
  void Clear(std::uint32_t flag) noexcept { word_.Clear(flag); }
  bool Has(std::uint32_t flag) const noexcept { return word_.Has(flag); }
  // Lets go of a hold, and finishes the call where that falls to it.
  void Leave() noexcept;
  // After Claim() and with finish_status_ stored.
  void Settle() noexcept;

  // Runs a method of the user's; what it throws ends the call.
  template <class Function>
  void Guard(const char* where, Function&& function) noexcept {
    try {
      UserCodeScope in_user_code;
      function();
    } catch (...) {
      Finish(StatusOfException(call_, where));
    }
  }

  void HandleCancel() noexcept;
  void HandleDone() noexcept;

  // gRPC's own, called once each.
  virtual void GrpcFinish(grpc::Status status) = 0;
  virtual void GrpcSendInitialMetadata() = 0;
  virtual bool is_stream() const noexcept = 0;

  grpc::Status finish_status_;

 private:
  friend class ReactorRegistry;
  friend class penstock::CallHold;
  template <class Reactor, class... Arguments>
  friend auto StartReactor(grpc::CallbackServerContext* context, Arguments&&... arguments) noexcept
      -> typename Reactor::GrpcReactor*;

  // Registers it and, for a stream, sends the headers: a client takes a stream without headers for one that never opened.
  void Begin() noexcept;

  // By the registry, or in its place by Begin(); with a hold that this lets go of.
  void ShutDownHeld() noexcept;

  grpc::CallbackServerContext* context_;
  ServerCall* call_;
  ReactorWord word_;

  // The registry's, under its lock.
  bool registered_ = false;
  ReactorBase* previous_ = nullptr;
  ReactorBase* next_ = nullptr;
};

// For which call a reactor is being made, on this thread.
inline constinit thread_local grpc::CallbackServerContext* starting_context = nullptr;

// Makes a reactor for a call that passes the gates; a call that does not, or whose reactor's constructor throws, is
// finished instead.
template <class Reactor, class... Arguments>
auto StartReactor(grpc::CallbackServerContext* context, Arguments&&... arguments) noexcept
    -> typename Reactor::GrpcReactor* {
  ServerCall* call = ServerCall::Of(context);
  std::optional<grpc::Status> end = Admit(call);
  if (!end) {
    Reactor* reactor = nullptr;
    try {
      UserCodeScope in_user_code;
      starting_context = context;
      reactor = new Reactor(std::forward<Arguments>(arguments)...);
      starting_context = nullptr;
    } catch (...) {
      starting_context = nullptr;
      end = StatusOfException(call, "the reactor's constructor");
    }
    if (reactor != nullptr) {
      static_cast<ReactorBase*>(reactor)->Begin();
      return reactor->grpc_reactor();
    }
  }
  EndScope(call, CallScope::Ending::kFinished);
  return new FinishedReactor<typename Reactor::GrpcReactor>(Conclude(call, *std::move(end)));
}

}  // namespace detail

inline CallHold::~CallHold() {
  if (reactor_ != nullptr) reactor_->Leave();
}

}  // namespace penstock::inline v0
