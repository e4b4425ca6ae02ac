#include "otel/server_observer.h"

#include <opentelemetry/trace/span_context_kv_iterable.h>
#include <opentelemetry/trace/span_startoptions.h>

#include <chrono>
#include <string>
#include <utility>

#include "otel/attributes.h"
#include "otel/context.h"
#include "otel/utf8.h"
#include "runtime/name_table.h"
#include "runtime/relay.h"
#include "runtime/status_name.h"

namespace penstock::inline v0::otel::detail {

namespace trace = opentelemetry::trace;
namespace nostd = opentelemetry::nostd;
using penstock::detail::FullName;

namespace {

class Call final : public ServerCallObservation {
 public:
  Call(std::shared_ptr<Instruments> instruments, std::string_view method, nostd::shared_ptr<trace::Span> span)
      : instruments_(std::move(instruments)), method_(method), span_(std::move(span)) {}

  ~Call() override {
    if (span_) span_->End();  // ends nothing where OnEnded() has
  }

  void OnEnded(const ServerCall& /*call*/, const ServerCallEnd& end) noexcept override {
    if (instruments_) instruments_->RecordServerCall(method_, end.code, std::chrono::steady_clock::now() - began_);
    if (!span_) return;
    const nostd::string_view code = View(penstock::detail::StatusName(end.code));
    span_->SetAttribute(kStatusCodeKey, code);
    if (penstock::detail::IsErrorAtServer(end.code)) {
      span_->SetAttribute(kErrorTypeKey, code);
      span_->SetStatus(trace::StatusCode::kError, "");
    }
    span_->End();
    span_ = nostd::shared_ptr<trace::Span>();
  }

 private:
  const std::shared_ptr<Instruments> instruments_;  // null: no metrics
  const std::string_view method_;                   // of the instruments
  nostd::shared_ptr<trace::Span> span_;             // null: no traces, or ended
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

class Observer final : public ServerObserver {
 public:
  explicit Observer(Sinks sinks) : sinks_(std::move(sinks)) {}

  std::unique_ptr<ServerCallObservation> OnStarted(ServerCall& call) override {
    if (!sinks_.tracer && !sinks_.instruments) return nullptr;
    nostd::shared_ptr<trace::Span> span;
    if (sinks_.tracer) {
      const nostd::string_view name = View(FullName(call.method()));
      Attributes attributes;
      attributes.Add("rpc.method", name);
      span = StartSpan(name, call.client_metadata(), attributes);
      if (std::string traceparent = TraceparentOf(span->GetContext()); !traceparent.empty()) {
        call.SetTraceParent(std::move(traceparent));
      }
    }
    const std::string_view method =
        sinks_.instruments ? sinks_.instruments->Named(FullName(call.method())) : std::string_view();
    return std::make_unique<Call>(sinks_.instruments, method, std::move(span));
  }

  // It has a span for whoever follows the caller's trace, and one series for all such methods.
  void OnUnknownMethod(std::string_view method, const grpc::CallbackServerContext& context) noexcept override {
    constexpr auto kCode = grpc::StatusCode::UNIMPLEMENTED;
    constexpr std::string_view kOther = penstock::detail::NameTable::kOther;
    if (sinks_.instruments) sinks_.instruments->RecordServerCall(kOther, kCode, Duration::zero());  // it ends as it begins
    if (!sinks_.tracer) return;
    Attributes attributes;
    attributes.Add("rpc.method", View(kOther));
    const std::string original = Utf8(FullName(method));
    attributes.Add("rpc.method_original", View(original));
    attributes.AddStatus(kCode, penstock::detail::IsErrorAtServer(kCode));
    const auto span = StartSpan("grpc", context.client_metadata(), attributes);
    span->SetStatus(trace::StatusCode::kError, "");
    span->End();
  }

 private:
  // Adds to the attributes what every span has.
  nostd::shared_ptr<trace::Span> StartSpan(nostd::string_view name, const penstock::detail::InboundMetadata& headers,
                                           Attributes& attributes) const {
    trace::SpanContext parent = trace::SpanContext::GetInvalid();
    if (const auto inbound = penstock::detail::ReadTrace(headers)) {
      parent = SpanContextOf(inbound->parent, inbound->state);
    }
    trace::StartSpanOptions options;
    options.kind = trace::SpanKind::kServer;
    options.parent = ParentOrRoot(parent);
    attributes.Add("rpc.system.name", "grpc");
    return sinks_.tracer->StartSpan(name, attributes, trace::NullSpanContext(), options);
  }

  const Sinks sinks_;
};

}  // namespace

std::shared_ptr<ServerObserver> MakeServerObserver(Sinks sinks) { return std::make_shared<Observer>(std::move(sinks)); }

}  // namespace penstock::inline v0::otel::detail
