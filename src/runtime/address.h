#pragma once

// What is, and what is not, an address (T2).
//
// gRPC takes a string, guesses a scheme in it, lets a port of 99999 wrap around and an absent one mean 443. Everything
// here is checked before gRPC sees it, with a reason that a person can act on, and is handed to gRPC in a form in which
// there is nothing left to guess.
//
//     std::vector<std::string> problems;
//     CheckAddress("address", "ledger:9090", AddressUse::kConnect, problems);
//     channel target: TargetOf(*ParseAddress("ledger:9090", AddressUse::kConnect))   // "dns:///ledger:9090"
//
// Threads: pure functions.
// Ownership: values.
// Time: none.
// Errors: every refusal says what is wrong and what is allowed.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/core/result.h"

namespace penstock::inline v0::detail {

enum class AddressUse {
  kConnect,  // A client's: a host and a port from 1 to 65535.
  kListen,   // A server's: the host may be empty (every interface) and the port 0 (any free one).
};

enum class HostKind { kName, kIpv4, kIpv6, kEmpty };

struct Address {
  std::string text;  // As it was given; what a client sends as :authority.
  std::string host;  // Without brackets.
  std::uint16_t port = 0;
  HostKind kind = HostKind::kName;
};

// host:port, an IPv6 host in brackets. Refused: no host or port 0 (unless listening), a scheme, a named port, a port
// above 65535, no port, and every character that no host name has (`?`, `#`, `%`, white space, control characters,
// ...). The error is half a sentence, such as `has no port`.
Result<Address> ParseAddress(std::string_view text, AddressUse use);

// Appends one line that names the field, the value and what is allowed, when `text` is no address.
void CheckAddress(std::string_view field, std::string_view text, AddressUse use, std::vector<std::string>& problems);

// A list of addresses that are connected to as one dependency: IP addresses only, all of one family (gRPC has no form
// for anything else), at least one.
void CheckAddressList(std::string_view field, const std::vector<std::string>& list, std::vector<std::string>& problems);

// The path of a Unix socket: not empty, no NUL, short enough for the kernel (107 bytes).
void CheckUnixPath(std::string_view field, std::string_view path, std::vector<std::string>& problems);

// An authority, as it goes into :authority: host or host:port, what ParseAddress() takes but the port may be missing.
void CheckAuthority(std::string_view field, std::string_view authority, std::vector<std::string>& problems);

// What gRPC is given as a channel's target; only for what the checks above let pass.
// `name_server` is the DNS server to ask, as its IP address and port; empty: the system's.
std::string TargetOf(const Address& address, std::string_view name_server = {});
std::string TargetOfList(const std::vector<std::string>& list);
std::string TargetOfUnixPath(std::string_view path);

// What a server's AddListeningPort is given.
std::string ListeningTargetOf(const Address& address);

}  // namespace penstock::inline v0::detail
