// penstock's client in its two forms, with the settings that it has by default.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "penstock/client/client.h"
#include "penstock/test/v1/echo.grpc.pb.h"
#include "variant.h"

namespace load {
namespace {

using penstock::test::v1::Echo;
using penstock::test::v1::EchoRequest;
using penstock::test::v1::EchoResponse;

penstock::Client MakeClient(const std::string& address, bool transparent_retries) {
  auto client = penstock::Client::Create(
      {.address = address, .plaintext = true, .transparent_retries = transparent_retries});
  if (!client.ok()) {
    fmt::print(stderr, "bench/load: {}\n", client.error().message());
    std::_Exit(1);
  }
  return std::move(*client);
}

class PenstockCallback final : public Variant {
 public:
  PenstockCallback(const std::string& address, bool transparent_retries)
      : client_(MakeClient(address, transparent_retries)) {
    request_.set_text(std::string(kPayloadBytes, 'x'));
  }

  void Run(Meter& meter, std::deque<Slot>& slots) override {
    for (Slot& slot : slots) Next(slot);
    meter.Wait();
  }

 private:
  void Next(Slot& slot) {
    if (!slot.Begin()) return;
    client_.Call(PENSTOCK_METHOD(Echo, Unary), request_, {},
                 [this, &slot](const penstock::CallResult& result, EchoResponse& response) {
                   slot.End(result.ok() && response.text().size() == kPayloadBytes);
                   Next(slot);
                 });
  }

  penstock::Client client_;
  EchoRequest request_;
};

class PenstockReactor final : public Variant {
 public:
  explicit PenstockReactor(const std::string& address) : client_(MakeClient(address, false)) {}

  void Run(Meter& meter, std::deque<Slot>& slots) override {
    std::deque<Reactor> reactors;
    for (Slot& slot : slots) reactors.emplace_back(client_, slot);
    for (Reactor& reactor : reactors) reactor.Next();
    meter.Wait();
  }

 private:
  class Reactor final : public penstock::UnaryReactor<EchoRequest, EchoResponse> {
   public:
    Reactor(penstock::Client& client, Slot& slot) : client_(client), slot_(slot) {
      request().set_text(std::string(kPayloadBytes, 'x'));
    }
    void Next() {
      if (slot_.Begin()) client_.Start(PENSTOCK_METHOD(Echo, Unary), *this);
    }
    void OnDone(const penstock::CallResult& result) override {
      slot_.End(result.ok() && response().text().size() == kPayloadBytes);
      Next();
    }

   private:
    penstock::Client& client_;
    Slot& slot_;
  };

  penstock::Client client_;
};

}  // namespace

std::unique_ptr<Variant> MakePenstockCallback(const std::string& address) {
  return std::make_unique<PenstockCallback>(address, false);
}
std::unique_ptr<Variant> MakePenstockReactor(const std::string& address) {
  return std::make_unique<PenstockReactor>(address);
}
std::unique_ptr<Variant> MakePenstockTransparent(const std::string& address) {
  return std::make_unique<PenstockCallback>(address, true);
}

}  // namespace load
