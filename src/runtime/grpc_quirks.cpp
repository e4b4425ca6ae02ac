#include "grpc_quirks.h"

#include <grpc/grpc.h>
#include <grpc/support/alloc.h>
#include <grpc/support/cpu.h>
#include <grpcpp/alarm.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpc/support/time.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

// The symbol's mangled name: gRPC declares it in no public header. Weak, so that a gRPC without it still links.
extern "C" void penstock_grpc_server_send_goaways(grpc_server* server) __asm__("_ZN9grpc_core6Server11SendGoawaysEv")
    __attribute__((weak));

namespace penstock::inline v0::detail {

namespace {

// The two versions of the symbol's meaning that matter: the one that was tried, and all others.
constexpr std::string_view kTriedVersions[] = {"1.51.1"};

// Every value of `"<key>":"<number>"` in gRPC's channelz JSON, which writes 64-bit numbers as strings and no spaces.
std::vector<long> NumbersOf(std::string_view json, std::string_view key) {
  const std::string pattern = "\"" + std::string(key) + "\":\"";
  std::vector<long> numbers;
  for (std::size_t at = json.find(pattern); at != std::string_view::npos; at = json.find(pattern, at + 1)) {
    numbers.push_back(std::strtol(json.data() + at + pattern.size(), nullptr, 10));
  }
  return numbers;
}

std::string Take(char* json) {
  if (json == nullptr) return {};
  std::string text(json);
  gpr_free(json);
  return text;
}

std::vector<long> Servers() {
  std::vector<long> ids;
  for (long start = 0;;) {
    const std::vector<long> page = NumbersOf(Take(grpc_channelz_get_servers(start)), "serverId");
    if (page.empty()) return ids;
    ids.insert(ids.end(), page.begin(), page.end());
    start = page.back() + 1;
  }
}

struct GoawayAlarm {
  grpc::Alarm alarm;
  std::function<void()> done;
};

}  // namespace

const std::shared_ptr<grpc::Channel>& LameChannel() {
  static const std::shared_ptr<grpc::Channel>& channel = *[] {
    auto* lame = new std::shared_ptr<grpc::Channel>(
        grpc::CreateChannel("penstock-lame", std::shared_ptr<grpc::ChannelCredentials>()));
    struct FirstCall {
      grpc::ClientContext context;
      grpc::ByteBuffer request, response;
    };
    auto first = std::make_shared<FirstCall>();
    const grpc::Slice slice("");
    first->request = grpc::ByteBuffer(&slice, 1);
    grpc::GenericStub stub(*lame);
    stub.UnaryCall(&first->context, "/penstock/first", {}, &first->request, &first->response, [first](const grpc::Status&) {});
    return lame;
  }();
  return channel;
}

bool CanSendGoaways() noexcept {
  if (penstock_grpc_server_send_goaways == nullptr) return false;
  for (const std::string_view version : kTriedVersions) {
    if (grpc::Version() == version) return true;
  }
  return false;
}

void SendGoaways(grpc::Server& server, std::function<void()> done) {
  auto* pending = new GoawayAlarm{{}, std::move(done)};
  pending->alarm.Set(gpr_now(GPR_CLOCK_MONOTONIC), [pending, core = server.c_server()](bool) {
    penstock_grpc_server_send_goaways(core);
    const std::function<void()> then = std::move(pending->done);
    delete pending;
    then();
  });
}

IdentifiedServer BuildIdentified(grpc::ServerBuilder& builder) {
  // The names of the listen sockets do not tell servers apart (port 0 stays 0 in them), so the new number is ours.
  static std::mutex& one_at_a_time = *new std::mutex;
  std::lock_guard lock(one_at_a_time);
  const std::vector<long> before = Servers();
  IdentifiedServer built{builder.BuildAndStart(), 0};
  if (built.server == nullptr) return built;
  std::vector<long> added;
  for (const long id : Servers()) {
    if (std::find(before.begin(), before.end(), id) == before.end()) added.push_back(id);
  }
  // Two new ones: the program made a server of its own at the same moment. Say nothing rather than guess.
  if (added.size() == 1) built.channelz_id = added.front();
  return built;
}

std::optional<int> ServerConnections(long channelz_id) {
  if (channelz_id == 0) return std::nullopt;
  constexpr std::size_t kPage = 500;
  int connections = 0;
  for (long first = 0;;) {
    const std::string page = Take(grpc_channelz_get_server_sockets(channelz_id, first, kPage));
    if (page.empty()) return std::nullopt;
    const std::vector<long> sockets = NumbersOf(page, "socketId");
    connections += static_cast<int>(sockets.size());
    if (sockets.size() < kPage) return connections;
    first = sockets.back() + 1;
  }
}

const void* ConnectionOf(const grpc::AuthContext& auth_context) {
  const std::vector<grpc::string_ref> values = auth_context.FindPropertyValues("transport_security_type");
  return values.empty() ? nullptr : values.front().data();
}

std::shared_ptr<const grpc::AuthContext> AuthContextOf(const grpc::ClientContext& context) {
  // The call's own pointer, which is not changed by reading it.
  return grpc::CreateAuthContext(const_cast<grpc::ClientContext&>(context).c_call());
}

TransportText TransportTextOf(std::string_view message) noexcept {
  if (message == "GOAWAY received") return TransportText::kGoaway;
  constexpr std::string_view kBeginnings[] = {"Socket closed",
                                              "Broken pipe",
                                              "Transport closed",
                                              "recvmsg:",
                                              "sendmsg:",
                                              "Connection reset by peer",
                                              "Endpoint read failed",
                                              "Connection timed out",
                                              "keepalive watchdog timeout",
                                              "failed to connect to all addresses",
                                              "connections to all backends failing",
                                              "empty address list"};
  const bool broken = std::any_of(std::begin(kBeginnings), std::end(kBeginnings),
                                  [message](std::string_view beginning) { return message.starts_with(beginning); });
  return broken ? TransportText::kBroken : TransportText::kNone;
}

unsigned CallbackThreads() noexcept { return std::clamp(gpr_cpu_num_cores() / 2, 2U, 16U); }

bool LooksKilledAtShutdown(const grpc::Status& status, bool has_initial_metadata, bool has_trailing_metadata) {
  return status.error_code() == grpc::StatusCode::CANCELLED && status.error_message() == "CANCELLED" &&
         !has_initial_metadata && !has_trailing_metadata;
}

bool LooksOverReceiveLimit(const grpc::Status& status, std::size_t limit, std::size_t request_bytes) {
  constexpr std::size_t kDefaultLimit = std::size_t{4} * 1024 * 1024;
  if (limit == 0) limit = kDefaultLimit;
  if (status.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED || request_bytes > limit) return false;
  const std::string& text = status.error_message();
  constexpr std::string_view kBegin = "Received message larger than max (";
  const std::string end = " vs. " + std::to_string(limit) + ")";
  return text.starts_with(kBegin) && text.ends_with(end);
}

}  // namespace penstock::inline v0::detail
