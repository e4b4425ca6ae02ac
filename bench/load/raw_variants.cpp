// grpc++ by itself, in the forms that it offers.
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_interceptor.h>

#include <optional>
#include <thread>

#include "penstock/test/v1/echo.grpc.pb.h"
#include "variant.h"

namespace load {
namespace {

using penstock::test::v1::Echo;
using penstock::test::v1::EchoRequest;
using penstock::test::v1::EchoResponse;

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, grpc::ChannelArguments arguments = {}) {
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

EchoRequest MakeRequest() {
  EchoRequest request;
  request.set_text(std::string(kPayloadBytes, 'x'));
  return request;
}

class RawReactor final : public Variant {
 public:
  explicit RawReactor(std::shared_ptr<grpc::Channel> channel) : stub_(Echo::NewStub(channel)) {}

  void Run(Meter& meter, std::deque<Slot>& slots) override {
    std::deque<Reactor> reactors;
    for (Slot& slot : slots) reactors.emplace_back(*stub_, slot);
    for (Reactor& reactor : reactors) reactor.Next();
    meter.Wait();
  }

 private:
  class Reactor final : public grpc::ClientUnaryReactor {
   public:
    Reactor(Echo::Stub& stub, Slot& slot) : stub_(stub), slot_(slot), request_(MakeRequest()) {}

    void Next() {
      if (!slot_.Begin()) return;
      context_.emplace();
      stub_.async()->Unary(&*context_, &request_, &response_, this);
      StartCall();
    }
    void OnDone(const grpc::Status& status) override {
      slot_.End(status.ok() && response_.text().size() == kPayloadBytes);
      Next();
    }

   private:
    Echo::Stub& stub_;
    Slot& slot_;
    EchoRequest request_;
    EchoResponse response_;
    std::optional<grpc::ClientContext> context_;
  };

  std::unique_ptr<Echo::Stub> stub_;
};

class RawFunction final : public Variant {
 public:
  explicit RawFunction(std::shared_ptr<grpc::Channel> channel) : stub_(Echo::NewStub(channel)) {}

  void Run(Meter& meter, std::deque<Slot>& slots) override {
    std::deque<Call> calls;
    for (Slot& slot : slots) calls.emplace_back(*stub_, slot);
    for (Call& call : calls) call.Next();
    meter.Wait();
  }

 private:
  struct Call {
    Call(Echo::Stub& owner_stub, Slot& owner_slot) : stub(owner_stub), slot(owner_slot), request(MakeRequest()) {}

    void Next() {
      if (!slot.Begin()) return;
      context.emplace();
      stub.async()->Unary(&*context, &request, &response, [this](grpc::Status status) {
        slot.End(status.ok() && response.text().size() == kPayloadBytes);
        Next();
      });
    }

    Echo::Stub& stub;
    Slot& slot;
    EchoRequest request;
    EchoResponse response;
    std::optional<grpc::ClientContext> context;
  };

  std::unique_ptr<Echo::Stub> stub_;
};

// The same as services write it: what a call needs is allocated for it and freed at its end.
class RawFunctionObject final : public Variant {
 public:
  explicit RawFunctionObject(std::shared_ptr<grpc::Channel> channel) : stub_(Echo::NewStub(channel)) {}

  void Run(Meter& meter, std::deque<Slot>& slots) override {
    for (Slot& slot : slots) Next(slot);
    meter.Wait();
  }

 private:
  struct Call {
    grpc::ClientContext context;
    EchoRequest request;
    EchoResponse response;
  };

  void Next(Slot& slot) {
    if (!slot.Begin()) return;
    auto* call = new Call{.context = {}, .request = request_, .response = {}};
    stub_->async()->Unary(&call->context, &call->request, &call->response, [this, &slot, call](grpc::Status status) {
      slot.End(status.ok() && call->response.text().size() == kPayloadBytes);
      delete call;
      Next(slot);
    });
  }

  std::unique_ptr<Echo::Stub> stub_;
  const EchoRequest request_ = MakeRequest();
};

// One thread that drives a completion queue.
class RawCompletionQueue final : public Variant {
 public:
  explicit RawCompletionQueue(std::shared_ptr<grpc::Channel> channel) : stub_(Echo::NewStub(channel)) {}

  void Run(Meter&, std::deque<Slot>& slots) override {
    grpc::CompletionQueue queue;
    std::deque<Call> calls;
    std::size_t running = 0;
    for (Slot& slot : slots) {
      Call& call = calls.emplace_back(slot);
      if (Next(call, queue)) ++running;
    }
    void* tag = nullptr;
    bool ok = false;
    while (running > 0 && queue.Next(&tag, &ok)) {
      Call& call = *static_cast<Call*>(tag);
      call.slot.End(call.status.ok() && call.response.text().size() == kPayloadBytes);
      if (!Next(call, queue)) --running;
    }
    queue.Shutdown();
    while (queue.Next(&tag, &ok)) {
    }
  }

 private:
  struct Call {
    explicit Call(Slot& owner) : slot(owner), request(MakeRequest()) {}
    Slot& slot;
    EchoRequest request;
    EchoResponse response;
    grpc::Status status;
    std::optional<grpc::ClientContext> context;
    std::unique_ptr<grpc::ClientAsyncResponseReader<EchoResponse>> reader;
  };

  bool Next(Call& call, grpc::CompletionQueue& queue) {
    if (!call.slot.Begin()) return false;
    call.reader.reset();
    call.context.emplace();
    call.reader = stub_->AsyncUnary(&*call.context, call.request, &queue);
    call.reader->Finish(&call.response, &call.status, &call);
    return true;
  }

  std::unique_ptr<Echo::Stub> stub_;
};

class RawSync final : public Variant {
 public:
  explicit RawSync(std::shared_ptr<grpc::Channel> channel) : stub_(Echo::NewStub(channel)) {}

  void Run(Meter&, std::deque<Slot>& slots) override {
    std::vector<std::jthread> threads;
    for (Slot& slot : slots) {
      threads.emplace_back([this, &slot] {
        const EchoRequest request = MakeRequest();
        while (slot.Begin()) {
          EchoResponse response;
          grpc::ClientContext context;
          const grpc::Status status = stub_->Unary(&context, request, &response);
          slot.End(status.ok() && response.text().size() == kPayloadBytes);
        }
      });
    }
  }

 private:
  std::unique_ptr<Echo::Stub> stub_;
};

class DoNothing final : public grpc::experimental::Interceptor {
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override { methods->Proceed(); }
};

class DoNothingFactory final : public grpc::experimental::ClientInterceptorFactoryInterface {
  grpc::experimental::Interceptor* CreateClientInterceptor(grpc::experimental::ClientRpcInfo*) override {
    return new DoNothing;
  }
};

constexpr const char* kRetryPolicy = R"({"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":3,
  "initialBackoff":"0.1s","maxBackoff":"5s","backoffMultiplier":2,"retryableStatusCodes":["UNAVAILABLE"]}}],
  "retryThrottling":{"maxTokens":100,"tokenRatio":0.1}})";

}  // namespace

std::unique_ptr<Variant> MakeRawReactor(const std::string& address) {
  return std::make_unique<RawReactor>(MakeChannel(address));
}
std::unique_ptr<Variant> MakeRawFunction(const std::string& address) {
  return std::make_unique<RawFunction>(MakeChannel(address));
}
std::unique_ptr<Variant> MakeRawFunctionObject(const std::string& address) {
  return std::make_unique<RawFunctionObject>(MakeChannel(address));
}
std::unique_ptr<Variant> MakeRawCompletionQueue(const std::string& address) {
  return std::make_unique<RawCompletionQueue>(MakeChannel(address));
}
std::unique_ptr<Variant> MakeRawSync(const std::string& address) {
  return std::make_unique<RawSync>(MakeChannel(address));
}
std::unique_ptr<Variant> MakeRetryPolicy(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetServiceConfigJSON(kRetryPolicy);
  return std::make_unique<RawReactor>(MakeChannel(address, arguments));
}
std::unique_ptr<Variant> MakeInterceptor(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> factories;
  factories.push_back(std::make_unique<DoNothingFactory>());
  return std::make_unique<RawReactor>(grpc::experimental::CreateCustomChannelWithInterceptors(
      address, grpc::InsecureChannelCredentials(), arguments, std::move(factories)));
}

}  // namespace load
