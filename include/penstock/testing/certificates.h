#pragma once

// Certificates for one test, made in about a millisecond each: an authority, servers and clients that it vouches for, and
// the ways in which real ones go wrong.
//
//     testing::CertificateAuthority authority;
//     const testing::Identity identity = authority.Issue();        // localhost, 127.0.0.1 and ::1
//     ... Server::Create({.tls = {.certificate = identity.certificate, .key = identity.key}})
//     ... Client::Create({.tls = penstock::Tls{.roots = authority.certificate()}})
//
// Threads: an authority may be used from several threads at once.
// Ownership: plain values; PEM text. Keys are fresh (P-256), never written anywhere unless a TemporaryFolder is asked to.
// Time: validity is by the time of day, an hour back to a day ahead unless said otherwise.
// Errors: what OpenSSL refuses is a std::runtime_error; an address that is none is a std::invalid_argument.

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::inline v0::testing {

// A certificate and its key, both PEM.
struct Identity {
  std::string certificate;
  std::string key;
};

struct CertificateSettings {
  std::string common_name = "localhost";
  // The subject's alternative names, which are what TLS compares: DNS names, and IPv4 or IPv6 addresses.
  std::vector<std::string> names = {"localhost"};
  std::vector<std::string> addresses = {"127.0.0.1", "::1"};
  // From now; below zero lies in the past.
  std::chrono::seconds not_before = std::chrono::hours(-1);
  std::chrono::seconds not_after = std::chrono::hours(24);
};

class CertificateAuthority {
 public:
  explicit CertificateAuthority(std::string_view name = "penstock test authority");
  ~CertificateAuthority();
  CertificateAuthority(CertificateAuthority&&) noexcept;
  CertificateAuthority& operator=(CertificateAuthority&&) noexcept;

  // What to trust, as PEM.
  const std::string& certificate() const noexcept;

  // Good for a server and for a client.
  Identity Issue(const CertificateSettings& settings = {}) const;

  // Expired an hour ago.
  Identity IssueExpired() const;

  // A certificate of this authority with a key that belongs to another.
  Identity IssueWithWrongKey() const;

 private:
  struct Made;
  std::unique_ptr<Made> made_;
};

// Looks like PEM at both ends and is none.
std::string MalformedCertificate();
std::string MalformedKey();

// A folder of its own below the system's temporary one, removed with all that is in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const noexcept { return path_; }

  // Writes the file and returns its path.
  std::string Write(std::string_view name, std::string_view content) const;

 private:
  std::string path_;
};

}  // namespace penstock::inline v0::testing
