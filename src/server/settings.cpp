#include "penstock/server/settings.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <set>

#include "listening.h"
#include "runtime/problems.h"

namespace penstock::inline v0 {

namespace {

using detail::Milliseconds;
using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

// What gRPC counts in 32-bit milliseconds.
constexpr Duration kLongest = milliseconds(std::numeric_limits<int>::max());
constexpr std::size_t kMostBytes = std::numeric_limits<int>::max();

void CheckRange(std::string_view field, Duration value, Duration least, Duration most, std::vector<std::string>& problems) {
  if (value >= least && value <= most) return;
  problems.push_back(fmt::format("{}: {}; expected {} to {}", field, Milliseconds(value), Milliseconds(least), Milliseconds(most)));
}

void CheckCap(std::string_view field, const std::optional<std::uint32_t>& value, std::vector<std::string>& problems) {
  if (!value || (*value >= 1 && *value <= static_cast<std::uint32_t>(std::numeric_limits<int>::max()))) return;
  problems.push_back(fmt::format("{}: {}; expected 1 to 2147483647, or unset", field, *value));
}

}  // namespace

void CheckSettings(const ServerSettings& settings, std::vector<std::string>& problems) {
  detail::CheckAddress("address", settings.address, detail::AddressUse::kListen, problems);
  if (settings.tls && settings.plaintext) problems.push_back("tls, plaintext: both are set; expected exactly one of the two");
  if (!settings.tls && !settings.plaintext) {
    problems.push_back("tls, plaintext: neither is set; expected tls, or plaintext = true where no encryption is wanted");
  }
  if (settings.tls) detail::LoadTls("tls", *settings.tls, detail::TlsSide::kServer, problems);

  CheckRange("drain", settings.drain, {}, hours(24), problems);
  CheckRange("grace", settings.grace, {}, hours(24), problems);
  CheckRange("handshake_window", settings.handshake_window, {}, seconds(10), problems);
  if (settings.max_connection_age) {
    CheckRange("max_connection_age", *settings.max_connection_age, milliseconds(1), kLongest, problems);
  }
  if (settings.max_connection_age_grace) {
    CheckRange("max_connection_age_grace", *settings.max_connection_age_grace, milliseconds(1), kLongest, problems);
    if (!settings.max_connection_age) {
      problems.push_back(fmt::format("max_connection_age_grace: {} without max_connection_age; expected both, or neither",
                                     Milliseconds(*settings.max_connection_age_grace)));
    }
  }
  CheckRange("handshake_timeout", settings.handshake_timeout, milliseconds(1), hours(1), problems);
  CheckRange("permitted_keepalive", settings.permitted_keepalive, seconds(1), kLongest, problems);
  if (settings.max_receive_bytes < 1 || settings.max_receive_bytes > kMostBytes) {
    problems.push_back(fmt::format("max_receive_bytes: {}; expected 1 to {}", settings.max_receive_bytes, kMostBytes));
  }
  CheckCap("max_streams_per_connection", settings.max_streams_per_connection, problems);
  CheckCap("max_unary_calls", settings.max_unary_calls, problems);
  CheckCap("max_streams", settings.max_streams, problems);
  CheckRange("pushback", settings.pushback, {}, hours(1), problems);

  const auto check_monitors = [&](const std::string& field, const std::vector<std::shared_ptr<ReadinessMonitor>>& monitors) {
    if (std::find(monitors.begin(), monitors.end(), nullptr) != monitors.end()) {
      problems.push_back(field + ": null; expected monitors");
    }
  };
  check_monitors("readiness", settings.readiness);
  for (const auto& [service, monitors] : settings.service_readiness) {
    check_monitors(fmt::format("service_readiness[{}]", detail::Quoted(service)), monitors);
  }
  if (settings.health_address) {
    detail::CheckAddress("health_address", *settings.health_address, detail::AddressUse::kListen, problems);
  }
  if (std::find(settings.observers.begin(), settings.observers.end(), nullptr) != settings.observers.end()) {
    problems.push_back("observers: null; expected observers");
  }
  if (std::any_of(settings.filters.begin(), settings.filters.end(), [](const auto& filter) { return !filter; })) {
    problems.push_back("filters: an empty function; expected functions");
  }
}

namespace detail {

void CheckServices(const std::vector<AnyService*>& services, const ServerSettings& settings, std::vector<std::string>& problems) {
  std::set<std::string> names;
  for (AnyService* service : services) {
    if (service == nullptr) {
      problems.push_back("services: null; expected services");
    } else if (!names.insert(service->full_name()).second) {
      problems.push_back(fmt::format("services: {} is given twice; expected each service once", service->full_name()));
    }
  }
  if (names.contains("grpc.health.v1.Health")) {
    problems.push_back("services: grpc.health.v1.Health is the server's own; expected no health service");
  }
  for (const auto& [service, monitors] : settings.service_readiness) {
    if (!names.contains(service)) {
      problems.push_back(Problem("service_readiness", service, "is no service of this server", "the full name of one"));
    }
  }
}

void ApplySettings(const ServerSettings& settings, grpc::ServerBuilder& builder) {
  const auto set = [&](const char* name, int value) { builder.AddChannelArgument(name, value); };
  const auto in_milliseconds = [](Duration value) {
    return static_cast<int>(std::min(std::chrono::ceil<milliseconds>(value), milliseconds(std::numeric_limits<int>::max())).count());
  };
  set(GRPC_ARG_ALLOW_REUSEPORT, 0);   // else a second server on the port starts silently
  set(GRPC_ARG_ENABLE_CHANNELZ, 1);   // a shutdown counts connections
  set(GRPC_ARG_MAX_CONNECTION_AGE_MS,
      settings.max_connection_age ? in_milliseconds(*settings.max_connection_age) : std::numeric_limits<int>::max());
  if (settings.max_connection_age_grace) {
    set(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, in_milliseconds(*settings.max_connection_age_grace));
  }
  set("grpc.server_handshake_timeout_ms", in_milliseconds(settings.handshake_timeout));
  set(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, in_milliseconds(settings.permitted_keepalive));
  set(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  if (settings.max_streams_per_connection) {
    set(GRPC_ARG_MAX_CONCURRENT_STREAMS, static_cast<int>(*settings.max_streams_per_connection));
  }
  builder.SetMaxReceiveMessageSize(static_cast<int>(settings.max_receive_bytes));
  for (const auto& [name, value] : settings.channel_arguments) set(name.c_str(), value);
}

std::string WhyNotListening(std::string_view field, const std::string& text) {
  const Address address = *ParseAddress(text, AddressUse::kListen);
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(address.port);
  if (const int error = getaddrinfo(address.host.empty() ? nullptr : address.host.c_str(), port.c_str(), &hints, &found)) {
    return fmt::format("{}: cannot listen on {}: {}", field, Quoted(text), gai_strerror(error));
  }
  std::string why = "gRPC could not start the server";
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const int socket = ::socket(each->ai_family, each->ai_socktype, each->ai_protocol);
    if (socket < 0) continue;
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    const bool bound = bind(socket, each->ai_addr, each->ai_addrlen) == 0 && listen(socket, 1) == 0;
    if (!bound) why = std::strerror(errno);
    close(socket);
    if (!bound) break;
  }
  freeaddrinfo(found);
  return fmt::format("{}: cannot listen on {}: {}", field, Quoted(text), why);
}

}  // namespace detail
}  // namespace penstock::inline v0
