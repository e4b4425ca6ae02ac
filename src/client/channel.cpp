#include "client/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <iterator>
#include <utility>

#include "runtime/tls.h"

namespace penstock::inline v0::detail {

void CheckConnection(const ClientSettings& settings, std::vector<std::string>& problems) {
  if (settings.address.empty() && settings.addresses.empty() && settings.unix_socket.empty()) {
    problems.push_back("address: \"\" is empty; expected host:port, such as ledger:9090");
  }
  if (settings.tls.has_value() == settings.plaintext) {
    problems.push_back("tls, plaintext: exactly one of the two must be set");
  }
  if (settings.tls) LoadTls("tls", *settings.tls, TlsSide::kClient, problems);
}

namespace {

grpc::ChannelArguments ArgumentsOf(const ClientSettings& settings, ChannelUse use, std::uint32_t index) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt("penstock.channel", static_cast<int>(index));
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, settings.connection.use_proxy ? 1 : 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  if (use == ChannelUse::kCalls) arguments.SetInt("grpc.enable_deadline_checking", 0);
  if (!settings.transparent_retries) arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  if (settings.compression == GRPC_COMPRESS_NONE) {
    arguments.SetInt(GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 1);
  } else {
    arguments.SetCompressionAlgorithm(settings.compression);
  }
  if (settings.max_send_bytes != 0) arguments.SetMaxSendMessageSize(static_cast<int>(settings.max_send_bytes));
  if (settings.max_receive_bytes != 0) arguments.SetMaxReceiveMessageSize(static_cast<int>(settings.max_receive_bytes));
  if (settings.connection.balancing == Balancing::kRoundRobin) arguments.SetLoadBalancingPolicyName("round_robin");
  if (!settings.authority.empty()) arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, settings.authority);
  if (settings.channel_arguments) settings.channel_arguments(arguments);
  return arguments;
}

}  // namespace

std::shared_ptr<grpc::Channel> MakeChannel(const ClientSettings& settings, ChannelUse use, std::uint32_t index,
                                           InterceptorFactories interceptors) {
  if (settings.interceptors) {
    InterceptorFactories own = settings.interceptors();
    std::move(own.begin(), own.end(), std::back_inserter(interceptors));
  }
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (settings.tls) {
    std::vector<std::string> problems;  // CheckConnection() has told them.
    // Files that went bad since then leave default roots: a handshake that fails, never plain text.
    credentials = ClientCredentialsOf(LoadTls("tls", *settings.tls, TlsSide::kClient, problems).value_or(TlsMaterial{}));
  }
  const grpc::ChannelArguments arguments = ArgumentsOf(settings, use, index);
  if (interceptors.empty()) return grpc::CreateCustomChannel(settings.address, credentials, arguments);
  return grpc::experimental::CreateCustomChannelWithInterceptors(settings.address, credentials, arguments, std::move(interceptors));
}

}  // namespace penstock::inline v0::detail
