#pragma once

// What the tests of the server share: an Echo service on penstock's reactors, a server of it, and plain gRPC clients.

#include <doctest/doctest.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "penstock/runtime.h"
#include "penstock/server/server.h"
#include "penstock/test/v1/echo.grpc.pb.h"
#include "support/eventually.h"

namespace penstock::test {

using namespace std::chrono_literals;
using v1::EchoRequest;
using v1::EchoResponse;

// Whether the run has the machine to itself (the suite slow): then bounds are checked to the letter, and series run whole.
inline bool FullRun() { return std::getenv("PENSTOCK_FULL") != nullptr; }

// What the rules allow, with room for a machine that does other things beside.
inline std::chrono::milliseconds Bound(std::chrono::milliseconds allowed) { return FullRun() ? allowed : 20 * allowed; }

// Keeps what penstock logs while it lives.
class LogKeeper {
 public:
  LogKeeper() {
    SetLogSink([this](LogSeverity, const std::string& line) {
      std::lock_guard lock(mutex_);
      lines_ += line + "\n";
    });
  }
  ~LogKeeper() { SetLogSink({}); }
  std::string text() const {
    std::lock_guard lock(mutex_);
    return lines_;
  }
  bool Has(const std::string& part) const { return text().find(part) != std::string::npos; }

 private:
  mutable std::mutex mutex_;
  std::string lines_;
};

// Replies that a test gives when it wants to.
class Replies {
 public:
  void Keep(Reply reply) {
    std::lock_guard lock(mutex_);
    kept_.push_back(std::move(reply));
  }
  std::size_t size() const {
    std::lock_guard lock(mutex_);
    return kept_.size();
  }
  // How many were cancelled.
  std::size_t cancelled() const {
    std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(std::count_if(kept_.begin(), kept_.end(), [](const Reply& reply) { return reply.cancelled(); }));
  }
  void FinishAll(const grpc::Status& status) {
    for (Reply& reply : Take()) reply.Finish(status);
  }
  void DropAll() { Take(); }

 private:
  // Without the lock from here on: what ends a call may run the test's own code.
  std::vector<Reply> Take() {
    std::lock_guard lock(mutex_);
    return std::exchange(kept_, {});
  }

  mutable std::mutex mutex_;
  std::vector<Reply> kept_;
};

// What happened to the streams of a service.
struct StreamEvents {
  std::atomic<int> opened{0}, cancelled{0}, shut_down{0}, done{0};
};

// Sends `count` messages (-1: one, and then nothing more), then ends; `count` 0 sends nothing and stays.
class DownReactor final : public ServerWriteReactor<EchoResponse> {
 public:
  DownReactor(StreamEvents& events, const EchoRequest& request, std::string pod)
      : events_(events), left_(request.count()), pod_(std::move(pod)) {
    ++events_.opened;
    if (left_ != 0) Next();
  }

 private:
  void Next() {
    message_.set_pod(pod_);
    message_.set_sequence(sequence_++);
    StartWrite(&message_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok || left_ < 0) return;
    if (--left_ == 0) {
      Finish(grpc::Status::OK);
    } else {
      Next();
    }
  }
  void OnCancelled() override { ++events_.cancelled; }
  void OnShutdown() override { ++events_.shut_down; }
  void OnDone() override { ++events_.done; }

  StreamEvents& events_;
  int left_;
  int sequence_ = 0;
  std::string pod_;
  EchoResponse message_;
};

// Answers each message.
class BidiReactor final : public ServerBidiReactor<EchoRequest, EchoResponse> {
 public:
  BidiReactor(StreamEvents& events, std::string pod) : events_(events), pod_(std::move(pod)) {
    ++events_.opened;
    StartRead(&request_);
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) {
      Finish(grpc::Status::OK);
      return;
    }
    response_.set_text(request_.text());
    response_.set_pod(pod_);
    StartWrite(&response_);
  }
  void OnWriteDone(bool ok) override {
    if (ok) StartRead(&request_);
  }
  void OnCancelled() override { ++events_.cancelled; }
  void OnShutdown() override { ++events_.shut_down; }
  void OnDone() override { ++events_.done; }

  StreamEvents& events_;
  std::string pod_;
  EchoRequest request_;
  EchoResponse response_;
};

// Counts the messages.
class UpReactor final : public ServerReadReactor<EchoRequest> {
 public:
  UpReactor(StreamEvents& events, EchoResponse* response) : events_(events), response_(response) {
    ++events_.opened;
    StartRead(&request_);
  }

 private:
  void OnReadDone(bool ok) override {
    if (ok) {
      ++count_;
      StartRead(&request_);
    } else {
      response_->set_sequence(count_);
      Finish(grpc::Status::OK);
    }
  }
  void OnCancelled() override { ++events_.cancelled; }
  void OnShutdown() override { ++events_.shut_down; }
  void OnDone() override { ++events_.done; }

  StreamEvents& events_;
  EchoResponse* response_;
  EchoRequest request_;
  int count_ = 0;
};

class GuardedEcho final : public Service<v1::Echo> {
 public:
  explicit GuardedEcho(std::string pod_name = "pod") : pod(std::move(pod_name)) {}

  using Unaries = std::function<grpc::Status(grpc::CallbackServerContext*, const EchoRequest&, EchoResponse*)>;
  using Replies = std::function<void(grpc::CallbackServerContext*, const EchoRequest&, EchoResponse*, Reply)>;

  // Instead of the echo, where set; before the server is made.
  Unaries on_unary;
  Replies on_repeatable;
  std::function<grpc::ServerUnaryReactor*(grpc::CallbackServerContext*, const EchoRequest*, EchoResponse*)> on_idempotent;
  std::function<grpc::ServerWriteReactor<EchoResponse>*(grpc::CallbackServerContext*, const EchoRequest*)> on_down;
  std::function<grpc::ServerReadReactor<EchoRequest>*(grpc::CallbackServerContext*, EchoResponse*)> on_up;
  std::function<grpc::ServerBidiReactor<EchoRequest, EchoResponse>*(grpc::CallbackServerContext*)> on_bidi;

  const std::string pod;
  StreamEvents streams;
  std::atomic<int> unary_calls{0};

  // For on_… functions.
  template <class Reactor, class... Arguments>
  static auto StartIn(grpc::CallbackServerContext* context, Arguments&&... arguments) {
    return Start<Reactor>(context, std::forward<Arguments>(arguments)...);
  }
  template <class Function>
  static auto HandleIn(grpc::CallbackServerContext* context, Function&& function) {
    return Handle(context, std::forward<Function>(function));
  }
  template <class Function>
  static auto HandleOnIn(WorkPool& pool, grpc::CallbackServerContext* context, Function&& function) {
    return HandleOn(pool, context, std::forward<Function>(function));
  }

  grpc::ServerUnaryReactor* Unary(grpc::CallbackServerContext* context, const EchoRequest* request,
                                  EchoResponse* response) override {
    return Handle(context, [&]() -> grpc::Status {
      ++unary_calls;
      if (on_unary) return on_unary(context, *request, response);
      response->set_text(request->text());
      response->set_pod(pod);
      if (request->code() != 0) return {static_cast<grpc::StatusCode>(request->code()), request->message()};
      return grpc::Status::OK;
    });
  }

  grpc::ServerUnaryReactor* Repeatable(grpc::CallbackServerContext* context, const EchoRequest* request,
                                       EchoResponse* response) override {
    return Handle(context, [&](Reply reply) {
      if (on_repeatable) return on_repeatable(context, *request, response, std::move(reply));
      response->set_pod(pod);
      reply.Finish(grpc::Status::OK);
    });
  }

  grpc::ServerUnaryReactor* Idempotent(grpc::CallbackServerContext* context, const EchoRequest* request,
                                       EchoResponse* response) override {
    return on_idempotent(context, request, response);
  }

  grpc::ServerWriteReactor<EchoResponse>* Down(grpc::CallbackServerContext* context, const EchoRequest* request) override {
    if (on_down) return on_down(context, request);
    return Start<DownReactor>(context, streams, *request, pod);
  }

  grpc::ServerReadReactor<EchoRequest>* Up(grpc::CallbackServerContext* context, EchoResponse* response) override {
    if (on_up) return on_up(context, response);
    return Start<UpReactor>(context, streams, response);
  }

  grpc::ServerBidiReactor<EchoRequest, EchoResponse>* Bidi(grpc::CallbackServerContext* context) override {
    if (on_bidi) return on_bidi(context);
    return Start<BidiReactor>(context, streams, pod);
  }
};

// Plain text on a free port of 127.0.0.1, without a drain, unless the settings say otherwise.
inline ServerSettings LocalSettings() {
  ServerSettings settings;
  settings.address = "127.0.0.1:0";
  settings.plaintext = true;
  settings.drain = 0s;
  settings.grace = 5s;
  return settings;
}

inline std::unique_ptr<Server> MakeServer(ServerSettings settings, std::vector<AnyService*> services) {
  auto server = Server::Create(std::move(settings), std::move(services));
  if (!server.ok()) FAIL(server.error().message());
  return *std::move(server);
}

inline std::string AddressOf(const Server& server) { return "127.0.0.1:" + std::to_string(server.port()); }

// A channel whose connection no other channel shares.
inline std::shared_ptr<grpc::Channel> ChannelTo(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt("grpc.enable_http_proxy", 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

inline void SetLimit(grpc::ClientContext& context) { context.set_deadline(std::chrono::system_clock::now() + 30s); }

inline grpc::Status CallUnary(v1::Echo::Stub& stub, const EchoRequest& request, EchoResponse* response) {
  grpc::ClientContext context;
  SetLimit(context);
  return stub.Unary(&context, request, response);
}

}  // namespace penstock::test
