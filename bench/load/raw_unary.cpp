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

EchoRequest MakeRequest(int payload) {
  EchoRequest request;
  request.set_text(std::string(static_cast<std::size_t>(payload), 'x'));
  return request;
}

bool Echoed(const grpc::Status& status, const EchoRequest& request, const EchoResponse& response) {
  return status.ok() && response.text().size() == request.text().size();
}

// What the callback variants have in common: a caller a slot.
template <class Call>
class Calls final : public Variant {
 public:
  Calls(std::shared_ptr<grpc::Channel> channel, int payload)
      : stub_(Echo::NewStub(std::move(channel))), request_(MakeRequest(payload)) {}

  void Run(Meter& meter, std::deque<Slot>& slots) override {
    std::deque<Call> calls;
    for (Slot& slot : slots) calls.emplace_back(*stub_, slot, request_);
    RunCallers(calls, meter, slots);
  }

 private:
  std::unique_ptr<Echo::Stub> stub_;
  const EchoRequest request_;
};

class ReactorCall final : public grpc::ClientUnaryReactor {
 public:
  ReactorCall(Echo::Stub& stub, Slot& slot, const EchoRequest& request) : stub_(stub), slot_(slot), request_(request) {}

  void Call() {
    context_.emplace();
    stub_.async()->Unary(&*context_, &request_, &response_, this);
    StartCall();
  }

 private:
  void OnDone(const grpc::Status& status) override {
    if (slot_.EndAndContinue(Echoed(status, request_, response_))) Call();
  }

  Echo::Stub& stub_;
  Slot& slot_;
  const EchoRequest& request_;
  EchoResponse response_;
  std::optional<grpc::ClientContext> context_;
};

class FunctionCall {
 public:
  FunctionCall(Echo::Stub& stub, Slot& slot, const EchoRequest& request) : stub_(stub), slot_(slot), request_(request) {}

  void Call() {
    context_.emplace();
    stub_.async()->Unary(&*context_, &request_, &response_, [this](const grpc::Status& status) {
      if (slot_.EndAndContinue(Echoed(status, request_, response_))) Call();
    });
  }

 private:
  Echo::Stub& stub_;
  Slot& slot_;
  const EchoRequest& request_;
  EchoResponse response_;
  std::optional<grpc::ClientContext> context_;
};

// The same as services write it: what a call needs is allocated for it and freed at its end.
class ObjectCall {
 public:
  ObjectCall(Echo::Stub& stub, Slot& slot, const EchoRequest& request) : stub_(stub), slot_(slot), request_(request) {}

  void Call() {
    auto* object = new Object{.context = {}, .request = request_, .response = {}};
    stub_.async()->Unary(&object->context, &object->request, &object->response, [this, object](const grpc::Status& status) {
      const bool ok = Echoed(status, object->request, object->response);
      delete object;
      if (slot_.EndAndContinue(ok)) Call();
    });
  }

 private:
  struct Object {
    grpc::ClientContext context;
    EchoRequest request;
    EchoResponse response;
  };

  Echo::Stub& stub_;
  Slot& slot_;
  const EchoRequest& request_;
};

// One thread that drives a completion queue.
class RawCompletionQueue final : public Variant {
 public:
  RawCompletionQueue(std::shared_ptr<grpc::Channel> channel, int payload)
      : stub_(Echo::NewStub(std::move(channel))), request_(MakeRequest(payload)) {}

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
      call.slot.End(Echoed(call.status, request_, call.response));
      if (!Next(call, queue)) --running;
    }
    queue.Shutdown();
    while (queue.Next(&tag, &ok)) {
    }
  }

 private:
  struct Call {
    explicit Call(Slot& owner) : slot(owner) {}
    Slot& slot;
    EchoResponse response;
    grpc::Status status;
    std::optional<grpc::ClientContext> context;
    std::unique_ptr<grpc::ClientAsyncResponseReader<EchoResponse>> reader;
  };

  bool Next(Call& call, grpc::CompletionQueue& queue) {
    if (!call.slot.Begin()) return false;
    call.reader.reset();
    call.context.emplace();
    call.reader = stub_->AsyncUnary(&*call.context, request_, &queue);
    call.reader->Finish(&call.response, &call.status, &call);
    return true;
  }

  std::unique_ptr<Echo::Stub> stub_;
  const EchoRequest request_;
};

class RawSync final : public Variant {
 public:
  RawSync(std::shared_ptr<grpc::Channel> channel, int payload)
      : stub_(Echo::NewStub(std::move(channel))), request_(MakeRequest(payload)) {}

  void Run(Meter&, std::deque<Slot>& slots) override {
    const auto make_calls = [this](Slot& slot) {
      EchoResponse response;
      while (slot.Begin()) {
        grpc::ClientContext context;
        const grpc::Status status = stub_->Unary(&context, request_, &response);
        slot.End(Echoed(status, request_, response));
      }
    };
    if (slots.size() == 1) return make_calls(slots.front());
    std::vector<std::jthread> threads;
    for (Slot& slot : slots) threads.emplace_back([&] { make_calls(slot); });
  }

 private:
  std::unique_ptr<Echo::Stub> stub_;
  const EchoRequest request_;
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

template <class Made>
std::unique_ptr<Variant> Make(const VariantOptions& options) {
  return std::make_unique<Made>(MakeChannel(options.address), options.payload);
}

std::unique_ptr<Variant> MakeRetryPolicy(const VariantOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetServiceConfigJSON(kRetryPolicy);
  return std::make_unique<Calls<ReactorCall>>(MakeChannel(options.address, arguments), options.payload);
}

std::unique_ptr<Variant> MakeNoRetries(const VariantOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  return std::make_unique<Calls<ReactorCall>>(MakeChannel(options.address, arguments), options.payload);
}

std::unique_ptr<Variant> MakeTunedQueue(const VariantOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  return std::make_unique<RawCompletionQueue>(MakeChannel(options.address, arguments), options.payload);
}

std::unique_ptr<Variant> MakeInterceptor(const VariantOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> factories;
  factories.push_back(std::make_unique<DoNothingFactory>());
  return std::make_unique<Calls<ReactorCall>>(
      grpc::experimental::CreateCustomChannelWithInterceptors(options.address, grpc::InsecureChannelCredentials(), arguments,
                                                              std::move(factories)),
      options.payload);
}

}  // namespace

std::vector<VariantEntry> RawUnaryVariants() {
  return {
      {Kind::kUnary, "raw reactor", "ClientUnaryReactor: what all others are compared with", Make<Calls<ReactorCall>>},
      {Kind::kUnary, "raw reactor again", "the same once more: the control", Make<Calls<ReactorCall>>},
      {Kind::kUnary, "raw function", "the std::function form", Make<Calls<FunctionCall>>},
      {Kind::kUnary, "raw function, own object", "the same, with context and messages allocated for each call", Make<Calls<ObjectCall>>},
      {Kind::kUnary, "raw completion queue", "one thread that drives a queue", Make<RawCompletionQueue>},
      {Kind::kUnary, "raw completion queue, no retries", "the same with grpc.enable_retries 0", MakeTunedQueue},
      {Kind::kUnary, "raw sync", "a thread an outstanding call", Make<RawSync>},
      {Kind::kUnary, "raw reactor, no retries", "the raw reactor with grpc.enable_retries 0", MakeNoRetries},
      {Kind::kUnary, "grpc retry policy", "the raw reactor with gRPC's own retries configured", MakeRetryPolicy},
      {Kind::kUnary, "do-nothing interceptor", "the raw reactor with an interceptor that only proceeds", MakeInterceptor},
  };
}

}  // namespace load
