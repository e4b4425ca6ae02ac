#include "runtime/tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "runtime/address.h"

namespace penstock::inline v0::detail {
namespace {

template <auto kFree>
struct Freed {
  template <class T>
  void operator()(T* held) const noexcept {
    kFree(held);
  }
};
using Bio = std::unique_ptr<BIO, Freed<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using SslContext = std::unique_ptr<SSL_CTX, Freed<SSL_CTX_free>>;

constexpr std::size_t kLargestFile = std::size_t{4} << 20;  // A bundle of every public root is 0.2 MiB.

// What OpenSSL says went wrong, in its words, and its queue of errors empty.
std::string OpensslReason() {
  std::string reason;
  const unsigned long code = ERR_peek_last_error();
  if (const char* text = ERR_reason_error_string(code)) reason = text;
  ERR_clear_error();
  return reason.empty() ? "" : " (" + reason + ")";
}

Bio Reading(const std::string& text) { return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

struct Parsed {
  std::vector<Certificate> certificates;
  std::string problem;  // Empty when all of the text was read.
};

// Every block of the text must be whole, and every certificate in it must parse: a truncated bundle trusts less than
// its reader thinks.
Parsed ParseCertificates(const std::string& text) {
  Parsed parsed;
  const Bio bio = Reading(text);
  for (;;) {
    char* name = nullptr;
    char* header = nullptr;
    unsigned char* data = nullptr;
    long length = 0;
    if (PEM_read_bio(bio.get(), &name, &header, &data, &length) != 1) {
      const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
      const std::string reason = OpensslReason();
      if (!at_end) {
        parsed.problem = "is malformed in or after block " + std::to_string(parsed.certificates.size() + 1) + reason;
      } else if (parsed.certificates.empty()) {
        parsed.problem = "holds no PEM certificate";
      }
      return parsed;
    }
    const std::unique_ptr<char, Freed<[](char* p) { OPENSSL_free(p); }>> name_held(name);
    const std::unique_ptr<char, Freed<[](char* p) { OPENSSL_free(p); }>> header_held(header);
    const std::unique_ptr<unsigned char, Freed<[](unsigned char* p) { OPENSSL_free(p); }>> data_held(data);
    const std::string_view kind(name);
    if (kind.find("PRIVATE KEY") != std::string_view::npos) {
      parsed.problem = "holds a private key where only certificates belong";
      return parsed;
    }
    if (kind != PEM_STRING_X509 && kind != PEM_STRING_X509_OLD && kind != PEM_STRING_X509_TRUSTED) {
      parsed.problem = "holds a block that is no certificate";
      return parsed;
    }
    const unsigned char* at = data;
    Certificate certificate(kind == PEM_STRING_X509_TRUSTED ? d2i_X509_AUX(nullptr, &at, length)
                                                            : d2i_X509(nullptr, &at, length));
    if (!certificate) {
      parsed.problem =
          "is malformed in certificate " + std::to_string(parsed.certificates.size() + 1) + OpensslReason();
      return parsed;
    }
    parsed.certificates.push_back(std::move(certificate));
  }
}

struct ParsedKey {
  Key key;
  std::string problem;
};

ParsedKey ParseKey(const std::string& text) {
  const Bio bio = Reading(text);
  bool asked = false;
  // Without a callback OpenSSL would ask the terminal for the passphrase.
  const auto refuse = [](char*, int, int, void* was_asked) {
    *static_cast<bool*>(was_asked) = true;
    return -1;
  };
  Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, refuse, &asked));
  const std::string reason = OpensslReason();
  if (key) return {std::move(key), {}};
  if (asked) return {nullptr, "is encrypted; expected a key without a passphrase"};
  if (text.find("PRIVATE KEY-----") == std::string::npos) return {nullptr, "holds no PEM private key"};
  return {nullptr, "is malformed" + reason};
}

// Why the pair can't be used; empty when it can. Goes as far as a handshake would: OpenSSL also refuses keys that are
// too small.
std::string PairProblem(const std::vector<Certificate>& chain, EVP_PKEY* key) {
  if (X509_check_private_key(chain.front().get(), key) != 1) {
    ERR_clear_error();
    for (std::size_t place = 1; place < chain.size(); ++place) {
      if (X509_check_private_key(chain[place].get(), key) == 1) {
        return "fits certificate " + std::to_string(place + 1) +
               " of the chain, but one's own certificate must stand first";
      }
      ERR_clear_error();
    }
    return "does not fit the certificate";
  }
  const SslContext context(SSL_CTX_new(TLS_method()));
  if (!context || SSL_CTX_use_certificate(context.get(), chain.front().get()) != 1 ||
      SSL_CTX_use_PrivateKey(context.get(), key) != 1) {
    return "is refused by OpenSSL" + OpensslReason();
  }
  return {};
}

// The file's text, or why it can't be read.
std::optional<std::string> ReadFile(const std::string& path, std::string& problem) {
  const std::unique_ptr<std::FILE, Freed<[](std::FILE* file) { std::fclose(file); }>> file(
      std::fopen(path.c_str(), "re"));
  std::string text;
  if (file) {
    char part[16384];
    errno = 0;
    while (const std::size_t got = std::fread(part, 1, sizeof part, file.get())) {
      text.append(part, got);
      if (text.size() > kLargestFile) {
        problem = "is larger than 4 MiB";
        return std::nullopt;
      }
    }
    if (std::ferror(file.get()) == 0) return text;
  }
  problem = "cannot be read (" + std::system_category().message(errno) + ")";
  return std::nullopt;
}

struct Source {
  std::string name;  // The field, and the file where it is one.
  std::optional<std::string> text;
};

// The text of one of the three pairs of fields. A problem leaves it empty and is appended.
Source TextOf(const std::string& field, const std::optional<std::string>& text, const std::optional<std::string>& file,
              std::vector<std::string>& problems) {
  Source source{field, std::nullopt};
  if (text && file) {
    problems.push_back(field + ": is given as text and as a file; expected one of the two");
  } else if (text && text->find_first_not_of(" \t\r\n") == std::string::npos) {
    problems.push_back(field + ": is empty; expected PEM text");
  } else if (text) {
    source.text = *text;
  } else if (file) {
    source.name = field + "_file " + (file->empty() ? "\"\"" : *file);
    std::string problem;
    std::optional<std::string> read = ReadFile(*file, problem);
    if (!read) {
      problems.push_back(source.name + ": " + problem);
    } else if (read->find_first_not_of(" \t\r\n") == std::string::npos) {
      problems.push_back(source.name + ": is empty; expected PEM text");
    } else {
      source.text = std::move(read);
    }
  }
  return source;
}

void CheckServerNameOverride(std::string_view field, const Tls& tls, TlsSide side, std::vector<std::string>& problems) {
  if (tls.server_name_override.empty()) return;
  const std::string name = std::string(field) + ".server_name_override";
  if (side == TlsSide::kServer) {
    problems.push_back(name + ": is for clients only");
  } else {
    CheckAuthority(name, tls.server_name_override, problems);
  }
}

}  // namespace

std::optional<TlsMaterial> LoadTls(std::string_view field, const Tls& tls, TlsSide side,
                                   std::vector<std::string>& problems) {
  const std::size_t before = problems.size();
  const std::string prefix(field);
  const Source roots = TextOf(prefix + ".roots", tls.roots, tls.roots_file, problems);
  const Source certificate = TextOf(prefix + ".certificate", tls.certificate, tls.certificate_file, problems);
  const Source key = TextOf(prefix + ".key", tls.key, tls.key_file, problems);
  CheckServerNameOverride(field, tls, side, problems);

  const bool has_certificate = tls.certificate || tls.certificate_file;
  const bool has_key = tls.key || tls.key_file;
  if (side == TlsSide::kServer && !has_certificate && !has_key) {
    problems.push_back(prefix + ".certificate: is missing; a server needs a certificate and its key");
  } else if (has_certificate && !has_key) {
    problems.push_back(prefix + ".key: is missing; a certificate needs its key");
  } else if (has_key && !has_certificate) {
    problems.push_back(prefix + ".certificate: is missing; a key needs its certificate");
  }

  if (roots.text) {
    const Parsed parsed = ParseCertificates(*roots.text);
    if (!parsed.problem.empty()) problems.push_back(roots.name + ": " + parsed.problem);
  }
  Parsed chain;
  if (certificate.text) {
    chain = ParseCertificates(*certificate.text);
    if (!chain.problem.empty()) problems.push_back(certificate.name + ": " + chain.problem);
  }
  ParsedKey parsed_key;
  if (key.text) {
    parsed_key = ParseKey(*key.text);
    if (!parsed_key.problem.empty()) problems.push_back(key.name + ": " + parsed_key.problem);
  }
  if (certificate.text && chain.problem.empty() && parsed_key.key) {
    const std::string problem = PairProblem(chain.certificates, parsed_key.key.get());
    if (!problem.empty()) problems.push_back(key.name + ": " + problem);
  }
  if (problems.size() != before) return std::nullopt;
  return TlsMaterial{roots.text.value_or(""), certificate.text.value_or(""), key.text.value_or("")};
}

std::shared_ptr<grpc::ChannelCredentials> ClientCredentialsOf(const TlsMaterial& material) {
  return grpc::SslCredentials(
      {.pem_root_certs = material.roots, .pem_private_key = material.key, .pem_cert_chain = material.certificate});
}

}  // namespace penstock::inline v0::detail
