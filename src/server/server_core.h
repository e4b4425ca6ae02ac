#pragma once

// What stands behind a Server, and outlives it while a call runs: the gRPC servers, the counts, the registry, the
// shutdown.

#include <grpc/grpc.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/server_interceptor.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "health.h"
#include "penstock/core/result.h"
#include "penstock/server/server.h"
#include "reactor_registry.h"
#include "shutdown_plan.h"

namespace penstock::inline v0::detail {

// The status of a stream that a shutdown ends.
grpc::Status StoppingStatus();

// What is known of one method, counted in shares so that threads do not meet on a cache line.
struct MethodState {
  static constexpr std::size_t kShares = 8;
  static constexpr std::size_t kCodes = 17;

  struct alignas(64) Share {
    std::atomic<std::uint64_t> started{0};
    std::atomic<std::uint64_t> answered{0};  // their status was given to gRPC, or they ended without one
    std::array<std::atomic<std::uint64_t>, kCodes> ended{};
  };

  explicit MethodState(std::string method_path);

  static Share& Mine(MethodState& method) noexcept;
  // Never less than what is in flight.
  std::uint64_t InFlight() const noexcept;
  // Never less than what has no status yet. What has one and is in flight still waits for its client to read it.
  std::uint64_t Unanswered() const noexcept;

  const std::string path;
  // Health: neither refused nor counted against a cap, nor in the access log.
  const bool exempt;
  std::atomic<bool> guarded{false};  // Handle() or Start() was seen to serve it
  std::atomic<bool> told_unguarded{false};
  std::array<Share, kShares> shares{};
};

class ServerCore : public std::enable_shared_from_this<ServerCore> {
 public:
  static Result<std::shared_ptr<ServerCore>> Create(ServerSettings settings, const std::vector<AnyService*>& services);

  explicit ServerCore(ServerSettings settings);
  ~ServerCore();

  // --- calls ---

  // As the headers arrive.
  void Arrived(ServerCall& call, const grpc::experimental::ServerRpcInfo& info) noexcept;
  // Everything is over; the context is about to be destroyed.
  void Ended(ServerCall& call) noexcept;
  // The gates.
  std::optional<grpc::Status> Admit(ServerCall& call) noexcept;
  // A status was given to it.
  void Answered(ServerCall& call, grpc::StatusCode code) noexcept;
  void NoteRefusal(ServerCall& call, Refusal refusal) noexcept;
  // A call of a method that no service has.
  void UnknownMethod(const grpc::GenericCallbackServerContext& context) noexcept;
  grpc::Status ExceptionStatus(ServerCall& call, const char* where, const char* text) noexcept;
  std::shared_ptr<CallScope> MakeScope(const ServerCall& call) const;
  // Whether a call that is being cancelled has come to its deadline.
  bool AtDeadline(const ServerCall& call) const noexcept;
  ReactorRegistry& registry() noexcept { return registry_; }
  const ServerSettings& settings() const noexcept { return settings_; }
  TimeSource& time() const noexcept { return *settings_.time; }

  // --- the server ---

  int port() const noexcept { return port_; }
  int health_port() const noexcept { return health_port_; }
  HealthState& health() noexcept { return *health_; }
  void Shutdown();
  void ShutdownNow();
  // A signal: the first begins the shutdown, the second ends the wait.
  void OnSignal();
  int Wait();
  ServerState state() const noexcept { return state_.load(std::memory_order_acquire); }
  ServerCounts counts() const;

 private:
  class Calls;
  class UnknownMethods;
  class Timeout;
  friend class Timeout;

  std::optional<Error> Listen(const std::vector<AnyService*>& services);
  std::optional<Error> ListenForHealth();
  // What lets this core see every call of the server that is built.
  void SeeCallsOf(grpc::ServerBuilder& builder);
  MethodState& MethodOf(const char* path) noexcept;
  using CountOf = std::uint64_t (MethodState::*)() const noexcept;
  // Over all methods; and which they are.
  std::uint64_t Sum(CountOf count) const noexcept;
  std::string Names(CountOf count) const;
  // Health checks apart.
  std::uint64_t Started() const noexcept;

  // The shutdown's thread, from creation to the end.
  void Drive() noexcept;
  void Act(const ShutdownActions& actions);
  void Post(std::uint32_t event) noexcept;
  void TakeDown();
  void StartTimer(std::shared_ptr<Timeout>& timer, Duration after, std::uint32_t event);
  void StopListening();
  void NoteArrivals(TimePoint now, std::uint64_t started);

  ServerSettings settings_;
  std::shared_ptr<grpc::ServerCredentials> credentials_;
  int port_ = 0;
  int health_port_ = 0;
  bool observed_ = false;  // somebody wants times

  // By path; a direct-mapped cache by the address of gRPC's own copy of the path stands in front.
  struct CachedMethod {
    const char* key;
    MethodState* method;
  };
  static constexpr std::size_t kCacheSize = 256;
  std::array<std::atomic<const CachedMethod*>, kCacheSize> method_cache_{};
  mutable std::mutex methods_mutex_;
  std::map<std::string, std::unique_ptr<MethodState>, std::less<>> methods_;  // under methods_mutex_
  std::deque<CachedMethod> cached_methods_;                                   // under methods_mutex_
  std::atomic<std::int64_t> unary_admitted_{0};                               // kept only with a cap
  std::atomic<std::int64_t> streams_admitted_{0};
  std::atomic<std::uint64_t> exceptions_{0};
  std::array<std::atomic<std::uint64_t>, 4> refused_{};
  std::atomic<std::uint64_t> unknown_methods_{0};

  ReactorRegistry registry_;
  std::shared_ptr<HealthState> health_;
  std::unique_ptr<AnyService> health_service_;
  std::unique_ptr<AnyService> health_port_service_;
  std::vector<std::unique_ptr<grpc::CallbackGenericService>> unknown_methods_services_;  // one for each gRPC server
  std::unique_ptr<grpc::Server> health_server_;
  std::unique_ptr<grpc::Server> server_;
  long channelz_id_ = 0;

  static constexpr std::uint32_t kBegin = 1u << 0;
  static constexpr std::uint32_t kDrainOver = 1u << 1;
  static constexpr std::uint32_t kExpired = 1u << 2;
  static constexpr std::uint32_t kDown = 1u << 3;

  std::atomic<ServerState> state_{ServerState::kServing};
  std::atomic<int> signals_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable stopped_changed_;
  std::uint32_t events_ = 0;        // under mutex_
  std::optional<int> exit_code_;    // under mutex_
  int goaways_pending_ = 0;         // under mutex_

  // The driving thread's.
  ShutdownPlan plan_;
  std::shared_ptr<Timeout> drain_timer_;
  std::shared_ptr<Timeout> grace_timer_;
  grpc_completion_queue* stop_first_queue_ = nullptr;
  TimePoint leaving_since_{};
  TimePoint arrivals_noted_at_{};
  std::uint64_t started_then_ = 0;
  bool told_arrivals_ = false;
};

}  // namespace penstock::inline v0::detail
