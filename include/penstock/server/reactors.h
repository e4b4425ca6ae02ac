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
// Threads: methods start on gRPC's threads, never two of the same kind at once; OnDone comes last. A reactor must not
// block in one: two blocked callbacks stop every call of the process. Start… and Finish may be called from any thread that
// knows the reactor to be alive: from its methods, with a Hold(), or under a lock that its OnDone takes.
// Ownership: made by Service::Start, deleted after OnDone. Messages stay the reactor's and live until their On…Done, or
// OnDone for StartWriteAndFinish.
// Time: none of its own.
// Errors: a start that comes too early (one read and one write at a time) or too late (after the finish, whose it ever
// was) returns false and changes nothing; no On…Done follows it. An exception ends the call with INTERNAL, a thrown
// grpc::Status with that status.

#include <grpcpp/support/server_callback.h>

#include <utility>

#include "penstock/server/detail/reactor_base.h"

namespace penstock::inline v0 {

// A unary call that wants to hear of its cancellation and of the server's shutdown. The response is the handler's argument;
// fill it and Finish(OK). Always to be finished by its own code, after OnCancelled too.
class ServerUnaryReactor : public detail::ReactorBase {
 public:
  using GrpcReactor = grpc::ServerUnaryReactor;

  // The headers, ahead of the answer. Once.
  bool StartSendInitialMetadata();

  GrpcReactor* grpc_reactor() noexcept { return &bridge_; }

 protected:
  virtual void OnSendInitialMetadataDone(bool /*ok*/) {}

 private:
  class Bridge final : public grpc::ServerUnaryReactor {
   public:
    explicit Bridge(penstock::ServerUnaryReactor* owner) noexcept : owner_(owner) {}
    void OnSendInitialMetadataDone(bool ok) override {
      owner_->Guard("OnSendInitialMetadataDone", [&] { owner_->OnSendInitialMetadataDone(ok); });
    }
    void OnCancel() override { owner_->HandleCancel(); }
    void OnDone() override { owner_->HandleDone(); }

   private:
    penstock::ServerUnaryReactor* owner_;
  };

  void GrpcFinish(grpc::Status status) final { bridge_.Finish(std::move(status)); }
  void GrpcSendInitialMetadata() final { bridge_.StartSendInitialMetadata(); }
  bool is_stream() const noexcept final { return false; }

  Bridge bridge_{this};
};

// A stream of messages from the client, answered once. The response is the handler's argument.
template <class Request>
class ServerReadReactor : public detail::ReactorBase {
 public:
  using GrpcReactor = grpc::ServerReadReactor<Request>;

  // OnReadDone follows: true with a message, false at the end of the client's messages.
  bool StartRead(Request* message) {
    if (!Enter(kReading, kReading)) return false;
    bridge_.StartRead(message);
    Leave();
    return true;
  }

  GrpcReactor* grpc_reactor() noexcept { return &bridge_; }

 protected:
  virtual void OnReadDone(bool /*ok*/) {}

 private:
  class Bridge final : public GrpcReactor {
   public:
    explicit Bridge(ServerReadReactor* owner) noexcept : owner_(owner) {}
    void OnReadDone(bool ok) override {
      owner_->Clear(kReading);
      owner_->Guard("OnReadDone", [&] { owner_->OnReadDone(ok); });
    }
    void OnCancel() override { owner_->HandleCancel(); }
    void OnDone() override { owner_->HandleDone(); }

   private:
    ServerReadReactor* owner_;
  };

  void GrpcFinish(grpc::Status status) final { bridge_.Finish(std::move(status)); }
  void GrpcSendInitialMetadata() final { bridge_.StartSendInitialMetadata(); }
  bool is_stream() const noexcept final { return true; }

  Bridge bridge_{this};
};

// A stream of messages to the client.
template <class Response>
class ServerWriteReactor : public detail::ReactorBase {
 public:
  using GrpcReactor = grpc::ServerWriteReactor<Response>;

  // OnWriteDone follows: false when nothing can be written any more. The buffer hint of the first write is ignored (with it
  // gRPC 1.51 never sends anything); the last message before a pause must carry none, since nothing else flushes.
  bool StartWrite(const Response* message, grpc::WriteOptions options = {}) {
    if (!Enter(kWriting, kWriting)) return false;
    if (!Has(kWritten)) options.clear_buffer_hint();
    bridge_.StartWrite(message, options);
    Leave();
    return true;
  }

  // The last message and the status in one. No OnWriteDone follows; the message lives until OnDone.
  bool StartWriteAndFinish(const Response* message, grpc::WriteOptions options, grpc::Status status) {
    if (!Claim(kWriting)) return false;
    last_message_ = message;
    last_options_ = options.clear_buffer_hint();
    finish_status_ = std::move(status);
    Settle();
    return true;
  }

  GrpcReactor* grpc_reactor() noexcept { return &bridge_; }

 protected:
  virtual void OnWriteDone(bool /*ok*/) {}

 private:
  class Bridge final : public GrpcReactor {
   public:
    explicit Bridge(ServerWriteReactor* owner) noexcept : owner_(owner) {}
    void OnWriteDone(bool ok) override {
      owner_->WriteDone();
      owner_->Guard("OnWriteDone", [&] { owner_->OnWriteDone(ok); });
    }
    void OnCancel() override { owner_->HandleCancel(); }
    void OnDone() override { owner_->HandleDone(); }

   private:
    ServerWriteReactor* owner_;
  };

  void GrpcFinish(grpc::Status status) final {
    if (last_message_ != nullptr) {
      bridge_.StartWriteAndFinish(last_message_, last_options_, std::move(status));
    } else {
      bridge_.Finish(std::move(status));
    }
  }
  void GrpcSendInitialMetadata() final { bridge_.StartSendInitialMetadata(); }
  bool is_stream() const noexcept final { return true; }

  const Response* last_message_ = nullptr;
  grpc::WriteOptions last_options_;
  Bridge bridge_{this};
};

// Messages both ways.
template <class Request, class Response>
class ServerBidiReactor : public detail::ReactorBase {
 public:
  using GrpcReactor = grpc::ServerBidiReactor<Request, Response>;

  // As in ServerReadReactor.
  bool StartRead(Request* message) {
    if (!Enter(kReading, kReading)) return false;
    bridge_.StartRead(message);
    Leave();
    return true;
  }

  // As in ServerWriteReactor.
  bool StartWrite(const Response* message, grpc::WriteOptions options = {}) {
    if (!Enter(kWriting, kWriting)) return false;
    if (!Has(kWritten)) options.clear_buffer_hint();
    bridge_.StartWrite(message, options);
    Leave();
    return true;
  }

  // As in ServerWriteReactor.
  bool StartWriteAndFinish(const Response* message, grpc::WriteOptions options, grpc::Status status) {
    if (!Claim(kWriting)) return false;
    last_message_ = message;
    last_options_ = options.clear_buffer_hint();
    finish_status_ = std::move(status);
    Settle();
    return true;
  }

  GrpcReactor* grpc_reactor() noexcept { return &bridge_; }

 protected:
  virtual void OnReadDone(bool /*ok*/) {}
  virtual void OnWriteDone(bool /*ok*/) {}

 private:
  class Bridge final : public GrpcReactor {
   public:
    explicit Bridge(ServerBidiReactor* owner) noexcept : owner_(owner) {}
    void OnReadDone(bool ok) override {
      owner_->Clear(kReading);
      owner_->Guard("OnReadDone", [&] { owner_->OnReadDone(ok); });
    }
    void OnWriteDone(bool ok) override {
      owner_->WriteDone();
      owner_->Guard("OnWriteDone", [&] { owner_->OnWriteDone(ok); });
    }
    void OnCancel() override { owner_->HandleCancel(); }
    void OnDone() override { owner_->HandleDone(); }

   private:
    ServerBidiReactor* owner_;
  };

  void GrpcFinish(grpc::Status status) final {
    if (last_message_ != nullptr) {
      bridge_.StartWriteAndFinish(last_message_, last_options_, std::move(status));
    } else {
      bridge_.Finish(std::move(status));
    }
  }
  void GrpcSendInitialMetadata() final { bridge_.StartSendInitialMetadata(); }
  bool is_stream() const noexcept final { return true; }

  const Response* last_message_ = nullptr;
  grpc::WriteOptions last_options_;
  Bridge bridge_{this};
};

}  // namespace penstock::inline v0
