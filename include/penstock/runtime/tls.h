#pragma once

// The certificates of a client or a server.
//
// Each is given as PEM text or as the path of a file with it, and is read, parsed and matched when the client or the
// server is created: a truncated file or a key of another certificate is an error there, not a handshake that fails at
// the first call.
//
//     penstock::Tls client{.roots_file = "/etc/ledger/ca.pem"};
//     penstock::Tls mutual{.roots = ca, .certificate = certificate, .key = key};
//
// Threads: a plain value.
// Ownership: owns its texts.
// Time: a client reads files once, at its creation. A server looks at its files again at new handshakes, at most once a
// second; what does not parse or does not fit is logged and the last good material stays. Credentials from files are for one
// server and one port: which of several would hear of new files first is gRPC's affair, and the others would not.
// Errors: told by Create() of whatever it is given to, each with its field's name.

#include <optional>
#include <string>

namespace penstock::inline v0 {

struct Tls {
  // The certificates that the peer's must lead to. Client: unset trusts gRPC's default roots (docs/connections.md says
  // which those are). Server: set, every client must show a certificate that leads here (mTLS); unset, none is asked
  // for one.
  std::optional<std::string> roots{};
  // One's own certificate first, then the intermediate ones in order. Client: for mTLS. Server: required.
  std::optional<std::string> certificate{};
  // The private key of the first certificate, not encrypted. Set exactly when the certificate is.
  std::optional<std::string> key{};

  // Paths of files that hold the same; each excludes its namesake above.
  std::optional<std::string> roots_file{};
  std::optional<std::string> certificate_file{};
  std::optional<std::string> key_file{};

  // Client only: the host that the server's certificate must name, and what is sent as :authority, instead of the
  // address.
  std::string server_name_override{};
};

}  // namespace penstock::inline v0
