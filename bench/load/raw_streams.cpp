// Streams by grpc++ itself: a careful user's reactors, with and without the buffer hint.
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <deque>
#include <mutex>

#include "penstock/test/v1/echo.grpc.pb.h"
#include "variant.h"

namespace load {
namespace {

using penstock::test::v1::Echo;
using penstock::test::v1::EchoRequest;
using penstock::test::v1::EchoResponse;

grpc::WriteOptions Hint(bool hint) { return hint ? grpc::WriteOptions().set_buffer_hint() : grpc::WriteOptions(); }

// What all kinds have in common: a stream a slot, made anew for each run.
template <class Stream, bool kHints>
class Streams final : public Variant {
 public:
  explicit Streams(const VariantOptions& options) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stub_ = Echo::NewStub(grpc::CreateCustomChannel(options.address, grpc::InsecureChannelCredentials(), arguments));
    request_.set_text(std::string(static_cast<std::size_t>(options.payload), 'x'));
  }

  void Run(Meter& meter, std::deque<Slot>& slots) override {
    streams_.clear();
    for (Slot& slot : slots) streams_.emplace_back(slot, request_, kHints).Open(*stub_);
    meter.Wait();
  }

 private:
  std::unique_ptr<Echo::Stub> stub_;
  EchoRequest request_;
  std::deque<Stream> streams_;
};

// One message under way. The next is due once it has been answered and gRPC has said that it is written, in either order.
class PingPong final : public grpc::ClientBidiReactor<EchoRequest, EchoResponse> {
 public:
  PingPong(Slot& slot, const EchoRequest& request, bool) : slot_(slot), request_(request) {}

  void Open(Echo::Stub& stub) {
    stub.async()->Bidi(&context_, this);
    slot_.Restart();
    StartWrite(&request_);
    StartRead(&response_);
    StartCall();
  }

 private:
  void OnReadDone(bool ok) override {
    if (ok) One();
  }
  void OnWriteDone(bool ok) override {
    if (ok) One();
  }
  void One() {
    // acq_rel: the second sees what the first has done.
    if (missing_.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    missing_.store(2, std::memory_order_relaxed);
    if (slot_.EndAndGoOn(response_.text().size() == request_.text().size())) {
      StartWrite(&request_);
    } else {
      StartWritesDone();
    }
    StartRead(&response_);
  }
  void OnDone(const grpc::Status& status) override { slot_.Finished(status.ok()); }

  Slot& slot_;
  const EchoRequest& request_;
  grpc::ClientContext context_;
  EchoResponse response_;
  std::atomic<int> missing_{2};
};

// kWindow messages under way: each answer makes room for the next.
class Burst final : public grpc::ClientBidiReactor<EchoRequest, EchoResponse> {
 public:
  Burst(Slot& slot, const EchoRequest& request, bool hints) : slot_(slot), request_(request), hints_(hints) {}

  void Open(Echo::Stub& stub) {
    stub.async()->Bidi(&context_, this);
    StartWrite(&request_, Hint(hints_));
    StartRead(&response_);
    StartCall();
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    bool write = false;
    bool close = false;
    bool hint = false;
    {
      std::lock_guard lock(mutex_);
      if (going_) going_ = slot_.Count();
      if (going_) ++waiting_;
      if (!writing_ && waiting_ > 0) {
        writing_ = write = true;
        hint = --waiting_ > 0;
      } else if (!writing_ && !going_) {
        close = !std::exchange(closed_, true);
      }
    }
    if (write) StartWrite(&request_, Hint(hints_ && hint));
    if (close) StartWritesDone();
    StartRead(&response_);
  }
  void OnWriteDone(bool ok) override {
    bool write = false;
    bool close = false;
    bool hint = false;
    {
      std::lock_guard lock(mutex_);
      writing_ = write = ok && waiting_ > 0;
      if (write) hint = --waiting_ > 0;
      if (!write && !going_) close = !std::exchange(closed_, true);
    }
    if (write) StartWrite(&request_, Hint(hints_ && hint));
    if (close) StartWritesDone();
  }
  void OnDone(const grpc::Status& status) override { slot_.Finished(status.ok()); }

  Slot& slot_;
  const EchoRequest& request_;
  const bool hints_;
  grpc::ClientContext context_;
  EchoResponse response_;
  std::mutex mutex_;
  int waiting_ = kWindow - 1;
  bool writing_ = true;
  bool going_ = true;
  bool closed_ = false;
};

// Writes without end. With hints, each says that another follows, and the half-close flushes.
class UpStream final : public grpc::ClientWriteReactor<EchoRequest> {
 public:
  UpStream(Slot& slot, const EchoRequest& request, bool hints) : slot_(slot), request_(request), hints_(hints) {}

  void Open(Echo::Stub& stub) {
    stub.async()->Up(&context_, &response_, this);
    StartWrite(&request_, Hint(hints_));
    StartCall();
  }

 private:
  void OnWriteDone(bool ok) override {
    if (ok && slot_.Count()) {
      StartWrite(&request_, Hint(hints_));
    } else {
      StartWritesDone();
    }
  }
  void OnDone(const grpc::Status& status) override {
    slot_.Finished(status.ok() && response_.sequence() == slot_.calls());
  }

  Slot& slot_;
  const EchoRequest& request_;
  const bool hints_;
  grpc::ClientContext context_;
  EchoResponse response_;
};

class DownStream final : public grpc::ClientReadReactor<EchoResponse> {
 public:
  DownStream(Slot& slot, EchoRequest request, bool) : slot_(slot), request_(std::move(request)) { request_.set_count(-1); }

  void Open(Echo::Stub& stub) {
    stub.async()->Down(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (going_) going_ = slot_.Count();
    if (!going_) context_.TryCancel();
    StartRead(&response_);
  }
  void OnDone(const grpc::Status& status) override {
    slot_.Finished(status.error_code() == grpc::StatusCode::CANCELLED);
  }

  Slot& slot_;
  EchoRequest request_;
  grpc::ClientContext context_;
  EchoResponse response_;
  bool going_ = true;
};

// Opened, and then nothing comes.
class IdleStream final : public grpc::ClientReadReactor<EchoResponse> {
 public:
  IdleStream(Slot& slot, EchoRequest request, bool) : slot_(slot), request_(std::move(request)) {}

  void Open(Echo::Stub& stub) {
    stub.async()->Down(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }

 private:
  void OnReadInitialMetadataDone(bool ok) override {
    if (ok) slot_.Opened();
  }
  void OnDone(const grpc::Status&) override {}

  Slot& slot_;
  EchoRequest request_;
  grpc::ClientContext context_;
  EchoResponse response_;
};

template <class Stream, bool kHints>
std::unique_ptr<Variant> Make(const VariantOptions& options) {
  return std::make_unique<Streams<Stream, kHints>>(options);
}

}  // namespace

std::vector<VariantEntry> RawStreamVariants() {
  return {
      {Kind::kBidi, "raw", "ClientBidiReactor: what the others are compared with", Make<PingPong, false>},
      {Kind::kBidiBurst, "raw plain", "a write at a time, without the buffer hint", Make<Burst, false>},
      {Kind::kBidiBurst, "raw hints", "the buffer hint where another message waits", Make<Burst, true>},
      {Kind::kUp, "raw plain", "a write at a time, without the buffer hint", Make<UpStream, false>},
      {Kind::kUp, "raw hints", "the buffer hint on all but the last", Make<UpStream, true>},
      {Kind::kDown, "raw", "ClientReadReactor", Make<DownStream, false>},
      {Kind::kIdle, "raw", "ClientReadReactor", Make<IdleStream, false>},
  };
}

}  // namespace load
