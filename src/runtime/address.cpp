#include "runtime/address.h"

#include <arpa/inet.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>

#include "runtime/problems.h"

namespace penstock::inline v0::detail {
namespace {

constexpr std::string_view kAddressForm = "host:port, such as ledger:9090 or [2001:db8::1]:9090";
constexpr std::string_view kListenForm = "host:port or :port, such as :9090";
constexpr std::string_view kAuthorityForm = "a host, or host:port, such as ledger or ledger:9090";

// RFC 1035: a name has at most 253 characters, a label at most 63.
constexpr std::size_t kLongestName = 253;
constexpr std::size_t kLongestLabel = 63;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool AllDigits(std::string_view text) { return !text.empty() && std::all_of(text.begin(), text.end(), IsDigit); }

template <int kFamily>
bool IsIp(std::string_view host) {
  unsigned char parsed[16];
  // inet_pton reads up to a NUL; a host with one inside was refused before.
  return inet_pton(kFamily, std::string(host).c_str(), parsed) == 1;
}

// What stands in no address at all; empty when there is none of it.
std::string_view ForbiddenCharacter(std::string_view text) {
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte < 0x20 || byte == 0x7f) return "has a control character";
    if (byte > 0x7f) return "has a character outside ASCII";
    switch (character) {
      case ' ':
        return "has white space";
      case '?':
        return "has a '?'";
      case '#':
        return "has a '#'";
      case '%':
        return "has a '%'";
      default:
        break;
    }
  }
  return {};
}

// Why it is no name; empty when it is one.
std::string_view NameProblem(std::string_view host) {
  // One dot at the end says that the name is complete.
  if (host.ends_with('.')) host.remove_suffix(1);
  if (host.empty()) return "has no host";
  if (host.size() > kLongestName) return "has a host of more than 253 characters";
  std::string_view label;
  for (std::string_view rest = host;;) {
    const std::size_t dot = rest.find('.');
    label = rest.substr(0, dot);
    if (label.empty()) return "has a host with nothing between two dots";
    if (label.size() > kLongestLabel) return "has a host with more than 63 characters between two dots";
    if (dot == std::string_view::npos) break;
    rest.remove_prefix(dot + 1);
  }
  for (const char character : host) {
    if (!IsLetter(character) && !IsDigit(character) && character != '-' && character != '.' && character != '_') {
      return "has a character that no host name has";
    }
  }
  // A resolver takes 1234 and 10.1 for IPv4 addresses that nobody meant.
  if (AllDigits(label)) return "has a host that is neither a name nor an IPv4 address";
  return {};
}

struct HostAndKind {
  HostKind kind;
  std::string_view problem;
};

HostAndKind KindOf(std::string_view host) {
  if (IsIp<AF_INET>(host)) return {HostKind::kIpv4, {}};
  return {HostKind::kName, NameProblem(host)};
}

// `dns:///x:1`, `unix:/tmp/x`, `http://x`: a scheme is letters and ends before a colon and a slash, or before one more
// colon.
bool HasScheme(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == 0 || colon == std::string_view::npos || !IsLetter(text.front())) return false;
  const std::string_view rest = text.substr(colon + 1);
  return rest.find('/') != std::string_view::npos ||
         (rest.find(':') != std::string_view::npos && !IsIp<AF_INET6>(text));
}

std::string PercentEncode(std::string_view text, std::string_view kept) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string encoded;
  for (const char character : text) {
    if (IsLetter(character) || IsDigit(character) || kept.find(character) != std::string_view::npos) {
      encoded += character;
    } else {
      const auto byte = static_cast<unsigned char>(character);
      encoded += '%';
      encoded += kHex[byte >> 4];
      encoded += kHex[byte & 15];
    }
  }
  return encoded;
}

}  // namespace

Result<Address> ParseAddress(std::string_view text, AddressUse use) {
  if (text.empty()) return Error("is empty");
  if (const std::string_view forbidden = ForbiddenCharacter(text); !forbidden.empty())
    return Error(std::string(forbidden));
  if (HasScheme(text)) return Error("has a scheme");

  Address address;
  address.text = text;
  std::string_view rest;  // From the colon before the port on.
  if (text.front() == '[') {
    const std::size_t bracket = text.find(']');
    if (bracket == std::string_view::npos) return Error("has a '[' without its ']'");
    const std::string_view host = text.substr(1, bracket - 1);
    if (!IsIp<AF_INET6>(host)) return Error("has no IPv6 address between its brackets");
    address.host = host;
    address.kind = HostKind::kIpv6;
    rest = text.substr(bracket + 1);
    if (!rest.empty() && rest.front() != ':') return Error("has something other than a port after its ']'");
  } else {
    const std::size_t colon = text.rfind(':');
    const std::string_view host = text.substr(0, colon);
    if (host.find(':') != std::string_view::npos || (colon != std::string_view::npos && IsIp<AF_INET6>(text))) {
      return Error("has more than one ':' (an IPv6 address stands in brackets)");
    }
    if (host.empty()) {
      if (use == AddressUse::kConnect) return Error("has no host");
      address.kind = HostKind::kEmpty;
    } else {
      const HostAndKind kind = KindOf(host);
      if (!kind.problem.empty()) return Error(std::string(kind.problem));
      address.host = host;
      address.kind = kind.kind;
    }
    if (colon != std::string_view::npos) rest = text.substr(colon);
  }

  if (rest.size() <= 1) return Error("has no port");
  const std::string_view digits = rest.substr(1);
  if (!AllDigits(digits)) return Error("has a port that is no number");
  // Six digits say enough: 0000000080 is nobody's port.
  unsigned long port = digits.size() > 5 ? 65536 : std::stoul(std::string(digits));
  if (port > 65535) return Error("has a port above 65535");
  if (port == 0 && use == AddressUse::kConnect) return Error("has port 0");
  address.port = static_cast<std::uint16_t>(port);
  return address;
}

void CheckAddress(std::string_view field, std::string_view text, AddressUse use, std::vector<std::string>& problems) {
  const Result<Address> address = ParseAddress(text, use);
  if (address.ok()) return;
  problems.push_back(
      Problem(field, text, address.error().message(), use == AddressUse::kListen ? kListenForm : kAddressForm));
}

void CheckAddressList(std::string_view field, const std::vector<std::string>& list,
                      std::vector<std::string>& problems) {
  constexpr std::string_view kForm = "IP addresses with ports, all IPv4 or all IPv6, such as 10.0.0.1:9090";
  if (list.empty()) problems.push_back(std::string(field) + ": is empty; expected at least one address");
  const Result<Address>* first = nullptr;
  std::vector<Result<Address>> parsed;
  parsed.reserve(list.size());  // `first` points into it.
  for (std::size_t place = 0; place < list.size(); ++place) {
    const std::string element = std::string(field) + "[" + std::to_string(place) + "]";
    const Result<Address>& address = parsed.emplace_back(ParseAddress(list[place], AddressUse::kConnect));
    if (!address.ok()) {
      problems.push_back(Problem(element, list[place], address.error().message(), kForm));
    } else if (address->kind != HostKind::kIpv4 && address->kind != HostKind::kIpv6) {
      problems.push_back(Problem(element, list[place], "has a name for a host", kForm));
    } else if (first == nullptr) {
      first = &address;
    } else if (address->kind != first->value().kind) {
      problems.push_back(Problem(element, list[place], "is of another family than the first", kForm));
    }
  }
}

void CheckUnixPath(std::string_view field, std::string_view path, std::vector<std::string>& problems) {
  constexpr std::size_t kLongest = sizeof(sockaddr_un{}.sun_path) - 1;
  constexpr std::string_view kForm = "the path of a Unix socket, 1 to 107 bytes";
  if (path.empty()) problems.push_back(Problem(field, path, "is empty", kForm));
  if (path.size() > kLongest) problems.push_back(Problem(field, path, "is too long", kForm));
  if (path.find('\0') != std::string_view::npos) problems.push_back(Problem(field, path, "has a NUL", kForm));
}

void CheckAuthority(std::string_view field, std::string_view authority, std::vector<std::string>& problems) {
  const bool ipv6_alone = authority.starts_with('[') && authority.ends_with(']');
  const bool host_alone = ipv6_alone || authority.find(':') == std::string_view::npos;
  const Result<Address> address = host_alone && !authority.empty()
                                      ? ParseAddress(std::string(authority) + ":1", AddressUse::kConnect)
                                      : ParseAddress(authority, AddressUse::kConnect);
  if (!address.ok()) problems.push_back(Problem(field, authority, address.error().message(), kAuthorityForm));
}

std::string TargetOf(const Address& address, std::string_view name_server) {
  // The resolver decodes the path, and an URI's path has no brackets; its authority has.
  return "dns://" + PercentEncode(name_server, "-._:[]") + "/" + PercentEncode(address.text, "-._:");
}

std::string TargetOfList(const std::vector<std::string>& list) {
  std::string target;
  for (const std::string& address : list) {
    target += target.empty() ? (address.starts_with('[') ? "ipv6:" : "ipv4:") : ",";
    target += PercentEncode(address, "-._:");
  }
  return target;
}

std::string TargetOfUnixPath(std::string_view path) {
  // In an URI two slashes begin an authority; at the beginning of a path they are one.
  while (path.starts_with("//")) path.remove_prefix(1);
  return "unix:" + PercentEncode(path, "-._/");
}

std::string ListeningTargetOf(const Address& address) {
  return address.kind == HostKind::kEmpty ? "[::]" + address.text : address.text;
}

}  // namespace penstock::inline v0::detail
