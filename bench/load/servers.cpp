#include "servers.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <sstream>

#ifdef PENSTOCK_BENCH_OTEL
#include "telemetry.h"
#endif
#include "meter.h"
#include "penstock/runtime/queued_writes.h"
#include "penstock/server/server.h"
#include "penstock/test/v1/echo.grpc.pb.h"
#include "variant.h"

namespace load {
namespace {

using penstock::test::v1::Echo;
using penstock::test::v1::EchoRequest;
using penstock::test::v1::EchoResponse;

// Messages of server streams that were written. Not all of them have been read when a run ends: with hints, what waits in buffers
// is most of a short run.
std::atomic<std::int64_t> messages_written{0};

void Wrote() { messages_written.fetch_add(1, std::memory_order_relaxed); }

// The answer to a question for the process's usage.
void TellUsage(const EchoRequest& request, EchoResponse& response) {
  if (request.text() == "start") StartCounting();
  if (request.text() == "stop") StopCounting();
  response.set_text(fmt::format("{} {} {} {}", CpuTime().count(), Allocations(), HeapBytes(), messages_written.load()));
}

// --- grpc++ by itself --------------------------------------------------------------------------------------------------

// Echoes each message. Those that come while one is written wait in a ring; with hints, a write behind which one waits says so.
class RawBidi final : public grpc::ServerBidiReactor<EchoRequest, EchoResponse> {
 public:
  explicit RawBidi(bool hints) : hints_(hints) { StartRead(&request_); }

 private:
  static constexpr std::size_t kRing = 2 * kWindow;

  void OnReadDone(bool ok) override {
    bool write = false;
    bool read = false;
    bool finish = false;
    {
      std::lock_guard lock(mutex_);
      if (!ok) {
        over_ = true;
        finish = waiting_ == 0;
      } else {
        ring_[(first_ + waiting_++) % kRing].set_text(request_.text());
        write = waiting_ == 1;
        read = waiting_ < kRing;
        paused_ = !read;
      }
    }
    if (write) StartFirst();
    if (read) StartRead(&request_);
    if (finish) Finish(grpc::Status::OK);
  }
  void OnWriteDone(bool ok) override {
    bool write = false;
    bool read = false;
    bool finish = false;
    {
      std::lock_guard lock(mutex_);
      written_ = true;
      first_ = (first_ + 1) % kRing;
      --waiting_;
      if (!ok) waiting_ = 0;
      write = waiting_ > 0;
      finish = over_ && !write;
      read = std::exchange(paused_, false);
    }
    if (write) StartFirst();
    if (read) StartRead(&request_);
    if (finish) Finish(grpc::Status::OK);
  }
  void OnDone() override { delete this; }

  void StartFirst() {
    grpc::WriteOptions options;
    const EchoResponse* response = nullptr;
    {
      std::lock_guard lock(mutex_);
      response = &ring_[first_];
      if (hints_ && written_ && waiting_ > 1) options.set_buffer_hint();
    }
    StartWrite(response, options);
  }

  const bool hints_;
  EchoRequest request_;
  std::mutex mutex_;
  std::array<EchoResponse, kRing> ring_;
  std::size_t first_ = 0;
  std::size_t waiting_ = 0;
  bool written_ = false;
  bool paused_ = false;
  bool over_ = false;
};

// Sends the same message without end; or, for a request that asks for none, only the headers.
class RawDown final : public grpc::ServerWriteReactor<EchoResponse> {
 public:
  RawDown(bool hints, const EchoRequest& request) {
    response_.set_text(request.text());
    if (request.count() == 0) {
      StartSendInitialMetadata();
      return;
    }
    idle_ = false;
    if (hints) options_.set_buffer_hint();
    StartWrite(&response_);  // Without: a hint on a server's first write hangs the stream.
  }

 private:
  void OnWriteDone(bool ok) override {
    if (ok) {
      Wrote();
      StartWrite(&response_, options_);
    } else {
      Finish(grpc::Status::CANCELLED);
    }
  }
  void OnCancel() override {
    if (idle_) Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override { delete this; }

  bool idle_ = true;
  EchoResponse response_;
  grpc::WriteOptions options_;
};

class RawUp final : public grpc::ServerReadReactor<EchoRequest> {
 public:
  explicit RawUp(EchoResponse* response) : response_(response) { StartRead(&request_); }

 private:
  void OnReadDone(bool ok) override {
    if (ok) {
      ++messages_;
      StartRead(&request_);
    } else {
      response_->set_sequence(messages_);
      Finish(grpc::Status::OK);
    }
  }
  void OnDone() override { delete this; }

  EchoResponse* response_;
  EchoRequest request_;
  int messages_ = 0;
};

class OwnUnary final : public grpc::ServerUnaryReactor {
 public:
  OwnUnary() { Finish(grpc::Status::OK); }

 private:
  void OnDone() override { delete this; }
};

class RawServer final : public RunningServer {
 public:
  RawServer(bool hints, bool own_reactor) : service_(hints, own_reactor) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
  }
  bool ok() const { return server_ != nullptr; }
  std::string address() const override { return fmt::format("127.0.0.1:{}", port_); }

 private:
  class Service final : public Echo::CallbackService {
   public:
    Service(bool hints, bool own_reactor) : hints_(hints), own_reactor_(own_reactor) {}

   private:
    grpc::ServerUnaryReactor* Unary(grpc::CallbackServerContext* context, const EchoRequest* request,
                                    EchoResponse* response) override {
      response->set_text(request->text());
      if (own_reactor_) return new OwnUnary;
      grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
      reactor->Finish(grpc::Status::OK);
      return reactor;
    }
    grpc::ServerUnaryReactor* Idempotent(grpc::CallbackServerContext* context, const EchoRequest* request,
                                         EchoResponse* response) override {
      TellUsage(*request, *response);
      grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
      reactor->Finish(grpc::Status::OK);
      return reactor;
    }
    grpc::ServerBidiReactor<EchoRequest, EchoResponse>* Bidi(grpc::CallbackServerContext*) override {
      return new RawBidi(hints_);
    }
    grpc::ServerWriteReactor<EchoResponse>* Down(grpc::CallbackServerContext*, const EchoRequest* request) override {
      return new RawDown(hints_, *request);
    }
    grpc::ServerReadReactor<EchoRequest>* Up(grpc::CallbackServerContext*, EchoResponse* response) override {
      return new RawUp(response);
    }

    const bool hints_;
    const bool own_reactor_;
  };

  Service service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// --- penstock ------------------------------------------------------------------------------------------------------------

class QueuedBidi final : public penstock::QueuedWrites<penstock::ServerBidiReactor<EchoRequest, EchoResponse>> {
 public:
  explicit QueuedBidi(bool coalesce) : QueuedWrites({.coalesce = coalesce}) { StartRead(&request_); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return FinishAfterWrites(grpc::Status::OK);
    response_.set_text(request_.text());
    Answer();
  }
  void OnWritable() override { Answer(); }
  void Answer() {
    if (Write(response_) == penstock::Queued::kQueued) StartRead(&request_);
  }

  EchoRequest request_;
  EchoResponse response_;
};

// Echoes a message before it reads the next.
class PlainBidi final : public penstock::ServerBidiReactor<EchoRequest, EchoResponse> {
 public:
  PlainBidi() { StartRead(&request_); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) {
      Finish(grpc::Status::OK);
      return;
    }
    response_.set_text(request_.text());
    StartWrite(&response_);
  }
  void OnWriteDone(bool) override { StartRead(&request_); }

  EchoRequest request_;
  EchoResponse response_;
};

class QueuedDown final : public penstock::QueuedWrites<penstock::ServerWriteReactor<EchoResponse>> {
 public:
  explicit QueuedDown(const EchoRequest& request) {
    response_.set_text(request.text());
    if (request.count() != 0) OnWritable();
  }

 private:
  void OnWritable() override {
    while (Write(response_) == penstock::Queued::kQueued) Wrote();
  }

  EchoResponse response_;
};

class PlainDown final : public penstock::ServerWriteReactor<EchoResponse> {
 public:
  explicit PlainDown(const EchoRequest& request) {
    response_.set_text(request.text());
    if (request.count() != 0) StartWrite(&response_);
  }

 private:
  void OnWriteDone(bool ok) override {
    if (!ok) return;
    Wrote();
    StartWrite(&response_);
  }

  EchoResponse response_;
};

class Up final : public penstock::ServerReadReactor<EchoRequest> {
 public:
  explicit Up(EchoResponse* response) : response_(response) { StartRead(&request_); }

 private:
  void OnReadDone(bool ok) override {
    if (ok) {
      ++messages_;
      StartRead(&request_);
    } else {
      response_->set_sequence(messages_);
      Finish(grpc::Status::OK);
    }
  }

  EchoResponse* response_;
  EchoRequest request_;
  int messages_ = 0;
};

enum class Writes { kPlain, kQueued, kCoalesced };

class PenstockServer final : public RunningServer {
 public:
  PenstockServer(Writes writes, std::vector<std::shared_ptr<penstock::ServerObserver>> observers)
      : service_(writes),
        server_(penstock::Server::Create(
            {.address = "127.0.0.1:0", .plaintext = true, .observers = std::move(observers)}, {&service_})) {}
  bool ok() const { return server_.ok(); }
  std::string address() const override { return fmt::format("127.0.0.1:{}", (*server_)->port()); }

 private:
  class Service final : public penstock::Service<Echo> {
   public:
    explicit Service(Writes writes) : writes_(writes) { PoolMessages(&Service::SetMessageAllocatorFor_Unary); }

   private:
    grpc::ServerUnaryReactor* Unary(grpc::CallbackServerContext* context, const EchoRequest* request,
                                    EchoResponse* response) override {
      return Handle(context, [&] {
        response->set_text(request->text());
        return grpc::Status::OK;
      });
    }
    grpc::ServerUnaryReactor* Idempotent(grpc::CallbackServerContext* context, const EchoRequest* request,
                                         EchoResponse* response) override {
      return Handle(context, [&] {
        TellUsage(*request, *response);
        return grpc::Status::OK;
      });
    }
    grpc::ServerBidiReactor<EchoRequest, EchoResponse>* Bidi(grpc::CallbackServerContext* context) override {
      if (writes_ != Writes::kPlain) return Start<QueuedBidi>(context, writes_ == Writes::kCoalesced);
      return Start<PlainBidi>(context);
    }
    grpc::ServerWriteReactor<EchoResponse>* Down(grpc::CallbackServerContext* context, const EchoRequest* request) override {
      if (writes_ != Writes::kPlain) return Start<QueuedDown>(context, *request);
      return Start<PlainDown>(context, *request);
    }
    grpc::ServerReadReactor<EchoRequest>* Up(grpc::CallbackServerContext* context, EchoResponse* response) override {
      return Start<load::Up>(context, response);
    }

    const Writes writes_;
  };

  Service service_;
  penstock::Result<std::unique_ptr<penstock::Server>> server_;
};

template <class Made, class... Arguments>
std::unique_ptr<RunningServer> Started(Arguments&&... arguments) {
  auto server = std::make_unique<Made>(std::forward<Arguments>(arguments)...);
  if (!server->ok()) return nullptr;
  return server;
}

using Observers = std::vector<std::shared_ptr<penstock::ServerObserver>>;

}  // namespace

std::unique_ptr<RunningServer> StartServer(const std::string& kind) {
  std::unique_ptr<RunningServer> server;
  if (kind == "raw" || kind == "raw again") server = Started<RawServer>(true, false);
  if (kind == "raw plain") server = Started<RawServer>(false, false);
  if (kind == "raw own reactor") server = Started<RawServer>(true, true);
  if (kind == "penstock") server = Started<PenstockServer>(Writes::kQueued, Observers{});
  if (kind == "penstock coalescing") server = Started<PenstockServer>(Writes::kCoalesced, Observers{});
  if (kind == "penstock plain") server = Started<PenstockServer>(Writes::kPlain, Observers{});
#ifdef PENSTOCK_BENCH_OTEL
  if (kind == "penstock, OpenTelemetry") server = Started<PenstockServer>(Writes::kQueued, Observers{OtelServerObserver()});
#endif
  if (server == nullptr) fmt::print(stderr, "bench/load: the server '{}' did not start\n", kind);
  return server;
}

ServerUsage AskUsage(const std::string& address, const std::string& what) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto stub =
      Echo::NewStub(grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  EchoRequest request;
  EchoResponse response;
  request.set_text(what);
  ServerUsage usage;
  const grpc::Status status = stub->Idempotent(&context, request, &response);
  std::istringstream text(response.text());
  usage.ok = status.ok() && text >> usage.cpu_us >> usage.allocations >> usage.heap_bytes >> usage.messages_written;
  return usage;
}

}  // namespace load
