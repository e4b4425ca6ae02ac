// penstock's client in its two forms, with the settings that it has by default.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#ifdef PENSTOCK_BENCH_OTEL
#include "telemetry.h"
#endif
#ifdef PENSTOCK_BENCH_PROMETHEUS
#include "penstock/prometheus/exporter.h"
#endif
#include "penstock/client/client.h"
#include "penstock/test/v1/echo.grpc.pb.h"
#include "variant.h"

namespace load {
namespace {

using penstock::test::v1::Echo;
using penstock::test::v1::EchoRequest;
using penstock::test::v1::EchoResponse;

penstock::Client MakeClient(penstock::ClientSettings settings) {
  settings.plaintext = true;
  auto client = penstock::Client::Create(std::move(settings));
  if (!client.ok()) {
    fmt::print(stderr, "bench/load: {}\n", client.error().message());
    std::_Exit(1);
  }
  return std::move(*client);
}

class CallbackCall {
 public:
  CallbackCall(penstock::Client& client, Slot& slot, const EchoRequest& request)
      : client_(client), slot_(slot), request_(request) {}

  void Call() {
    client_.Call(PENSTOCK_METHOD(Echo, Unary), request_, {},
                 [this](const penstock::CallResult& result, EchoResponse& response) {
                   if (slot_.EndAndContinue(result.ok() && response.text().size() == request_.text().size())) Call();
                 });
  }

 private:
  penstock::Client& client_;
  Slot& slot_;
  const EchoRequest& request_;
};

class ReactorCall final : public penstock::UnaryReactor<EchoRequest, EchoResponse> {
 public:
  ReactorCall(penstock::Client& client, Slot& slot, const EchoRequest& first) : client_(client), slot_(slot) {
    request() = first;
  }

  void Call() { client_.Start(PENSTOCK_METHOD(Echo, Unary), *this); }

 private:
  void OnDone(const penstock::CallResult& result) override {
    if (slot_.EndAndContinue(result.ok() && response().text().size() == request().text().size())) Call();
  }

  penstock::Client& client_;
  Slot& slot_;
};

template <class Call>
class Calls final : public Variant {
 public:
  Calls(penstock::ClientSettings settings, int payload) : client_(MakeClient(std::move(settings))) {
    request_.set_text(std::string(static_cast<std::size_t>(payload), 'x'));
  }

  void Run(Meter& meter, std::deque<Slot>& slots) override {
    std::deque<Call> calls;
    for (Slot& slot : slots) calls.emplace_back(client_, slot, request_);
    RunCallers(calls, meter, slots);
  }

 private:
  penstock::Client client_;
  EchoRequest request_;
};

#ifdef PENSTOCK_BENCH_PROMETHEUS
std::shared_ptr<penstock::ClientObserver> PrometheusObserver() { return penstock::prometheus::Exporter::Create()->ForClient(); }
#endif

template <class Call, bool kTransparent = false, std::uint32_t kChannels = 1>
std::unique_ptr<Variant> Make(const VariantOptions& options) {
  penstock::ClientSettings settings;
  settings.address = options.address;
  settings.transparent_retries = kTransparent;
  settings.connection.channels = kChannels;
  return std::make_unique<Calls<Call>>(std::move(settings), options.payload);
}

#if defined(PENSTOCK_BENCH_OTEL) || defined(PENSTOCK_BENCH_PROMETHEUS)
template <std::shared_ptr<penstock::ClientObserver> (*kObserver)()>
std::unique_ptr<Variant> MakeObserved(const VariantOptions& options) {
  penstock::ClientSettings settings;
  settings.address = options.address;
  settings.observer = kObserver();
  return std::make_unique<Calls<CallbackCall>>(std::move(settings), options.payload);
}
#endif

}  // namespace

std::vector<VariantEntry> PenstockUnaryVariants() {
  return {
      {Kind::kUnary, "penstock callback", "Client::Call with the defaults: deadline, breaker, budget, retries", Make<CallbackCall>},
      {Kind::kUnary, "penstock reactor", "the embedded UnaryReactor", Make<ReactorCall>},
      {Kind::kUnary, "penstock callback, transparent", "the callback form with transparent_retries on", Make<CallbackCall, true>},
      {Kind::kUnary, "penstock reactor, transparent", "the reactor form with transparent_retries on", Make<ReactorCall, true>},
      {Kind::kUnary, "penstock reactor, 2 channels", "the reactor form over two connections", Make<ReactorCall, false, 2>},
#ifdef PENSTOCK_BENCH_OTEL
      {Kind::kUnary, "penstock, OpenTelemetry", "the callback form; spans are recorded and dropped, metrics recorded", MakeObserved<OtelClientObserver>},
#endif
#ifdef PENSTOCK_BENCH_PROMETHEUS
      {Kind::kUnary, "penstock, Prometheus", "the callback form with the Prometheus exporter", MakeObserved<PrometheusObserver>},
#endif
  };
}

}  // namespace load
