#include "client/channel.h"

#include <fmt/format.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <utility>

#include "client/user_code.h"
#include "runtime/address.h"
#include "runtime/problems.h"
#include "runtime/tls.h"

namespace penstock::inline v0::detail {
namespace {

using namespace std::chrono_literals;

// Not in gRPC's public headers under a name.
constexpr const char* kDeadlineCheckingArgument = "grpc.enable_deadline_checking";

// Deadlines and retries are penstock's; without the other two the client's channels would not be its own.
constexpr std::array<std::string_view, 4> kRefusedArguments = {
    kDeadlineCheckingArgument, GRPC_ARG_ENABLE_RETRIES, GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, GRPC_ARG_SERVICE_CONFIG};

// gRPC counts milliseconds in an int.
constexpr Duration kLongest = std::chrono::milliseconds(std::numeric_limits<int>::max());

int WholeMilliseconds(Duration length) {
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(length).count());
}

void CheckLength(std::string_view field, Duration length, Duration least, std::vector<std::string>& problems) {
  if (length >= least && length <= kLongest) return;
  problems.push_back(fmt::format("{}: {}; expected {} to 24 days", field, Milliseconds(length), Milliseconds(least)));
}

void CheckPlace(const ClientSettings& settings, std::vector<std::string>& problems) {
  const int given = (settings.address.empty() ? 0 : 1) + (settings.addresses.empty() ? 0 : 1) +
                    (settings.unix_socket.empty() ? 0 : 1);
  if (given > 1) {
    problems.push_back("address, addresses, unix_socket: more than one is set; expected exactly one of the three");
  }
  if (given == 0) {
    problems.push_back(
        Problem("address", "", "is empty", "host:port, such as ledger:9090; or `addresses`, or `unix_socket`, in its place"));
  }
  if (!settings.address.empty()) CheckAddress("address", settings.address, AddressUse::kConnect, problems);
  if (!settings.addresses.empty()) CheckAddressList("addresses", settings.addresses, problems);
  if (!settings.unix_socket.empty()) CheckUnixPath("unix_socket", settings.unix_socket, problems);

  const bool overridden = settings.tls && !settings.tls->server_name_override.empty();
  if (!settings.authority.empty()) {
    CheckAuthority("authority", settings.authority, problems);
  } else if (given > 0 && settings.address.empty() && !overridden) {
    problems.push_back(
        "authority: \"\" is missing; a list of addresses or a Unix socket names no host, so expected one, such as "
        "ledger");
  }
  if (settings.tls.has_value() == settings.plaintext) {
    problems.push_back(
        settings.plaintext
            ? "tls, plaintext: both are set; expected exactly one of the two"
            : "tls, plaintext: neither is set; expected tls, or plaintext = true where no encryption is wanted");
  }
  if (settings.credentials && settings.plaintext) {
    problems.push_back("credentials: are set; expected none with plaintext, since gRPC sends them over TLS only");
  }
}

void CheckKeepalive(const ConnectionSettings& connection, std::vector<std::string>& problems) {
  // gRPC's servers permit far less often than its clients may ask for, and close the connection with too_many_pings.
  constexpr Duration kLeast = 10s;
  if (connection.keepalive_interval != Duration::zero() &&
      (connection.keepalive_interval < kLeast || connection.keepalive_interval > kLongest)) {
    problems.push_back(fmt::format("connection.keepalive_interval: {}; expected 0 for none, or 10 s to 24 days",
                                   Milliseconds(connection.keepalive_interval)));
  }
  CheckLength("connection.keepalive_timeout", connection.keepalive_timeout, 1ms, problems);
  if (connection.keepalive_without_calls && connection.keepalive_interval == Duration::zero()) {
    problems.push_back("connection.keepalive_without_calls: true; expected a keepalive_interval with it");
  }
}

void CheckNameServer(const ClientSettings& settings, std::vector<std::string>& problems) {
  constexpr std::string_view kForm = "an IP address and a port, such as 10.0.0.10:53";
  const std::string& server = settings.connection.name_server;
  if (server.empty()) return;
  const Result<Address> parsed = ParseAddress(server, AddressUse::kConnect);
  if (!parsed.ok()) {
    problems.push_back(Problem("connection.name_server", server, parsed.error().message(), kForm));
  } else if (parsed->kind == HostKind::kName) {
    problems.push_back(Problem("connection.name_server", server, "has a name for a host", kForm));
  }
  if (settings.address.empty()) problems.push_back("connection.name_server: is set, but there is no name to ask for");
}

void AddAll(const grpc::ChannelArguments& from, grpc::ChannelArguments& into) {
  const grpc_channel_args set = from.c_channel_args();
  for (std::size_t place = 0; place < set.num_args; ++place) {
    const grpc_arg& argument = set.args[place];
    switch (argument.type) {
      case GRPC_ARG_STRING:
        into.SetString(argument.key, argument.value.string);
        break;
      case GRPC_ARG_INTEGER:
        into.SetInt(argument.key, argument.value.integer);
        break;
      case GRPC_ARG_POINTER:
        into.SetPointerWithVtable(argument.key, argument.value.pointer.p, argument.value.pointer.vtable);
        break;
    }
  }
}

grpc::ChannelArguments ArgumentsOf(const ClientSettings& settings, ChannelUse use, std::uint32_t index) {
  const ConnectionSettings& connection = settings.connection;
  grpc::ChannelArguments arguments;
  // What makes it the client's own (L1, L7, G5).
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt("penstock.channel", static_cast<int>(index));
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, connection.use_proxy ? 1 : 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  if (!settings.transparent_retries) arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  if (use == ChannelUse::kCalls) arguments.SetInt(kDeadlineCheckingArgument, 0);

  // Without an override of its own gRPC verifies the default authority's host.
  arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, AuthorityOf(settings));

  if (connection.balancing == Balancing::kRoundRobin) arguments.SetLoadBalancingPolicyName("round_robin");
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, WholeMilliseconds(connection.reconnect_first));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, WholeMilliseconds(connection.reconnect_highest));
  // Named for what it was once: it is the connect timeout alone.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, WholeMilliseconds(connection.connect_timeout));
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, WholeMilliseconds(connection.resolve_interval));
  if (connection.keepalive_interval > Duration::zero()) {
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, WholeMilliseconds(connection.keepalive_interval));
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, WholeMilliseconds(connection.keepalive_timeout));
    arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, connection.keepalive_without_calls ? 1 : 0);
    // Else gRPC stops after two pings without data.
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  }

  if (settings.compression == GRPC_COMPRESS_NONE) {
    arguments.SetInt(GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 1);
  } else {
    arguments.SetCompressionAlgorithm(settings.compression);
  }
  if (settings.max_send_bytes != 0) arguments.SetMaxSendMessageSize(static_cast<int>(settings.max_send_bytes));
  if (settings.max_receive_bytes != 0) arguments.SetMaxReceiveMessageSize(static_cast<int>(settings.max_receive_bytes));
  if (settings.channel_arguments) settings.channel_arguments(arguments);
  return arguments;
}

}  // namespace

void CheckConnection(const ClientSettings& settings, std::vector<std::string>& problems) {
  const ConnectionSettings& connection = settings.connection;
  CheckPlace(settings, problems);
  if (connection.balancing != Balancing::kPickFirst && connection.balancing != Balancing::kRoundRobin) {
    problems.push_back(fmt::format("connection.balancing: {}; expected one of the enumeration",
                                   static_cast<int>(connection.balancing)));
  }
  CheckLength("connection.reconnect_first", connection.reconnect_first, 1ms, problems);
  CheckLength("connection.reconnect_highest", connection.reconnect_highest, 1ms, problems);
  if (connection.reconnect_highest < connection.reconnect_first) {
    problems.push_back(fmt::format("connection.reconnect_highest: {}; expected at least reconnect_first, {}",
                                   Milliseconds(connection.reconnect_highest),
                                   Milliseconds(connection.reconnect_first)));
  }
  CheckLength("connection.connect_timeout", connection.connect_timeout, 1ms, problems);
  CheckLength("connection.resolve_interval", connection.resolve_interval, 1ms, problems);
  CheckKeepalive(connection, problems);
  if (connection.channels < 1 || connection.channels > 64) {
    problems.push_back(fmt::format("connection.channels: {}; expected 1 to 64", connection.channels));
  }
  CheckNameServer(settings, problems);
}

void TakeChannelArguments(ClientSettings& settings, std::vector<std::string>& problems) {
  if (!settings.channel_arguments) return;
  grpc::ChannelArguments taken;
  auto take = [&] { settings.channel_arguments(taken); };
  if (std::string thrown = RunUserCode("channel_arguments:", take); !thrown.empty()) {
    problems.push_back(std::move(thrown));
    return;
  }
  const grpc_channel_args set = taken.c_channel_args();
  for (std::size_t place = 0; place < set.num_args; ++place) {
    const std::string_view key = set.args[place].key;
    if (std::find(kRefusedArguments.begin(), kRefusedArguments.end(), key) != kRefusedArguments.end()) {
      problems.push_back(
          fmt::format("channel_arguments: sets {}; expected any but this, which is penstock's own", key));
    }
  }
  settings.channel_arguments = [taken = std::move(taken)](grpc::ChannelArguments& into) { AddAll(taken, into); };
}

void LoadCertificates(ClientSettings& settings, std::vector<std::string>& problems) {
  if (!settings.tls) return;
  std::optional<TlsMaterial> material = LoadTls("tls", *settings.tls, TlsSide::kClient, problems);
  if (!material) return;
  const auto text = [](std::string& pem) {
    return pem.empty() ? std::nullopt : std::optional<std::string>(std::move(pem));
  };
  settings.tls = Tls{.roots = text(material->roots),
                     .certificate = text(material->certificate),
                     .key = text(material->key),
                     .server_name_override = std::move(settings.tls->server_name_override)};
}

std::string AuthorityOf(const ClientSettings& settings) {
  if (settings.tls && !settings.tls->server_name_override.empty()) return settings.tls->server_name_override;
  return settings.authority.empty() ? settings.address : settings.authority;
}

std::string TargetOf(const ClientSettings& settings) {
  if (!settings.addresses.empty()) return TargetOfList(settings.addresses);
  if (!settings.unix_socket.empty()) return TargetOfUnixPath(settings.unix_socket);
  const Result<Address> address = ParseAddress(settings.address, AddressUse::kConnect);
  return address.ok() ? TargetOf(*address, settings.connection.name_server) : settings.address;
}

Result<std::shared_ptr<grpc::Channel>> MakeChannel(const ClientSettings& settings, ChannelUse use, std::uint32_t index,
                                                   InterceptorFactories interceptors) {
  if (settings.interceptors) {
    InterceptorFactories own;
    auto make = [&] { own = settings.interceptors(); };
    if (std::string thrown = RunUserCode("interceptors:", make); !thrown.empty()) return Error(std::move(thrown));
    if (std::find(own.begin(), own.end(), nullptr) != own.end()) {
      return Error("interceptors: gave a null pointer; expected a factory in each place");
    }
    std::move(own.begin(), own.end(), std::back_inserter(interceptors));
  }
  std::shared_ptr<grpc::ChannelCredentials> credentials;
  if (settings.tls) {
    credentials = ClientCredentialsOf({.roots = settings.tls->roots.value_or(""),
                                       .certificate = settings.tls->certificate.value_or(""),
                                       .key = settings.tls->key.value_or("")});
    if (settings.credentials) credentials = grpc::CompositeChannelCredentials(credentials, settings.credentials);
  } else {
    credentials = grpc::InsecureChannelCredentials();
  }
  const grpc::ChannelArguments arguments = ArgumentsOf(settings, use, index);
  const std::string target = TargetOf(settings);
  if (interceptors.empty()) return grpc::CreateCustomChannel(target, credentials, arguments);
  return grpc::experimental::CreateCustomChannelWithInterceptors(target, credentials, arguments,
                                                                 std::move(interceptors));
}

}  // namespace penstock::inline v0::detail
