#pragma once

// Reactors for the calls of a server: gRPC's four, made safe against exceptions, races and shutdown.
//
// A reactor of gRPC's own hangs for ever when one of its methods throws, aborts when a write is started twice or after the
// finish, and is finished twice when a cancellation meets a shutdown. These have the same methods, and none of that.
//
//     class Watcher final : public penstock::ServerWriteReactor<Account> {
//      public:
//       explicit Watcher(Store& store) : store_(store) { StartWrite(&account_); }      // may throw
//      private:
//       void OnWriteDone(bool ok) override { if (ok) store_.Next(&account_, [this] { StartWrite(&account_); }); }
//       void OnShutdown() override {}     // the server will finish this stream with UNAVAILABLE
//       Store& store_;
//       Account account_;
//     };
//     return Start<Watcher>(context, store_);                                           // in the service's method
//
// Threads: methods start on gRPC's threads, two of a kind at once only where the first starts the next read or write, which may end
// before it has returned; OnDone comes last. A reactor must not block in one: two blocked callbacks stop every call of the process. Start… and Finish may be called from any thread that
// knows the reactor to be alive: from its methods, with a Hold(), or under a lock that its OnDone takes.
// Ownership: made by Service::Start, deleted after OnDone. Messages stay the reactor's and live until their On…Done, or
// OnDone for StartWriteAndFinish.
// Time: none of its own.
// Errors: a start that comes too early (one read and one write at a time) or too late (after the finish, whose it ever
// was) returns false and changes nothing; no On…Done follows it. A message of 2 GiB or more ends the stream with INTERNAL. An exception ends the call with INTERNAL, a thrown
// grpc::Status with that status.

#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <utility>

#include "penstock/runtime/detail/message_size.h"
#include "penstock/server/detail/reactor_base.h"
#include "penstock/server/detail/reactor_bridge.h"

namespace penstock::inline v0 {

namespace detail {

template <class Base, class Request>
class Reading : public Base {
 public:
  // OnReadDone follows: true with a message, false at the end of the client's messages.
  bool StartRead(Request* message) {
    if (!this->Enter(Base::kReading, Base::kReading)) return false;
    this->grpc_reactor()->StartRead(message);
    this->Leave();
    return true;
  }

 protected:
  virtual void OnReadDone(bool /*ok*/) {}

 private:
  void HandleReadDone(bool ok) noexcept final {
    this->Clear(Base::kReading);
    this->Guard("OnReadDone", [&] { OnReadDone(ok); });
  }
};

template <class Base, class Response>
class Writing : public Base {
 public:
  using Written = Response;

  // OnWriteDone follows: false when nothing can be written any more. The buffer hint of the first write is ignored (with it
  // gRPC 1.51 never sends anything); the last message before a pause must carry none, since nothing else flushes.
  bool StartWrite(const Response* message, grpc::WriteOptions options = {}) {
    return StartWriteOf(message, options, BytesOf(*message));
  }

  // The last message and the status in one. No OnWriteDone follows; the message lives until OnDone.
  bool StartWriteAndFinish(const Response* message, grpc::WriteOptions options, grpc::Status status) {
    if (TooLong(BytesOf(*message))) return false;
    if (!this->Claim(Base::kWriting)) return false;
    last_message_ = message;
    last_options_ = options.clear_buffer_hint();
    this->finish_status_ = std::move(status);
    this->Settle();
    return true;
  }

 protected:
  virtual void OnWriteDone(bool /*ok*/) {}

  // As StartWrite(), of a message whose size is known.
  bool StartWriteOf(const Response* message, grpc::WriteOptions options, std::size_t bytes) {
    if (TooLong(bytes)) return false;
    if (!this->Enter(Base::kWriting, Base::kWriting)) return false;
    if (!this->Has(Base::kWritten)) options.clear_buffer_hint();
    this->grpc_reactor()->StartWrite(message, options);
    this->Leave();
    return true;
  }

 private:
  // gRPC would abort the process. The stream is finished instead, since nothing else might.
  bool TooLong(std::size_t bytes) {
    if (bytes <= kLongestMessage) [[likely]] return false;
    this->Finish({grpc::StatusCode::INTERNAL, "a message of 2 GiB or more cannot be sent"});
    return true;
  }
  void HandleWriteDone(bool ok) noexcept final {
    if (!this->Has(Base::kWritten)) this->Set(Base::kWritten);
    this->Clear(Base::kWriting);
    this->Guard("OnWriteDone", [&] { OnWriteDone(ok); });
  }
  void GrpcFinish(grpc::Status status) final {
    if (last_message_ == nullptr) return Base::GrpcFinish(std::move(status));
    this->grpc_reactor()->StartWriteAndFinish(last_message_, last_options_, std::move(status));
  }

  const Response* last_message_ = nullptr;
  grpc::WriteOptions last_options_;
};

}  // namespace detail

// A unary call that wants to hear of its cancellation and of the server's shutdown. The response is the handler's argument;
// fill it and Finish(OK). Always to be finished by its own code, after OnCancelled too.
class ServerUnaryReactor : public detail::Bridged<grpc::ServerUnaryReactor> {
 public:
  // The headers, ahead of the answer. Once.
  bool StartSendInitialMetadata();

 protected:
  virtual void OnSendInitialMetadataDone(bool /*ok*/) {}

 private:
  void HandleHeadersSent(bool ok) noexcept final;
};

// A stream of messages from the client, answered once: StartRead and OnReadDone. The response is the handler's argument.
template <class Request>
class ServerReadReactor : public detail::Reading<detail::Bridged<grpc::ServerReadReactor<Request>>, Request> {};

// A stream of messages to the client: StartWrite, StartWriteAndFinish and OnWriteDone.
template <class Response>
class ServerWriteReactor : public detail::Writing<detail::Bridged<grpc::ServerWriteReactor<Response>>, Response> {};

// Messages both ways: all of these.
template <class Request, class Response>
class ServerBidiReactor
    : public detail::Writing<detail::Reading<detail::Bridged<grpc::ServerBidiReactor<Request, Response>>, Request>, Response> {};

}  // namespace penstock::inline v0
