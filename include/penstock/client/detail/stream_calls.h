#pragma once

// The typed parts of the three kinds of streams: each binds gRPC's reactor of its kind to StreamCore.

#include <grpcpp/generic/generic_stub.h>

#include <memory>
#include <string>
#include <utility>

#include "penstock/client/detail/stream_core.h"
#include "penstock/client/method.h"

namespace penstock::inline v0::detail {

// What the kinds have in common: the reactor that reports to the core, and the core's actions on it.
template <class Base, class Response>
class StreamCall : public StreamCore {
 protected:
  using StreamCore::StreamCore;

  void GrpcStartCall() override { reactor_.StartCall(); }
  void GrpcRead(void* message) override {
    if (message == nullptr) {
      if (kept_ == nullptr) kept_ = std::make_unique<Response>();
      message = kept_.get();
    }
    if constexpr (requires { reactor_.StartRead(nullptr); }) reactor_.StartRead(static_cast<Response*>(message));
  }
  void GrpcAddHold() override { reactor_.AddHold(); }
  void GrpcRemoveHold() override { reactor_.RemoveHold(); }
  void TakeKept(void* message) override { *static_cast<Response*>(message) = std::move(*kept_); }
  void Unreferenced() noexcept override { delete this; }
  virtual ~StreamCall() = default;

  class Reactor final : public Base {
   public:
    explicit Reactor(StreamCall& call) : call_(call) {}
    void OnReadInitialMetadataDone(bool ok) override { call_.HeadersArrived(ok); }
    void OnReadDone(bool ok) override { call_.ReadEnded(ok); }
    // Override where the kind of stream has them.
    virtual void OnWriteDone(bool ok) { call_.WriteEnded(ok); }
    virtual void OnWritesDoneDone(bool ok) { call_.HalfCloseEnded(ok); }
    void OnDone(const grpc::Status& status) override { call_.AttemptDone(grpc::Status(status)); }

   private:
    StreamCall& call_;
  };
  Reactor reactor_{*this};

 private:
  // A message that came before it was asked for; made when the first one may.
  std::unique_ptr<Response> kept_;
};

template <class Method>
class ServerStreamCall final : public StreamCall<grpc::ClientReadReactor<typename Method::Response>, typename Method::Response> {
  using Call = StreamCall<grpc::ClientReadReactor<typename Method::Response>, typename Method::Response>;

 public:
  ServerStreamCall(const Method& method, typename Method::Request request)
      : Call(StreamCore::Reads::kAsAsked), method_(method), request_(std::move(request)) {}

 private:
  void Prepare(void* async, const std::shared_ptr<grpc::Channel>&, grpc::ClientContext* context) override {
    (static_cast<typename Method::Async*>(async)->*method_.start)(context, &request_, &this->reactor_);
  }
  void GrpcWrite(const StreamCore::Write&) override {}
  void GrpcWritesDone() override {}

  const Method method_;
  const typename Method::Request request_;
};

template <class Request, class Response>
class WritingCall : public StreamCall<grpc::ClientBidiReactor<Request, Response>, Response> {
 protected:
  using StreamCall<grpc::ClientBidiReactor<Request, Response>, Response>::StreamCall;

  void GrpcWrite(const StreamCore::Write& write) final {
    this->reactor_.StartWrite(static_cast<const Request*>(write.message), write.options);
  }
  void GrpcWritesDone() final { this->reactor_.StartWritesDone(); }
};

template <class Method>
class BidiCall final : public WritingCall<typename Method::Request, typename Method::Response> {
 public:
  explicit BidiCall(const Method& method)
      : WritingCall<typename Method::Request, typename Method::Response>(StreamCore::Reads::kAsAsked), method_(method) {}

 private:
  void Prepare(void* async, const std::shared_ptr<grpc::Channel>&, grpc::ClientContext* context) override {
    (static_cast<typename Method::Async*>(async)->*method_.start)(context, &this->reactor_);
  }

  const Method method_;
};

// On the wire a client stream is a bidi stream whose server sends one message. As such it is run, since gRPC's own
// ClientWriteReactor cannot both be written to from any thread (which takes a hold) and hear of an early end (which a hold
// keeps back).
template <class Method>
class ClientStreamCall final : public WritingCall<typename Method::Request, typename Method::Response> {
 public:
  explicit ClientStreamCall(const Method& method)
      : WritingCall<typename Method::Request, typename Method::Response>(StreamCore::Reads::kOneResponse),
        path_(method.info->path) {}

 private:
  void Prepare(void*, const std::shared_ptr<grpc::Channel>& channel, grpc::ClientContext* context) override {
    grpc::TemplatedGenericStub<typename Method::Request, typename Method::Response>(channel).PrepareBidiStreamingCall(
        context, std::string(path_), {}, &this->reactor_);
  }

  const std::string_view path_;
};

}  // namespace penstock::inline v0::detail
