#include "server_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <chrono>
#include <exception>
#include <system_error>
#include <thread>
#include <typeinfo>

#include "listening.h"
#include "penstock/runtime/callback_thread.h"
#include "penstock/server/detail/guard.h"
#include "runtime/grpc_quirks.h"
#include "runtime/inbound_deadline.h"
#include "runtime/log.h"
#include "runtime/loop.h"
#include "runtime/metadata.h"
#include "runtime/relay.h"

namespace penstock::inline v0::detail {

grpc::Status StoppingStatus() { return {grpc::StatusCode::UNAVAILABLE, "server is shutting down"}; }

MethodState::MethodState(std::string method_path)
    : path(std::move(method_path)), exempt(path.starts_with(kHealthPrefix)) {}

MethodState::Share& MethodState::Mine(MethodState& method) noexcept {
  static constinit std::atomic<std::size_t> next{0};
  thread_local const std::size_t mine = next.fetch_add(1, std::memory_order_relaxed) % kShares;
  return method.shares[mine];
}

std::uint64_t MethodState::InFlight() const noexcept {
  std::uint64_t ended = 0;
  // First the ends, then the starts, so that the difference is never too small. The acquire pairs with the release in
  // Ended(), which makes the call's start visible with its end.
  for (const Share& share : shares) {
    for (const auto& of_code : share.ended) ended += of_code.load(std::memory_order_acquire);
  }
  std::uint64_t started = 0;
  for (const Share& share : shares) started += share.started.load(std::memory_order_acquire);
  return started - ended;
}

std::uint64_t MethodState::Unanswered() const noexcept {
  std::uint64_t answered = 0;  // first, as above
  for (const Share& share : shares) answered += share.answered.load(std::memory_order_acquire);
  std::uint64_t started = 0;
  for (const Share& share : shares) started += share.started.load(std::memory_order_acquire);
  return started - answered;
}

// Makes the contexts of calls, and hears of a call's end as gRPC gives its context back: after OnDone, without a hop to
// another thread.
class ServerCore::Calls final : public grpc::ContextAllocator {
 public:
  explicit Calls(ServerCore& core) noexcept : core_(core) {}

  grpc::CallbackServerContext* NewCallbackServerContext() override { return new ServerCall(core_); }

  void Release(grpc::CallbackServerContext* context) override {
    // gRPC gives its own contexts back here too: those of methods that no service has, which stay its property.
    ServerCall* call = ServerCall::Of(context);
    if (call == nullptr) return;
    core_.Ended(*call);
    delete call;
  }

  // A context tells neither its method nor its kind. gRPC tells both to the factories of interceptors; this one makes none,
  // so that no batch is intercepted.
  class Arrivals final : public grpc::experimental::ServerInterceptorFactoryInterface {
   public:
    explicit Arrivals(ServerCore& core) noexcept : core_(core) {}

    grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override {
      grpc::ServerContextBase* context = info->server_context();
      // Methods that no service has come with a context of gRPC's own.
      if (typeid(*context) == typeid(ServerCall)) core_.Arrived(*static_cast<ServerCall*>(context), *info);
      return nullptr;
    }

   private:
    ServerCore& core_;
  };

 private:
  ServerCore& core_;
};

// gRPC answers these itself; here they are counted, too. Their contexts are of a final class of gRPC's: no ServerCall.
class ServerCore::UnknownMethods final : public grpc::CallbackGenericService {
 public:
  explicit UnknownMethods(ServerCore& core) noexcept : core_(core) {}

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    core_.UnknownMethod(*context);
    return new FinishedReactor<grpc::ServerGenericBidiReactor>({grpc::StatusCode::UNIMPLEMENTED, "no such method"});
  }

 private:
  ServerCore& core_;
};

MethodKind KindOf(grpc::experimental::ServerRpcInfo::Type type) noexcept {
  using Type = grpc::experimental::ServerRpcInfo::Type;
  switch (type) {
    case Type::UNARY:
      return MethodKind::kUnary;
    case Type::CLIENT_STREAMING:
      return MethodKind::kClientStream;
    case Type::SERVER_STREAMING:
      return MethodKind::kServerStream;
    case Type::BIDI_STREAMING:
      break;
  }
  return MethodKind::kBidi;
}

// --- calls -----------------------------------------------------------------------------------------------------------

MethodState& ServerCore::MethodOf(const char* path) noexcept {
  std::atomic<const CachedMethod*>& slot = method_cache_[(reinterpret_cast<std::uintptr_t>(path) >> 3) % kCacheSize];
  const CachedMethod* cached = slot.load(std::memory_order_acquire);  // pairs with the release below
  if (cached != nullptr && cached->key == path) return *cached->method;
  std::lock_guard lock(methods_mutex_);
  auto found = methods_.find(std::string_view(path));
  if (found == methods_.end()) {
    found = methods_.emplace(std::string(path), std::make_unique<MethodState>(path)).first;
  }
  // gRPC's copy of a method's path lives as long as its service; the number of methods bounds the entries, but for two
  // methods that share a slot: those are looked up each time.
  if (cached == nullptr) slot.store(&cached_methods_.emplace_back(CachedMethod{path, found->second.get()}), std::memory_order_release);
  return *found->second;
}

void ServerCore::Arrived(ServerCall& call, const grpc::experimental::ServerRpcInfo& info) noexcept {
  call.kind_ = KindOf(info.type());
  call.method_ = &MethodOf(info.method());
  MethodState::Mine(*call.method_).started.fetch_add(1, std::memory_order_relaxed);
  if (!observed_) return;
  if (settings_.access_log && !call.method_->exempt) call.peer_ = call.peer();  // gRPC forgets it as a call is cancelled
  call.arrived_ = settings_.time->clock().Now();
  for (const auto& observer : settings_.observers) {
    try {
      UserCodeScope in_user_code;
      if (auto observation = observer->OnStarted(call)) call.observations_.push_back(std::move(observation));
    } catch (...) {
      Log(LogSeverity::kError, "an observer threw at the start of {}; the call goes on without it", call.method());
    }
  }
}

void ServerCore::Answered(ServerCall& call, grpc::StatusCode code) noexcept {
  if (call.finished_with_.exchange(code, std::memory_order_relaxed) >= 0) return;
  if (call.method_ != nullptr) MethodState::Mine(*call.method_).answered.fetch_add(1, std::memory_order_release);
}

void ServerCore::NoteRefusal(ServerCall& call, Refusal refusal) noexcept {
  call.refusal_ = refusal;
  refused_[static_cast<std::size_t>(refusal)].fetch_add(1, std::memory_order_relaxed);
}

void ServerCore::UnknownMethod(const grpc::GenericCallbackServerContext& context) noexcept {
  unknown_methods_.fetch_add(1, std::memory_order_relaxed);
  UserCodeScope in_user_code;
  if (settings_.access_log) {
    try {
      const Identity nobody;
      settings_.access_log(AccessLogEntry{context.method(), context.peer(), nobody, {.code = grpc::StatusCode::UNIMPLEMENTED}});
    } catch (...) {
      Log(LogSeverity::kError, "the access log threw at a method that no service has");
    }
  }
  for (const auto& observer : settings_.observers) observer->OnUnknownMethod(context.method(), context);
}

std::optional<grpc::Status> ServerCore::Admit(ServerCall& call) noexcept {
  call.guarded_ = true;
  if (call.method_ == nullptr || call.method_->exempt) return std::nullopt;
  // Read first: a line that every thread writes would be the calls' meeting point.
  if (!call.method_->guarded.load(std::memory_order_relaxed)) call.method_->guarded.store(true, std::memory_order_relaxed);
  const bool stream = call.kind_ != MethodKind::kUnary;
  if (const auto& cap = stream ? settings_.max_streams : settings_.max_unary_calls) {
    std::atomic<std::int64_t>& admitted = stream ? streams_admitted_ : unary_admitted_;
    if (admitted.fetch_add(1, std::memory_order_relaxed) >= static_cast<std::int64_t>(*cap)) {
      admitted.fetch_sub(1, std::memory_order_relaxed);
      return Overloaded(&call, stream ? "too many open streams" : "too many calls at once");
    }
    call.capped_ = true;
  }
  constexpr char kWhere[] = "the authenticator or a filter";
  Refusal refusal = Refusal::kUnauthenticated;
  grpc::Status status;
  try {
    UserCodeScope in_user_code;
    if (settings_.authenticator) {
      Identity identity;
      status = settings_.authenticator->Authenticate(call, identity);
      if (status.ok()) call.identity_ = std::move(identity);
    }
    if (status.ok()) refusal = Refusal::kFiltered;
    for (auto filter = settings_.filters.begin(); status.ok() && filter != settings_.filters.end(); ++filter) status = (*filter)(call);
  } catch (const grpc::Status& thrown) {
    // It refuses as one that is returned does; but what was thrown over must not be taken for passed.
    if (thrown.ok()) return ExceptionStatus(call, kWhere, "a grpc::Status that is OK");
    status = thrown;
  } catch (...) {
    return StatusOfException(&call, kWhere);
  }
  if (status.ok()) return std::nullopt;
  NoteRefusal(call, refusal);
  return status;
}

grpc::Status ServerCore::ExceptionStatus(ServerCall& call, const char* where, const char* text) noexcept {
  call.threw_.store(true, std::memory_order_relaxed);
  exceptions_.fetch_add(1, std::memory_order_relaxed);
  Log(LogSeverity::kError, "{}: {} threw: {}", call.method(), where, text);
  try {
    if (settings_.exception_text_to_clients) return {grpc::StatusCode::INTERNAL, fmt::format("the handler failed: {}", text)};
    return {grpc::StatusCode::INTERNAL, "the handler failed"};
  } catch (...) {
    return {grpc::StatusCode::INTERNAL, ""};
  }
}

bool ServerCore::AtDeadline(const ServerCall& call) const noexcept {
  const std::optional<Duration> left = RemainingOf(call.raw_deadline(), gpr_now(GPR_CLOCK_MONOTONIC));
  if (!left) return false;
  // The client's reset comes before the server's own timer: C-core rounds what goes out as grpc-timeout up, by 10 ms at most below
  // 10 s and by 1% above (Timeout in its transport/timeout_encoding.cc). Ten more for headers that were longer under way than the
  // reset: a connection's first ones are.
  Duration rounded = std::chrono::milliseconds(10);
  if (observed_) rounded = std::max(rounded, (settings_.time->clock().Now() - call.arrived_ + *left) / 100);
  return *left <= rounded + std::chrono::milliseconds(10);
}

void ServerCore::Ended(ServerCall& call) noexcept {
  const bool cancelled = call.IsCancelled();
  EndScope(&call, cancelled ? CallScope::Ending::kCancelled : CallScope::Ending::kFinished);
  if (call.method_ == nullptr) return;
  if (call.capped_) {
    (call.kind_ != MethodKind::kUnary ? streams_admitted_ : unary_admitted_).fetch_sub(1, std::memory_order_relaxed);
  }

  ServerCallEnd end;
  const int finished_with = call.finished_with_.load(std::memory_order_relaxed);
  end.unguarded = !call.guarded_;
  end.refusal = call.refusal_;
  end.threw = call.threw_.load(std::memory_order_relaxed);
  if (cancelled) {
    // As it was when the call was cancelled; its handler may have gone on for long. Where that had ended, as it is now.
    const bool expired = call.scope_ending_ == CallScope::Ending::kCancelled ? call.expired_ : AtDeadline(call);
    end.code = expired ? grpc::StatusCode::DEADLINE_EXCEEDED : grpc::StatusCode::CANCELLED;
  } else if (finished_with >= 0) {
    end.code = static_cast<grpc::StatusCode>(finished_with);
  } else {
    // No handler ran, and this is what gRPC says of a request that it cannot parse; or one did that is not guarded.
    const bool unparsed = call.method_->guarded.load(std::memory_order_relaxed);
    end.code = unparsed ? grpc::StatusCode::UNIMPLEMENTED : grpc::StatusCode::UNKNOWN;
    if (!unparsed && end.unguarded && !call.method_->told_unguarded.exchange(true, std::memory_order_relaxed)) {
      Log(LogSeverity::kWarning,
          "{} is not implemented (or its first request could not be parsed); or it is, and is not guarded: without "
          "authentication, caps and a barrier against exceptions, since its method returns neither Handle(...) nor Start<...>(...)",
          call.method());
    }
  }
  if (observed_) {
    UserCodeScope in_user_code;
    end.duration = settings_.time->clock().Now() - call.arrived_;
    if (settings_.access_log && !call.method_->exempt) {
      try {
        settings_.access_log(AccessLogEntry{call.method(), std::move(call.peer_), call.identity(), end});
      } catch (...) {
        Log(LogSeverity::kError, "the access log threw at the end of {}", call.method());
      }
    }
    // The inverse of the order in which they were told of the start.
    for (auto observation = call.observations_.rbegin(); observation != call.observations_.rend(); ++observation) {
      (*observation)->OnEnded(call, end);
    }
    call.observations_.clear();
  }
  if (finished_with < 0) MethodState::Mine(*call.method_).answered.fetch_add(1, std::memory_order_release);
  // Last: once the counts say that nothing is in flight, nothing of the program's runs for it. Release: see InFlight().
  MethodState::Mine(*call.method_).ended[static_cast<std::size_t>(end.code)].fetch_add(1, std::memory_order_release);
}

std::shared_ptr<CallScope> ServerCore::MakeScope(const ServerCall& call) const {
  CallScope::Metadata relayed = RelayedMetadata(call.client_metadata());
  if (!call.trace_parent_.empty() && LegalMetadataValue("traceparent", call.trace_parent_)) {
    std::erase_if(relayed, [](const auto& pair) { return pair.first == "traceparent"; });
    relayed.emplace_back("traceparent", call.trace_parent_);
  }
  return CallScope::Create(call.deadline(), std::move(relayed));
}

std::uint64_t ServerCore::Sum(CountOf count) const noexcept {
  std::lock_guard lock(methods_mutex_);
  std::uint64_t sum = 0;
  for (const auto& [path, method] : methods_) sum += ((*method).*count)();
  return sum;
}

std::uint64_t ServerCore::Started() const noexcept {
  std::lock_guard lock(methods_mutex_);
  std::uint64_t started = 0;
  for (const auto& [path, method] : methods_) {
    if (method->exempt) continue;
    for (const MethodState::Share& share : method->shares) started += share.started.load(std::memory_order_relaxed);
  }
  return started;
}

std::string ServerCore::Names(CountOf count) const {
  std::lock_guard lock(methods_mutex_);
  std::string names;
  for (const auto& [path, method] : methods_) {
    if (const std::uint64_t counted = ((*method).*count)(); counted > 0) {
      names += fmt::format("{}{} ({})", names.empty() ? "" : ", ", path, counted);
    }
  }
  return names;
}

ServerCounts ServerCore::counts() const {
  ServerCounts counts;
  std::lock_guard lock(methods_mutex_);
  for (const auto& [path, method] : methods_) {
    for (const MethodState::Share& share : method->shares) {
      for (std::size_t code = 0; code < MethodState::kCodes; ++code) {
        if (const std::uint64_t ended = share.ended[code].load(std::memory_order_acquire); ended > 0) {
          counts.ended[static_cast<grpc::StatusCode>(code)] += ended;
          counts.in_flight -= ended;
        }
      }
    }
    for (const MethodState::Share& share : method->shares) counts.started += share.started.load(std::memory_order_acquire);
  }
  counts.in_flight += counts.started;
  counts.exceptions = exceptions_.load(std::memory_order_relaxed);
  const auto refused = [&](Refusal refusal) {
    return refused_[static_cast<std::size_t>(refusal)].load(std::memory_order_relaxed);
  };
  counts.overloaded = refused(Refusal::kOverloaded);
  counts.unauthenticated = refused(Refusal::kUnauthenticated);
  counts.filtered = refused(Refusal::kFiltered);
  counts.unknown_methods = unknown_methods_.load(std::memory_order_relaxed);
  if (counts.unknown_methods > 0) {
    counts.started += counts.unknown_methods;
    counts.ended[grpc::StatusCode::UNIMPLEMENTED] += counts.unknown_methods;
  }
  return counts;
}

// --- creation --------------------------------------------------------------------------------------------------------

ServerCore::ServerCore(ServerSettings settings)
    : settings_(std::move(settings)), plan_(settings_.shutdown_order, settings_.handshake_window) {}

ServerCore::~ServerCore() = default;

Result<std::shared_ptr<ServerCore>> ServerCore::Create(ServerSettings settings, const std::vector<AnyService*>& services) {
  std::vector<std::string> problems;
  CheckSettings(settings, problems);
  CheckServices(services, settings, problems);
  if (!problems.empty()) return Error(fmt::format("{}", fmt::join(problems, "\n")));
  if (std::optional<Error> error = EnsureRuntime()) return *std::move(error);

  if (!settings.time) settings.time = ProcessTime();
  if (settings.shutdown_order == ShutdownOrder::kServeToTheEnd && !CanSendGoaways()) {
    Log(LogSeverity::kWarning,
        "this gRPC ({}) has no tried way to send GOAWAY while it serves: shutdowns stop listening first, and calls that cross "
        "the GOAWAY are cancelled",
        grpc::Version());
    settings.shutdown_order = ShutdownOrder::kStopFirst;
  }

  auto core = std::make_shared<ServerCore>(std::move(settings));
  if (std::optional<Error> error = core->Listen(services)) return *std::move(error);
  core->health_->Start();
  try {
    std::thread([core] { core->Drive(); }).detach();
  } catch (const std::system_error& error) {
    core->health_->Stop();
    core->server_->Shutdown(std::chrono::system_clock::now());
    if (core->health_server_) core->health_server_->Shutdown(std::chrono::system_clock::now());
    return Error(fmt::format("cannot start the server's own thread: {}", error.what()));
  }
  return core;
}

std::optional<Error> ServerCore::Listen(const std::vector<AnyService*>& services) {
  observed_ = !settings_.observers.empty() || settings_.access_log;
  std::vector<std::string> names;
  for (AnyService* service : services) names.emplace_back(service->full_name());
  health_ = std::make_shared<HealthState>(settings_.time, std::move(names), settings_.readiness, settings_.service_readiness);
  health_service_ = MakeHealthService(health_);

  if (settings_.tls) {
    std::vector<std::string> problems;
    std::optional<TlsMaterial> material = LoadTls("tls", *settings_.tls, TlsSide::kServer, problems);
    if (!material) return Error(fmt::format("{}", fmt::join(problems, "\n")));  // replaced since it was checked
    credentials_ = ServerCredentialsOf(*settings_.tls, *std::move(material));
  } else {
    credentials_ = grpc::InsecureServerCredentials();
  }

  grpc::ServerBuilder builder;
  ApplySettings(settings_, builder);
  const std::string target = ListeningTargetOf(*ParseAddress(settings_.address, AddressUse::kListen));
  builder.AddListeningPort(target, credentials_, &port_);
  for (AnyService* service : services) builder.RegisterService(&service->grpc_service());
  builder.RegisterService(&health_service_->grpc_service());
  SeeCallsOf(builder);
  IdentifiedServer identified = BuildIdentified(builder);
  if (identified.server == nullptr || port_ == 0) return Error(WhyNotListening("address", settings_.address));
  server_ = std::move(identified.server);
  channelz_id_ = identified.channelz_id;
  if (channelz_id_ == 0) {
    Log(LogSeverity::kWarning, "this server's connections cannot be counted: a shutdown waits for two quiet seconds");
  }
  return settings_.health_address ? ListenForHealth() : std::nullopt;
}

void ServerCore::SeeCallsOf(grpc::ServerBuilder& builder) {
  builder.SetContextAllocator(std::make_unique<Calls>(*this));
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> factories;
  factories.push_back(std::make_unique<Calls::Arrivals>(*this));
  builder.experimental().SetInterceptorCreators(std::move(factories));
  builder.RegisterCallbackGenericService(
      unknown_methods_services_.emplace_back(std::make_unique<UnknownMethods>(*this)).get());
}

std::optional<Error> ServerCore::ListenForHealth() {
  health_port_service_ = MakeHealthService(health_);
  grpc::ServerBuilder builder;
  ApplySettings(settings_, builder);
  builder.AddListeningPort(ListeningTargetOf(*ParseAddress(*settings_.health_address, AddressUse::kListen)),
                           grpc::InsecureServerCredentials(), &health_port_);
  builder.RegisterService(&health_port_service_->grpc_service());
  SeeCallsOf(builder);
  // Its connections are not counted; but a server that is being made elsewhere must not take its number for one of its own.
  health_server_ = BuildIdentified(builder).server;
  if (health_server_ != nullptr && health_port_ != 0) return std::nullopt;
  health_server_.reset();
  Error error(WhyNotListening("health_address", *settings_.health_address));
  server_->Shutdown(std::chrono::system_clock::now());
  server_.reset();
  return error;
}

}  // namespace penstock::inline v0::detail
