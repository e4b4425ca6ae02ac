#pragma once

// What a client is made from.
//
// Plain values with defaults that suit a service in a cluster; docs/settings.md says for each why it is what it is.
// Client::Create checks every one and reports all that is wrong in one error.
//
//     auto ledger = Client::Create({.address = "ledger:9090", .tls = Tls{.roots = ca}, .timeout = 2s,
//                                   .methods = {{.method = PENSTOCK_METHOD(Ledger, Transfer), .timeout = 500ms}}});
//
// Threads: plain values; the functions among them are called from gRPC's callback threads, several at once.
// Ownership: copied into the client; what is held by shared_ptr lives as long as the client's last call.
// Time: lengths are real unless `time` says otherwise.
// Errors: see Client::Create.

#include <grpc/impl/codegen/compression_types.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/client_interceptor.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/client/classify.h"
#include "penstock/client/method.h"
#include "penstock/core/circuit_breaker.h"
#include "penstock/core/clock.h"
#include "penstock/core/retry_budget.h"
#include "penstock/faults.h"
#include "penstock/runtime/time_source.h"
#include "penstock/runtime/tls.h"
#include "penstock/telemetry.h"

namespace penstock::inline v0 {

enum class Balancing : unsigned char {
  kPickFirst,   // One connection.
  kRoundRobin,  // A connection to every address that the name resolves to, calls in turn.
};

// Whether a method may run twice (behaviour.md C9).
enum class Repeatability : unsigned char {
  kFromProto,   // As its proto says: idempotency_level, or penstock's once_only; kUnmarked where it says nothing.
  kRepeatable,  // Yes: retried whenever it helps.
  kUnmarked,    // Not known: retried where the status means that nothing was done.
  kOnceOnly,    // No: retried only when the request was certainly not sent.
};

// What differs for one method; what is not set is as in the client's settings.
struct MethodSettings {
  MethodName method;                                         // Each at most once.
  std::optional<Duration> timeout = std::nullopt;            // Above 0; only of unary methods.
  std::optional<std::uint32_t> max_attempts = std::nullopt;  // 1 up.
  Repeatability repeatability = Repeatability::kFromProto;
  std::optional<bool> wait_for_ready = std::nullopt;
};

// How connections are made and kept; docs/connections.md says more.
struct ConnectionSettings {
  Balancing balancing = Balancing::kPickFirst;
  // After a failed connect gRPC waits about this long (each wait is varied by a fifth) before the next, 1.6 times
  // longer each time, up to the highest. 1 ms up; the highest at least the first.
  Duration reconnect_first = std::chrono::milliseconds(100);
  Duration reconnect_highest = std::chrono::seconds(1);
  // How long a connect may take, TLS included, before it counts as failed: three round trips to the far side of the
  // world and a lost packet fit. 1 ms up.
  Duration connect_timeout = std::chrono::seconds(3);
  // The least time between two resolutions of the name, which happen as connections fail. 1 ms up.
  Duration resolve_interval = std::chrono::seconds(1);
  // HTTP/2 pings on a quiet connection; 0: none. At least 10 s, which penstock's server permits.
  Duration keepalive_interval{};
  // How long a ping may stay unanswered before the connection counts as dead. 1 ms up.
  Duration keepalive_timeout = std::chrono::seconds(20);
  // Pings also while no call is open.
  bool keepalive_without_calls = false;
  // Whether http_proxy and its like in the environment count.
  bool use_proxy = false;
  // How many channels, each with a connection of its own, calls go over in turn; 1 to 64.
  std::uint32_t channels = 1;
  // The DNS server that is asked for the address's name, as IP address and port; empty: the system's.
  std::string name_server{};
};

// One client is one dependency.
struct ClientSettings {
  // Exactly one of the three: host:port; IP addresses with ports, used as one dependency; the path of a Unix socket.
  std::string address{};
  std::vector<std::string> addresses{};
  std::string unix_socket{};

  // Exactly one of the two. Plain text must be asked for.
  std::optional<Tls> tls{};
  bool plaintext = false;
  // Sent with every call, beside what the call's own options bring: a token, grpc::AccessTokenCredentials(token), or a plugin that
  // makes one, grpc::MetadataCredentialsFromPlugin(...). Only with `tls`.
  std::shared_ptr<grpc::CallCredentials> credentials{};

  // What a unary call may take in all, attempts and waits; above 0.
  Duration timeout = std::chrono::seconds(10);
  // Attempts of one call, the first included; 1 turns retries off.
  std::uint32_t max_attempts = 3;
  // After attempt n the wait is drawn from 0 to min(backoff_max, backoff_base * 2^(n-1)).
  Duration backoff_base = std::chrono::milliseconds(100);
  Duration backoff_max = std::chrono::seconds(5);
  // Bounds the retries of all calls together.
  RetryBudgetSettings budget{};
  CircuitBreakerSettings breaker{};
  // Null: DefaultClassify.
  Classifier classify{};
  // False: a method whose proto does not say that it may run twice is retried only when the request was not sent.
  bool retry_unmarked = true;
  // An attempt that begins with less time than this and ends by its deadline says nothing about the dependency, on a guarded channel
  // too; 0 up.
  Duration deadline_floor{};
  // gRPC's own retry of what provably reached no server (one, after a GOAWAY). Off, since with it gRPC 1.51.1 aborts the process
  // when a server sends trailers without grpc-status (docs/adr/0008); a call is cheaper without it, too.
  bool transparent_retries = false;

  std::vector<MethodSettings> methods{};

  ConnectionSettings connection{};
  // :authority, and with TLS the host that the certificate must name. Empty: the address. Required with `addresses` and
  // `unix_socket`, which name no host, unless `tls` has a server name override, which goes before it.
  std::string authority{};
  // In bytes; 0: gRPC's default (sending unlimited, receiving 4 MiB).
  std::size_t max_send_bytes = 0;
  std::size_t max_receive_bytes = 0;
  // How requests are compressed; answers are understood compressed or not.
  grpc_compression_algorithm compression = GRPC_COMPRESS_NONE;
  // Asked once, by Create(). Applied last, so that they win over penstock's own. Deadlines, retries and what keeps a client's
  // connections its own are penstock's business: grpc.enable_deadline_checking, grpc.enable_retries, grpc.service_config and
  // grpc.use_local_subchannel_pool are refused.
  std::function<void(grpc::ChannelArguments&)> channel_arguments{};
  // Your own interceptors, once an attempt. Makes them anew for each channel. What it throws fails Create().
  std::function<std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>>()> interceptors{};

  // Hears of attempts, decisions and state changes; null: nobody, for free.
  std::shared_ptr<ClientObserver> observer{};
  // Plays the fault scenarios that come in calls' baggage; null: nothing is evaluated and nothing stripped.
  std::shared_ptr<FaultInjector> faults{};
  // Null: ProcessTime(). A test gives testing::ManualTime.
  std::shared_ptr<TimeSource> time{};
};

}  // namespace penstock::inline v0
