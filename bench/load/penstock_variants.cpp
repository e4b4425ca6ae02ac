// penstock's client in its two forms, with the settings that it has by default.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#ifdef PENSTOCK_BENCH_OTEL
#include <opentelemetry/sdk/trace/processor.h>
#include <opentelemetry/sdk/trace/span_data.h>
#include <opentelemetry/sdk/trace/tracer_provider.h>

#include "penstock/otel/buckets.h"
#include "penstock/otel/telemetry.h"
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

penstock::Client MakeClient(const std::string& address, bool transparent_retries,
                            std::shared_ptr<penstock::ClientObserver> observer = nullptr) {
  auto client = penstock::Client::Create({.address = address,
                                          .plaintext = true,
                                          .transparent_retries = transparent_retries,
                                          .observer = std::move(observer)});
  if (!client.ok()) {
    fmt::print(stderr, "bench/load: {}\n", client.error().message());
    std::_Exit(1);
  }
  return std::move(*client);
}

class PenstockCallback final : public Variant {
 public:
  PenstockCallback(const std::string& address, bool transparent_retries,
                   std::shared_ptr<penstock::ClientObserver> observer = nullptr)
      : client_(MakeClient(address, transparent_retries, std::move(observer))) {
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

#ifdef PENSTOCK_BENCH_OTEL
// Drops every span once it is made, so that what is measured is the recording and no exporter.
class Dropping final : public opentelemetry::sdk::trace::SpanProcessor {
 public:
  using Recordable = opentelemetry::sdk::trace::Recordable;
  std::unique_ptr<Recordable> MakeRecordable() noexcept override {
    return std::make_unique<opentelemetry::sdk::trace::SpanData>();
  }
  void OnStart(Recordable&, const opentelemetry::trace::SpanContext&) noexcept override {}
  void OnEnd(std::unique_ptr<Recordable>&&) noexcept override {}
  bool ForceFlush(std::chrono::microseconds) noexcept override { return true; }
  bool Shutdown(std::chrono::microseconds) noexcept override { return true; }
};

std::shared_ptr<penstock::ClientObserver> OtelObserver() {
  namespace sdk = opentelemetry::sdk;
  namespace nostd = opentelemetry::nostd;
  static auto& tracers = *new nostd::shared_ptr<opentelemetry::trace::TracerProvider>(
      new sdk::trace::TracerProvider(std::make_unique<Dropping>()));
  static auto& meters = *[] {
    auto* provider = new sdk::metrics::MeterProvider();
    penstock::otel::AddDurationBuckets(*provider);
    return new nostd::shared_ptr<opentelemetry::metrics::MeterProvider>(provider);
  }();
  return penstock::otel::Telemetry::Create({.tracer = tracers, .meter = meters, .logger = {}})->ForClient();
}
#endif

}  // namespace

#ifdef PENSTOCK_BENCH_OTEL
std::unique_ptr<Variant> MakePenstockOtel(const std::string& address) {
  return std::make_unique<PenstockCallback>(address, false, OtelObserver());
}
#endif
#ifdef PENSTOCK_BENCH_PROMETHEUS
std::unique_ptr<Variant> MakePenstockPrometheus(const std::string& address) {
  return std::make_unique<PenstockCallback>(address, false, penstock::prometheus::Exporter::Create()->ForClient());
}
#endif

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
