#include "otel/client_observer.h"

#include <opentelemetry/logs/severity.h>
#include <opentelemetry/trace/span.h>
#include <opentelemetry/trace/span_context_kv_iterable.h>
#include <opentelemetry/trace/span_startoptions.h>

#include <chrono>
#include <string>
#include <string_view>
#include <utility>

#include "otel/attributes.h"
#include "otel/context.h"
#include "otel/utf8.h"
#include "runtime/name_table.h"
#include "runtime/status_name.h"
#include "runtime/trace_context.h"

namespace penstock::inline v0::otel::detail {

namespace trace = opentelemetry::trace;
namespace logs = opentelemetry::logs;
namespace nostd = opentelemetry::nostd;
using penstock::detail::ClientRoster;
using penstock::detail::FullName;
using penstock::detail::ServerName;

namespace {

// The SDK's log records keep views of their texts until they are exported, by a batch processor after everything here may be gone.
// So what is no literal is kept for the life of the process: as many of each kind as there may be label values, cut to a length.
// Addresses have a table of their own, so that no errors, which may say anything, take a breaker's records their address.
using Texts = penstock::detail::NameTable;

std::string_view Kept(Texts& texts, std::string_view text) {
  constexpr std::size_t kLongest = 1024;
  return texts.Find(Utf8(text.substr(0, kLongest)));
}

std::string_view KeptAddress(std::string_view address) {
  static auto& addresses = *new Texts;
  return Kept(addresses, address);
}

std::string_view KeptError(std::string_view message) {
  static auto& messages = *new Texts;
  const std::string_view kept = Kept(messages, message);
  return kept.data() == Texts::kOther.data() ? "one more error: its text is not kept, since too many different ones came before" : kept;
}

// By state.
constexpr std::string_view kTransitionBodies[] = {"circuit breaker closed", "circuit breaker open", "circuit breaker half-open"};

void EndSpan(trace::Span& span, const grpc::Status& status) noexcept {
  const nostd::string_view code = View(penstock::detail::StatusName(status.error_code()));
  span.SetAttribute(kStatusCodeKey, code);
  if (penstock::detail::IsErrorAtClient(status.error_code())) {
    span.SetAttribute(kErrorTypeKey, code);
    span.SetStatus(trace::StatusCode::kError, Utf8(status.error_message()));
  }
  span.End();
}

class Attempt final : public AttemptObservation {
 public:
  Attempt(Instruments* instruments, const ServerName& server, std::string_view method,
          nostd::shared_ptr<trace::Span> span)
      : instruments_(instruments), server_(server), method_(method), span_(std::move(span)) {}

  ~Attempt() override {
    // An attempt that its client forgot: the span ends all the same.
    if (!ended_ && span_) span_->End();
  }

  void End(const AttemptEnd& end) noexcept override {
    if (std::exchange(ended_, true)) return;
    if (instruments_ != nullptr) {
      instruments_->RecordClientCall(method_, end.status.error_code(), server_,
                                     std::chrono::steady_clock::now() - began_);
    }
    if (span_) EndSpan(*span_, end.status);
  }

  trace::SpanContext context() const noexcept { return span_ ? span_->GetContext() : trace::SpanContext::GetInvalid(); }

 private:
  Instruments* const instruments_;  // null: no metrics
  const ServerName& server_;
  const std::string_view method_;
  const nostd::shared_ptr<trace::Span> span_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  bool ended_ = false;
};

class Observer final : public ClientObserver {
 public:
  explicit Observer(Sinks sinks) : sinks_(std::move(sinks)) {}

  ~Observer() override { Forget(); }

  void OnCreated(std::shared_ptr<const ClientView> client) noexcept override {
    if (!clients_.Enter(*client)) return;
    server_ = penstock::detail::NameOf(client->address());
    if (sinks_.logger) kept_address_ = KeptAddress(server_.address);
    if (!sinks_.instruments) return;
    entry_ = sinks_.instruments->roster().Add(std::move(client));
    counted_as_ = entry_->server();
  }

  void OnEnded() noexcept override {
    if (clients_.Leave()) Forget();
  }

  std::unique_ptr<AttemptObservation> OnAttempt(const AttemptStart& start,
                                                OutgoingMetadata& metadata) noexcept override {
    if (!sinks_.tracer && !sinks_.instruments) return nullptr;
    nostd::shared_ptr<trace::Span> span;
    if (sinks_.tracer) {
      span = StartSpan(start.method, SpanContextOf(metadata.pairs()));
      const trace::SpanContext context = span->GetContext();
      // A tracer that records nothing has no context to give: the parent's goes on.
      if (context.IsValid()) {
        metadata.Set(penstock::detail::kTraceparentKey, TraceparentOf(context));
        if (std::string state = TracestateOf(context); !state.empty()) {
          metadata.Set(penstock::detail::kTracestateKey, std::move(state));
        }
      }
    }
    const std::string_view method =
        sinks_.instruments ? sinks_.instruments->Named(FullName(start.method)) : std::string_view();
    return std::make_unique<Attempt>(sinks_.instruments.get(), counted_as_, method, std::move(span));
  }

  void OnRejected(const AttemptStart& start, const OutgoingMetadata& metadata,
                  const grpc::Status& status) noexcept override {
    if (sinks_.tracer) EndSpan(*StartSpan(start.method, SpanContextOf(metadata.pairs())), status);
  }

  void OnDecision(std::string_view /*method*/, RetryDecision decision) noexcept override {
    if (entry_) entry_->Count(decision);
  }

  void OnTransition(const CircuitTransition& transition, const TransitionCause& cause) noexcept override {
    if (!sinks_.logger) return;
    Attributes attributes;
    attributes.AddServer(kept_address_, server_.port);
    attributes.Add("penstock.circuit.previous_state", View(NameOf(transition.from)));
    const Counts& counts = transition.counts;
    const std::pair<nostd::string_view, std::uint64_t> numbers[] = {
        {"penstock.circuit.successes", counts.successes},
        {"penstock.circuit.failures", counts.failures},
        {"penstock.circuit.consecutive_successes", counts.consecutive_successes},
        {"penstock.circuit.consecutive_failures", counts.consecutive_failures},
        {"penstock.circuit.timed_out", counts.timed_out},
    };
    for (const auto& [key, number] : numbers) attributes.Add(key, static_cast<std::int64_t>(number));
    const auto* attempt = dynamic_cast<const Attempt*>(cause.attempt);  // null: none, or made by an observer in between
    const trace::SpanContext context = attempt != nullptr ? attempt->context() : trace::SpanContext::GetInvalid();
    Emit(transition.to == CircuitState::kOpen ? logs::Severity::kWarn : logs::Severity::kInfo,
         kTransitionBodies[static_cast<std::size_t>(transition.to)], attributes, context.IsValid() ? context : ParentOf(cause.parent));
  }

  void OnError(std::string_view message) noexcept override {
    if (!sinks_.logger) return;
    Attributes attributes;
    attributes.AddServer(kept_address_, server_.port);
    Emit(logs::Severity::kError, KeptError(message), attributes, trace::SpanContext::GetInvalid());
  }

 private:
  void Forget() noexcept {
    if (entry_) sinks_.instruments->roster().Remove(*entry_);
    entry_.reset();
  }

  static std::string_view NameOf(CircuitState state) noexcept {
    return penstock::detail::kStateNames[static_cast<std::size_t>(state)];
  }

  static trace::SpanContext ParentOf(const CallScope* scope) {
    return scope == nullptr ? trace::SpanContext::GetInvalid() : SpanContextOf(scope->relayed());
  }

  nostd::shared_ptr<trace::Span> StartSpan(std::string_view method, const trace::SpanContext& parent) const noexcept {
    trace::StartSpanOptions options;
    options.kind = trace::SpanKind::kClient;
    options.parent = ParentOrRoot(parent);
    const nostd::string_view name = View(FullName(method));
    Attributes attributes;
    attributes.Add("rpc.system.name", "grpc");
    attributes.Add("rpc.method", name);
    attributes.Add(server_);
    return sinks_.tracer->StartSpan(name, attributes, trace::NullSpanContext(), options);
  }

  // The body and the texts among the attributes are literals, or kept.
  void Emit(logs::Severity severity, std::string_view body, const Attributes& attributes,
            const trace::SpanContext& context) const noexcept {
    auto record = sinks_.logger->CreateLogRecord();
    if (!record) return;
    // What the SDK takes from the span that is active on this thread is not this record's.
    record->SetTraceId(context.trace_id());
    record->SetSpanId(context.span_id());
    record->SetTraceFlags(context.trace_flags());
    record->SetSeverity(severity);
    record->SetTimestamp(std::chrono::system_clock::now());
    record->SetBody(View(body));
    attributes.ForEachKeyValue([&](nostd::string_view key, opentelemetry::common::AttributeValue value) {
      record->SetAttribute(key, value);
      return true;
    });
    sinks_.logger->EmitLogRecord(std::move(record));
  }

  const Sinks sinks_;
  penstock::detail::ObservedClients clients_;
  ServerName server_;
  std::string_view kept_address_;  // its address, for log records
  ServerName counted_as_;          // in metrics
  std::shared_ptr<ClientRoster::Entry> entry_;
};

}  // namespace

std::shared_ptr<ClientObserver> MakeClientObserver(Sinks sinks) { return std::make_shared<Observer>(std::move(sinks)); }

}  // namespace penstock::inline v0::otel::detail
