#include "runtime/address.h"

#include <doctest/doctest.h>

#include <random>

using namespace penstock;
using namespace penstock::detail;

namespace {

struct Refused {
  std::string text;
  std::string reason;
};

std::string ReasonOf(std::string_view text, AddressUse use) {
  const Result<Address> address = ParseAddress(text, use);
  return address.ok() ? "" : address.error().message();
}

}  // namespace

TEST_CASE("T2: host:port is an address, with a name, an IPv4 or a bracketed IPv6 host") {
  struct Good {
    std::string text, host;
    int port;
    HostKind kind;
    std::string target;
  };
  const Good table[] = {
      {"ledger:9090", "ledger", 9090, HostKind::kName, "dns:///ledger:9090"},
      {"ledger.prod.svc.cluster.local:1", "ledger.prod.svc.cluster.local", 1, HostKind::kName,
       "dns:///ledger.prod.svc.cluster.local:1"},
      {"ledger.example.com.:443", "ledger.example.com.", 443, HostKind::kName, "dns:///ledger.example.com.:443"},
      {"a_b-c.1x:65535", "a_b-c.1x", 65535, HostKind::kName, "dns:///a_b-c.1x:65535"},
      {"10.0.0.1:80", "10.0.0.1", 80, HostKind::kIpv4, "dns:///10.0.0.1:80"},
      {"[::1]:80", "::1", 80, HostKind::kIpv6, "dns:///%5B::1%5D:80"},
      {"[2001:db8::7]:443", "2001:db8::7", 443, HostKind::kIpv6, "dns:///%5B2001:db8::7%5D:443"},
      {"[::ffff:10.0.0.1]:443", "::ffff:10.0.0.1", 443, HostKind::kIpv6, "dns:///%5B::ffff:10.0.0.1%5D:443"},
      // These would be taken for schemes if gRPC had to guess.
      {"unix:80", "unix", 80, HostKind::kName, "dns:///unix:80"},
      {"dns:53", "dns", 53, HostKind::kName, "dns:///dns:53"},
      {"x:00080", "x", 80, HostKind::kName, "dns:///x:00080"},
  };
  for (const Good& good : table) {
    CAPTURE(good.text);
    for (const AddressUse use : {AddressUse::kConnect, AddressUse::kListen}) {
      const Result<Address> address = ParseAddress(good.text, use);
      REQUIRE(address.ok());
      CHECK(address->text == good.text);
      CHECK(address->host == good.host);
      CHECK(address->port == good.port);
      CHECK(address->kind == good.kind);
      CHECK(TargetOf(*address) == good.target);
      CHECK(ListeningTargetOf(*address) == good.text);
    }
  }
}

TEST_CASE("T2: everything else is refused, with its reason") {
  const std::string label64(64, 'a');
  const Refused table[] = {
      {"", "is empty"},
      {"dns:///x:1", "has a scheme"},
      {"dns:x:1", "has a scheme"},
      {"http://x:1", "has a scheme"},
      {"https://ledger.example.com", "has a scheme"},
      {"unix:/tmp/x", "has a scheme"},
      {"unix:///tmp/x", "has a scheme"},
      {"ipv4:10.0.0.1:80", "has a scheme"},
      {"x:http", "has a port that is no number"},
      {"x:+80", "has a port that is no number"},
      {"x:-1", "has a port that is no number"},
      {"x:0x50", "has a port that is no number"},
      {"x:80a", "has a port that is no number"},
      {"x:8.0", "has a port that is no number"},
      {"x:65536", "has a port above 65535"},
      {"x:99999", "has a port above 65535"},
      {"x:4294967297", "has a port above 65535"},
      {"x:18446744073709551617", "has a port above 65535"},
      {"x:99999999999999999999999999999", "has a port above 65535"},
      {"x", "has no port"},
      {"x:", "has no port"},
      {"10.0.0.1", "has no port"},
      {"[::1]", "has no port"},
      {"[::1]:", "has no port"},
      {"x:80?y", "has a '?'"},
      {"x#y:80", "has a '#'"},
      {"x%41:80", "has a '%'"},
      {"[fe80::1%eth0]:80", "has a '%'"},
      {" x:80", "has white space"},
      {"x:80 ", "has white space"},
      {"x y:80", "has white space"},
      {"x:80\t", "has a control character"},
      {"x:80\n", "has a control character"},
      {"x\r:80", "has a control character"},
      {std::string("x\0y:80", 6), "has a control character"},
      {std::string("x:80\0", 5), "has a control character"},
      {"x\x7f:80", "has a control character"},
      {"\xc3\xa9:80", "has a character outside ASCII"},
      {"\xff:80", "has a character outside ASCII"},
      {"::1:80", "has more than one ':' (an IPv6 address stands in brackets)"},
      {"2001:db8::1", "has more than one ':' (an IPv6 address stands in brackets)"},
      {"::1", "has more than one ':' (an IPv6 address stands in brackets)"},
      {"1:2:3", "has more than one ':' (an IPv6 address stands in brackets)"},
      {"[::1:80", "has a '[' without its ']'"},
      {"[]:80", "has no IPv6 address between its brackets"},
      {"[x]:80", "has no IPv6 address between its brackets"},
      {"[10.0.0.1]:80", "has no IPv6 address between its brackets"},
      {"[::1::2]:80", "has no IPv6 address between its brackets"},
      {"[::1]80", "has something other than a port after its ']'"},
      {"[::1]x:80", "has something other than a port after its ']'"},
      {"x/y:80", "has a character that no host name has"},
      {"/x:80", "has a character that no host name has"},
      {"user@x:80", "has a character that no host name has"},
      {"a,b:80", "has a character that no host name has"},
      {"x]:80", "has a character that no host name has"},
      {"x\":80", "has a character that no host name has"},
      {"a..b:80", "has a host with nothing between two dots"},
      {".b:80", "has a host with nothing between two dots"},
      {".:80", "has no host"},
      {label64 + ":80", "has a host with more than 63 characters between two dots"},
      {"256.0.0.1:80", "has a host that is neither a name nor an IPv4 address"},
      {"10.1:80", "has a host that is neither a name nor an IPv4 address"},
      {"1234:80", "has a host that is neither a name nor an IPv4 address"},
  };
  for (const Refused& refused : table) {
    CAPTURE(refused.text);
    CHECK(ReasonOf(refused.text, AddressUse::kConnect) == refused.reason);
    CHECK(ReasonOf(refused.text, AddressUse::kListen) == refused.reason);
  }
  std::string long_host;
  while (long_host.size() < 253) long_host += "abcdefg.";
  CHECK(ReasonOf(long_host.substr(0, 253) + ":1", AddressUse::kConnect) == "");
  CHECK(ReasonOf(long_host.substr(0, 254) + "a:1", AddressUse::kConnect) == "has a host of more than 253 characters");
}

TEST_CASE("T2: an empty host and port 0 are for servers") {
  CHECK(ReasonOf(":9090", AddressUse::kConnect) == "has no host");
  CHECK(ReasonOf("x:0", AddressUse::kConnect) == "has port 0");
  CHECK(ReasonOf("x:00", AddressUse::kConnect) == "has port 0");
  CHECK(ReasonOf("[::1]:0", AddressUse::kConnect) == "has port 0");
  CHECK(ReasonOf(":", AddressUse::kListen) == "has no port");

  const Result<Address> everywhere = ParseAddress(":9090", AddressUse::kListen);
  REQUIRE(everywhere.ok());
  CHECK(everywhere->kind == HostKind::kEmpty);
  CHECK(ListeningTargetOf(*everywhere) == "[::]:9090");
  const Result<Address> free = ParseAddress("127.0.0.1:0", AddressUse::kListen);
  REQUIRE(free.ok());
  CHECK(ListeningTargetOf(*free) == "127.0.0.1:0");
  CHECK(ReasonOf(":0", AddressUse::kListen) == "");
}

TEST_CASE("T1, T2: a refused address is told with its field, its value and what is allowed") {
  std::vector<std::string> problems;
  CheckAddress("address", "ledger:9090", AddressUse::kConnect, problems);
  CHECK(problems.empty());
  CheckAddress("address", "led\nger", AddressUse::kConnect, problems);
  CheckAddress("listen", std::string(1000, 'x'), AddressUse::kListen, problems);
  REQUIRE(problems.size() == 2);
  CHECK(
      problems[0] ==
      R"(address: "led\x0ager" has a control character; expected host:port, such as ledger:9090 or [2001:db8::1]:9090)");
  CHECK(problems[1].size() < 300);
}

TEST_CASE("T2: a list holds IP addresses of one family") {
  std::vector<std::string> problems;
  CheckAddressList("addresses", {"10.0.0.1:1", "10.0.0.2:2"}, problems);
  CheckAddressList("addresses", {"[::1]:1"}, problems);
  CHECK(problems.empty());
  CHECK(TargetOfList({"10.0.0.1:1", "10.0.0.2:2"}) == "ipv4:10.0.0.1:1,10.0.0.2:2");
  CHECK(TargetOfList({"[::1]:1", "[::2]:2"}) == "ipv6:%5B::1%5D:1,%5B::2%5D:2");

  CheckAddressList("addresses", {}, problems);
  CheckAddressList("addresses", {"10.0.0.1:1", "x:2", "[::1]:3", "10.0.0.2"}, problems);
  REQUIRE(problems.size() == 4);
  CHECK(problems[0].starts_with("addresses: is empty"));
  CHECK(problems[1].starts_with("addresses[1]: \"x:2\" has a name for a host"));
  CHECK(problems[2].starts_with("addresses[2]: \"[::1]:3\" is of another family than the first"));
  CHECK(problems[3].starts_with("addresses[3]: \"10.0.0.2\" has no port"));
}

TEST_CASE("T2: a Unix socket's path fits the kernel's bound") {
  std::vector<std::string> problems;
  CheckUnixPath("unix_socket", "/run/ledger.sock", problems);
  CheckUnixPath("unix_socket", std::string(107, 'x'), problems);
  CHECK(problems.empty());
  CHECK(TargetOfUnixPath("/run/a b%.sock") == "unix:/run/a%20b%25.sock");
  // Two slashes would begin an authority, with which gRPC makes a channel that fails every call.
  CHECK(TargetOfUnixPath("//run//ledger.sock") == "unix:/run//ledger.sock");
  CHECK(TargetOfUnixPath("///run/ledger.sock") == "unix:/run/ledger.sock");
  CheckUnixPath("unix_socket", "", problems);
  CheckUnixPath("unix_socket", std::string(108, 'x'), problems);
  CheckUnixPath("unix_socket", std::string("/a\0b", 4), problems);
  CHECK(problems.size() == 3);
}

TEST_CASE("L19: an authority is a host with or without a port") {
  std::vector<std::string> problems;
  for (const char* good : {"ledger", "ledger:9090", "10.0.0.1", "[::1]", "[::1]:80", "localhost"})
    CheckAuthority("authority", good, problems);
  CHECK(problems.empty());
  const char* const bad_ones[] = {"", ":80", "a b", "a\n", "x:y", "::1", "http://x", "a/b", "x:0"};
  for (const char* bad : bad_ones) CheckAuthority("authority", bad, problems);
  CHECK(problems.size() == std::size(bad_ones));
}

TEST_CASE("G6, T2: whatever bytes come in, an address is refused or its parts are as allowed") {
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  const std::string alphabet = "ab1290.:[]-_%#? /\t\n@x,\xff" + std::string(1, '\0');
  for (int step = 0; step < 200'000; ++step) {
    std::string text;
    for (std::size_t length = random() % 14; length > 0; --length) text += alphabet[random() % alphabet.size()];
    const Result<Address> address = ParseAddress(text, AddressUse::kConnect);
    if (!address.ok()) {
      REQUIRE_FALSE(address.error().message().empty());
      continue;
    }
    REQUIRE(address->port >= 1);
    REQUIRE_FALSE(address->host.empty());
    REQUIRE(address->text == text);
    REQUIRE(text.find_first_of("%#? /\t\n@,\xff") == std::string::npos);
    REQUIRE(ParseAddress(text, AddressUse::kListen).ok());
  }
}
