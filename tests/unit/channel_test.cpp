#include "client/channel.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

using namespace penstock;
using namespace penstock::detail;
using namespace std::chrono_literals;

namespace {

ClientSettings Good() { return {.address = "ledger:9090", .plaintext = true}; }

std::vector<std::string> ProblemsOf(ClientSettings settings) {
  std::vector<std::string> problems;
  CheckConnection(settings, problems);
  TakeChannelArguments(settings, problems);
  return problems;
}

// The one problem that the change makes of good settings.
template <class Change>
std::string ProblemOf(Change&& change) {
  ClientSettings settings = Good();
  change(settings);
  const std::vector<std::string> problems = ProblemsOf(settings);
  REQUIRE(problems.size() == 1);
  return problems.front();
}

}  // namespace

TEST_CASE("T1, T2: exactly one place to connect to") {
  CHECK(ProblemsOf(Good()).empty());
  CHECK(ProblemsOf({.address = "", .addresses = {"10.0.0.1:1", "10.0.0.2:1"}, .plaintext = true, .authority = "ledger"})
            .empty());
  CHECK(ProblemsOf({.address = "", .unix_socket = "/run/x", .plaintext = true, .authority = "ledger"}).empty());
  CHECK(ProblemOf([](auto& s) { s.address = ""; }) ==
        "address: \"\" is empty; expected host:port, such as ledger:9090; or `addresses`, or `unix_socket`, in its place");
  CHECK(ProblemOf([](auto& s) { s.address = "dns:///x:1"; }).starts_with("address: \"dns:///x:1\" has a scheme"));
  CHECK(ProblemOf([](auto& s) {
          s.unix_socket = "/run/x";
        }).starts_with("address, addresses, unix_socket: more than one"));
  CHECK(ProblemOf([](auto& s) {
          s.addresses = {"10.0.0.1:1"};
        }).starts_with("address, addresses, unix_socket: more than one"));
}

TEST_CASE("T3: TLS or plain text, and plain text by name") {
  CHECK(ProblemOf([](auto& s) { s.plaintext = false; }).starts_with("tls, plaintext: neither is set"));
  CHECK(ProblemOf([](auto& s) { s.tls = Tls{}; }).starts_with("tls, plaintext: both are set"));
  CHECK(ProblemOf([](auto& s) { s.credentials = grpc::AccessTokenCredentials("token"); }).starts_with("credentials: are set"));
  ClientSettings settings{.address = "x:1", .tls = Tls{.roots = "garbage"}};
  std::vector<std::string> problems;
  LoadCertificates(settings, problems);
  REQUIRE(problems.size() == 1);
  CHECK(problems[0] == "tls.roots: holds no PEM certificate");
}

TEST_CASE("L19: the authority is the address as given; an authority or a server name override goes before it") {
  CHECK(AuthorityOf({.address = "ledger:9090"}) == "ledger:9090");
  CHECK(AuthorityOf({.address = "[::1]:9090"}) == "[::1]:9090");
  CHECK(AuthorityOf({.address = "ledger:9090", .authority = "other"}) == "other");
  CHECK(AuthorityOf({.address = "ledger:9090", .tls = Tls{.server_name_override = "override"}, .authority = "other"}) ==
        "override");
  const std::string missing = "authority: \"\" is missing";
  CHECK(ProblemOf([](auto& s) { s.address = "", s.unix_socket = "/run/x"; }).starts_with(missing));
  CHECK(ProblemOf([](auto& s) { s.address = "", s.addresses = {"10.0.0.1:1"}; }).starts_with(missing));
  CHECK(ProblemsOf({.address = "", .unix_socket = "/run/x", .tls = Tls{.server_name_override = "ledger"}}).empty());
  CHECK(ProblemOf([](auto& s) { s.authority = "a b"; }).starts_with("authority: \"a b\" has white space"));
}

TEST_CASE("L19, T2: gRPC is given a target in which there is nothing to guess") {
  CHECK(TargetOf({.address = "unix:80"}) == "dns:///unix:80");
  CHECK(TargetOf({.address = "[::1]:80"}) == "dns:///%5B::1%5D:80");
  CHECK(TargetOf({.address = "", .addresses = {"10.0.0.1:1", "10.0.0.2:2"}}) == "ipv4:10.0.0.1:1,10.0.0.2:2");
  CHECK(TargetOf({.address = "", .unix_socket = "/run/x"}) == "unix:/run/x");
  CHECK(TargetOf({.address = "ledger:80", .connection = {.name_server = "127.0.0.1:53"}}) ==
        "dns://127.0.0.1:53/ledger:80");
  CHECK(TargetOf({.address = "ledger:80", .connection = {.name_server = "[::1]:53"}}) == "dns://[::1]:53/ledger:80");
}

TEST_CASE("D2, T4: the lengths of connecting are positive and bounded") {
  CHECK(ProblemOf([](auto& s) {
          s.connection.reconnect_first = 0ms;
        }).starts_with("connection.reconnect_first: 0 ms; expected 1 ms to"));
  CHECK(ProblemOf([](auto& s) {
          s.connection.reconnect_first = 2s;
        }).starts_with("connection.reconnect_highest: 1000 ms; expected at least"));
  CHECK(ProblemOf([](auto& s) {
          s.connection.reconnect_highest = 50ms;
        }).starts_with("connection.reconnect_highest: 50 ms"));
  CHECK(ProblemOf([](auto& s) {
          s.connection.connect_timeout = -1s;
        }).starts_with("connection.connect_timeout: -1000 ms"));
  CHECK(ProblemOf([](auto& s) {
          s.connection.connect_timeout = Duration::max();
        }).starts_with("connection.connect_timeout: "));
  CHECK(ProblemOf([](auto& s) {
          s.connection.resolve_interval = 999us;
        }).starts_with("connection.resolve_interval: 0.999 ms"));
  CHECK(
      ProblemsOf({.address = "x:1", .plaintext = true, .connection = {.reconnect_first = 1ms, .resolve_interval = 1ms}})
          .empty());
}

TEST_CASE("D3: keepalive is off by default, and an interval under 10 s is refused") {
  CHECK(ConnectionSettings{}.keepalive_interval == Duration::zero());
  const std::string interval = "connection.keepalive_interval: ";
  CHECK(ProblemOf([](auto& s) { s.connection.keepalive_interval = 10s - 1ns; }).starts_with(interval));
  CHECK(ProblemOf([](auto& s) { s.connection.keepalive_interval = -1ns; }).starts_with(interval));
  CHECK(ProblemOf([](auto& s) { s.connection.keepalive_interval = Duration::max(); }).starts_with(interval));
  CHECK(ProblemOf([](auto& s) { s.connection.keepalive_timeout = 0s; }).starts_with("connection.keepalive_timeout: "));
  CHECK(ProblemOf([](auto& s) {
          s.connection.keepalive_without_calls = true;
        }).starts_with("connection.keepalive_without_calls: "));
  CHECK(ProblemsOf({.address = "x:1",
                    .plaintext = true,
                    .connection = {.keepalive_interval = 10s, .keepalive_without_calls = true}})
            .empty());
}

TEST_CASE("D1, T1: channels, balancing and the name server are checked") {
  CHECK(ProblemOf([](auto& s) { s.connection.channels = 0; }) == "connection.channels: 0; expected 1 to 64");
  CHECK(ProblemOf([](auto& s) { s.connection.channels = 65; }) == "connection.channels: 65; expected 1 to 64");
  CHECK(ProblemOf([](auto& s) {
          s.connection.balancing = static_cast<Balancing>(7);
        }).starts_with("connection.balancing: 7"));
  CHECK(ProblemOf([](auto& s) {
          s.connection.name_server = "dns:53";
        }).starts_with("connection.name_server: \"dns:53\" has a name for a host"));
  CHECK(ProblemOf([](auto& s) {
          s.connection.name_server = "10.0.0.1";
        }).starts_with("connection.name_server: \"10.0.0.1\" has no port"));
}

TEST_CASE("L7, L16, T1: channel arguments are the user's but for penstock's own, and a function that throws is told") {
  CHECK(ProblemsOf(
            {.address = "x:1", .plaintext = true, .channel_arguments = [](auto& a) { a.SetUserAgentPrefix("wallet"); }})
            .empty());
  for (const char* key : {"grpc.enable_retries", "grpc.enable_deadline_checking", "grpc.use_local_subchannel_pool",
                          "grpc.service_config"}) {
    CHECK(ProblemOf([&](auto& s) { s.channel_arguments = [key](auto& a) { a.SetInt(key, 1); }; }).find(key) !=
          std::string::npos);
  }
  CHECK(
      ProblemOf([](auto& s) { s.channel_arguments = [](auto&) { throw 7; }; }).starts_with("channel_arguments: threw"));
}

TEST_CASE("T1, L16: channel arguments are asked for once, and what was checked is what every channel gets") {
  int asked = 0;
  ClientSettings settings = Good();
  settings.channel_arguments = [&](grpc::ChannelArguments& arguments) {
    if (++asked > 1) arguments.SetInt("grpc.enable_retries", 1);
    arguments.SetInt("a.number", 7);
    arguments.SetString("a.text", "seven");
    arguments.SetPointer("a.pointer", &asked);
  };
  std::vector<std::string> problems;
  TakeChannelArguments(settings, problems);
  REQUIRE(problems.empty());
  for (int channel = 0; channel < 2; ++channel) {
    grpc::ChannelArguments arguments;
    settings.channel_arguments(arguments);
    const grpc_channel_args set = arguments.c_channel_args();
    const auto find = [&](std::string_view key) {
      grpc_arg* const end = set.args + set.num_args;
      return std::find_if(set.args, end, [&](const grpc_arg& argument) { return argument.key == key; });
    };
    CHECK(find("grpc.enable_retries") == set.args + set.num_args);
    REQUIRE(find("a.number") != set.args + set.num_args);
    CHECK(find("a.number")->value.integer == 7);
    REQUIRE(find("a.text") != set.args + set.num_args);
    CHECK(std::string(find("a.text")->value.string) == "seven");
    REQUIRE(find("a.pointer") != set.args + set.num_args);
    CHECK(find("a.pointer")->value.pointer.p == &asked);
  }
  CHECK(asked == 1);
}
