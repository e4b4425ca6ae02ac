// Streams through penstock: its reactors as they are, behind a write queue, and subscriptions.
#include <fmt/format.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <deque>

#include "penstock/client/client.h"
#include "penstock/runtime/queued_writes.h"
#include "penstock/test/v1/echo.grpc.pb.h"
#include "variant.h"

namespace load {
namespace {

using penstock::test::v1::Echo;
using penstock::test::v1::EchoRequest;
using penstock::test::v1::EchoResponse;

penstock::Client MakeClient(const std::string& address) {
  auto client = penstock::Client::Create({.address = address, .plaintext = true});
  if (!client.ok()) {
    fmt::print(stderr, "bench/load: {}\n", client.error().message());
    std::_Exit(1);
  }
  return std::move(*client);
}

// What all kinds have in common: a stream a slot, made anew for each run.
template <class Stream>
class Streams final : public Variant {
 public:
  explicit Streams(const VariantOptions& options) : client_(MakeClient(options.address)) {
    request_.set_text(std::string(static_cast<std::size_t>(options.payload), 'x'));
  }

  void Run(Meter& meter, std::deque<Slot>& slots) override {
    streams_.clear();
    for (Slot& slot : slots) streams_.emplace_back(slot, request_).Open(client_);
    meter.Wait();
  }

 private:
  penstock::Client client_;
  EchoRequest request_;
  std::deque<Stream> streams_;
};

// One message under way. The next is due once it has been answered and its OnWriteDone has come, in either order.
class PingPong final : public penstock::ClientBidiReactor<EchoRequest, EchoResponse> {
 public:
  PingPong(Slot& slot, const EchoRequest& request) : slot_(slot), request_(request) {}

  void Open(penstock::Client& client) {
    slot_.Restart();
    (void)StartWrite(&request_);
    (void)StartRead(&response_);
    client.Open(PENSTOCK_METHOD(Echo, Bidi), {}, *this);
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
      (void)StartWrite(&request_);
    } else {
      (void)StartWritesDone();
    }
    (void)StartRead(&response_);
  }
  void OnDone(const penstock::CallResult& result) override { slot_.Finished(result.ok()); }

  Slot& slot_;
  const EchoRequest& request_;
  EchoResponse response_;
  std::atomic<int> missing_{2};
};

template <bool kCoalesce>
class Burst final : public penstock::QueuedWrites<penstock::ClientBidiReactor<EchoRequest, EchoResponse>> {
 public:
  Burst(Slot& slot, const EchoRequest& request) : QueuedWrites({.coalesce = kCoalesce}), slot_(slot), request_(request) {}

  void Open(penstock::Client& client) {
    for (int i = 0; i < kWindow; ++i) (void)Write(request_);
    (void)StartRead(&response_);
    client.Open(PENSTOCK_METHOD(Echo, Bidi), {}, *this);
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (going_) {
      going_ = slot_.Count();
      if (going_) {
        (void)Write(request_);
      } else {
        WritesDone();
      }
    }
    (void)StartRead(&response_);
  }
  void OnDone(const penstock::CallResult& result) override { slot_.Finished(result.ok()); }

  Slot& slot_;
  const EchoRequest& request_;
  EchoResponse response_;
  bool going_ = true;
};

class PlainUp final : public penstock::ClientWriteReactor<EchoRequest> {
 public:
  PlainUp(Slot& slot, const EchoRequest& request) : slot_(slot), request_(request) {}

  void Open(penstock::Client& client) {
    (void)StartWrite(&request_);
    client.Open(PENSTOCK_METHOD(Echo, Up), {}, &response_, *this);
  }

 private:
  void OnWriteDone(bool ok) override {
    if (ok && slot_.Count()) {
      (void)StartWrite(&request_);
    } else {
      (void)StartWritesDone();
    }
  }
  void OnDone(const penstock::CallResult& result) override {
    slot_.Finished(result.ok() && response_.sequence() == slot_.calls());
  }

  Slot& slot_;
  const EchoRequest& request_;
  EchoResponse response_;
};

class QueuedUp final : public penstock::QueuedWrites<penstock::ClientWriteReactor<EchoRequest>> {
 public:
  QueuedUp(Slot& slot, const EchoRequest& request) : slot_(slot), request_(request) {}

  void Open(penstock::Client& client) {
    OnWritable();
    client.Open(PENSTOCK_METHOD(Echo, Up), {}, &response_, *this);
  }

 private:
  void OnWritable() override {
    while (going_ && Write(request_) == penstock::Queued::kQueued) going_ = slot_.Count();
    if (!going_) WritesDone();
  }
  void OnDone(const penstock::CallResult& result) override {
    slot_.Finished(result.ok() && response_.sequence() == slot_.calls());
  }

  Slot& slot_;
  const EchoRequest& request_;
  EchoResponse response_;
  bool going_ = true;
};

class DownStream final : public penstock::ClientReadReactor<EchoResponse> {
 public:
  DownStream(Slot& slot, EchoRequest request) : slot_(slot), request_(std::move(request)) { request_.set_count(-1); }

  void Open(penstock::Client& client) {
    (void)StartRead(&response_);
    client.Open(PENSTOCK_METHOD(Echo, Down), request_, {}, *this);
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (going_) going_ = slot_.Count();
    if (!going_) Cancel();
    (void)StartRead(&response_);
  }
  void OnDone(const penstock::CallResult& result) override {
    slot_.Finished(result.status.error_code() == grpc::StatusCode::CANCELLED);
  }

  Slot& slot_;
  EchoRequest request_;
  EchoResponse response_;
  bool going_ = true;
};

class IdleStream final : public penstock::ClientReadReactor<EchoResponse> {
 public:
  IdleStream(Slot& slot, EchoRequest request) : slot_(slot), request_(std::move(request)) {}

  void Open(penstock::Client& client) {
    (void)StartRead(&response_);
    client.Open(PENSTOCK_METHOD(Echo, Down), request_, {}, *this);
  }

 private:
  void OnOpened() override { slot_.Opened(); }
  void OnDone(const penstock::CallResult&) override {}

  Slot& slot_;
  EchoRequest request_;
  EchoResponse response_;
};

class IdleSubscription final {
 public:
  IdleSubscription(Slot& slot, EchoRequest request) : slot_(slot), request_(std::move(request)) {}

  void Open(penstock::Client& client) {
    subscription_ = client.Subscribe(PENSTOCK_METHOD(Echo, Down), request_,
                                     {.on_message = [this](EchoResponse&) { ++messages_; },
                                      .on_open = [this] { slot_.Opened(); }});
  }

 private:
  Slot& slot_;
  EchoRequest request_;
  int messages_ = 0;
  penstock::Subscription subscription_;
};

template <class Stream>
std::unique_ptr<Variant> Make(const VariantOptions& options) {
  return std::make_unique<Streams<Stream>>(options);
}

}  // namespace

std::vector<VariantEntry> PenstockStreamVariants() {
  return {
      {Kind::kBidi, "penstock", "penstock::ClientBidiReactor", Make<PingPong>},
      {Kind::kBidiBurst, "penstock", "QueuedWrites", Make<Burst<false>>},
      {Kind::kBidiBurst, "penstock coalescing", "QueuedWrites that coalesces", Make<Burst<true>>},
      {Kind::kUp, "penstock", "QueuedWrites", Make<QueuedUp>},
      {Kind::kUp, "penstock plain", "penstock::ClientWriteReactor, a write at a time", Make<PlainUp>},
      {Kind::kDown, "penstock", "penstock::ClientReadReactor", Make<DownStream>},
      {Kind::kIdle, "penstock", "penstock::ClientReadReactor", Make<IdleStream>},
      {Kind::kIdle, "penstock subscription", "Client::Subscribe", Make<IdleSubscription>},
  };
}

}  // namespace load
