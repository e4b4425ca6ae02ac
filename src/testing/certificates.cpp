#include "penstock/testing/certificates.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <arpa/inet.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <system_error>

namespace penstock::inline v0::testing {

namespace {

template <auto Free>
struct Deleter {
  template <class T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Deleter<X509_free>>;
using Memory = std::unique_ptr<BIO, Deleter<BIO_free_all>>;
using Extension = std::unique_ptr<X509_EXTENSION, Deleter<X509_EXTENSION_free>>;

[[noreturn]] void Fail(const char* what) {
  char reason[256];
  ERR_error_string_n(ERR_get_error(), reason, sizeof reason);
  throw std::runtime_error(std::string("certificates: ") + what + ": " + reason);
}

void Check(bool good, const char* what) {
  if (!good) Fail(what);
}

Key MakeKey() {
  Key key(EVP_EC_gen("P-256"));
  Check(key != nullptr, "cannot make a key");
  return key;
}

std::string Text(const Memory& memory) {
  char* bytes = nullptr;
  const long length = BIO_get_mem_data(memory.get(), &bytes);
  return {bytes, static_cast<std::size_t>(length)};
}

std::string Pem(X509& certificate) {
  Memory memory(BIO_new(BIO_s_mem()));
  Check(PEM_write_bio_X509(memory.get(), &certificate) == 1, "cannot write a certificate");
  return Text(memory);
}

std::string Pem(EVP_PKEY& key) {
  Memory memory(BIO_new(BIO_s_mem()));
  Check(PEM_write_bio_PrivateKey(memory.get(), &key, nullptr, nullptr, 0, nullptr, nullptr) == 1, "cannot write a key");
  return Text(memory);
}

void AddExtension(X509& certificate, X509& issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, &issuer, &certificate, nullptr, nullptr, 0);
  Extension extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  Check(extension != nullptr, "cannot make an extension");
  Check(X509_add_ext(&certificate, extension.get(), -1) == 1, "cannot add an extension");
}

// Without its extensions and its signature.
Certificate Draft(EVP_PKEY& key, std::string_view common_name, std::chrono::seconds not_before,
                  std::chrono::seconds not_after) {
  Certificate certificate(X509_new());
  Check(certificate != nullptr, "cannot make a certificate");
  X509_set_version(certificate.get(), 2);  // which means 3
  std::uint64_t serial = 0;
  Check(RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof serial) == 1, "no random bytes");
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate.get()), serial >> 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), static_cast<long>(not_before.count()));
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), static_cast<long>(not_after.count()));
  X509_set_pubkey(certificate.get(), &key);
  Check(X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_UTF8,
                                   reinterpret_cast<const unsigned char*>(common_name.data()),
                                   static_cast<int>(common_name.size()), -1, 0) == 1,
        "cannot use the common name (64 characters at most)");
  return certificate;
}

}  // namespace

struct CertificateAuthority::Made {
  Key key;
  Certificate certificate;
  std::string pem;
};

CertificateAuthority::CertificateAuthority(std::string_view name) : made_(std::make_unique<Made>()) {
  made_->key = MakeKey();
  made_->certificate = Draft(*made_->key, name, std::chrono::hours(-24), std::chrono::hours(240));
  X509& certificate = *made_->certificate;
  X509_set_issuer_name(&certificate, X509_get_subject_name(&certificate));
  AddExtension(certificate, certificate, NID_basic_constraints, "critical,CA:TRUE");
  AddExtension(certificate, certificate, NID_key_usage, "critical,keyCertSign,cRLSign");
  Check(X509_sign(&certificate, made_->key.get(), EVP_sha256()) > 0, "cannot sign");
  made_->pem = Pem(certificate);
}

CertificateAuthority::~CertificateAuthority() = default;
CertificateAuthority::CertificateAuthority(CertificateAuthority&&) noexcept = default;
CertificateAuthority& CertificateAuthority::operator=(CertificateAuthority&&) noexcept = default;

const std::string& CertificateAuthority::certificate() const noexcept { return made_->pem; }

Identity CertificateAuthority::Issue(const CertificateSettings& settings) const {
  const Key key = MakeKey();
  const Certificate certificate = Draft(*key, settings.common_name, settings.not_before, settings.not_after);
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(made_->certificate.get()));

  std::string alternatives;
  for (const std::string& name : settings.names) alternatives += (alternatives.empty() ? "DNS:" : ",DNS:") + name;
  for (const std::string& address : settings.addresses) {
    unsigned char parsed[16];
    if (inet_pton(AF_INET, address.c_str(), parsed) != 1 && inet_pton(AF_INET6, address.c_str(), parsed) != 1) {
      throw std::invalid_argument("certificates: \"" + address + "\" is neither an IPv4 nor an IPv6 address");
    }
    alternatives += (alternatives.empty() ? "IP:" : ",IP:") + address;
  }
  if (!alternatives.empty()) {
    AddExtension(*certificate, *made_->certificate, NID_subject_alt_name, alternatives);
  }
  AddExtension(*certificate, *made_->certificate, NID_basic_constraints, "critical,CA:FALSE");
  AddExtension(*certificate, *made_->certificate, NID_key_usage, "critical,digitalSignature");
  AddExtension(*certificate, *made_->certificate, NID_ext_key_usage, "serverAuth,clientAuth");
  Check(X509_sign(certificate.get(), made_->key.get(), EVP_sha256()) > 0, "cannot sign");
  return {.certificate = Pem(*certificate), .key = Pem(*key)};
}

Identity CertificateAuthority::IssueExpired() const {
  CertificateSettings settings;
  settings.not_before = std::chrono::hours(-2);
  settings.not_after = std::chrono::hours(-1);
  return Issue(settings);
}

Identity CertificateAuthority::IssueWithWrongKey() const {
  return {.certificate = Issue().certificate, .key = Pem(*MakeKey())};
}

std::string MalformedCertificate() {
  return "-----BEGIN CERTIFICATE-----\nbm90IGEgY2VydGlmaWNhdGU=\n-----END CERTIFICATE-----\n";
}

std::string MalformedKey() { return "-----BEGIN PRIVATE KEY-----\nbm90IGEga2V5\n-----END PRIVATE KEY-----\n"; }

TemporaryFolder::TemporaryFolder() {
  std::string path = (std::filesystem::temp_directory_path() / "penstock-test-XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr) throw std::system_error(errno, std::generic_category(), "cannot make " + path);
  path_ = path;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TemporaryFolder::Write(std::string_view name, std::string_view content) const {
  const std::string path = path_ + '/' + std::string(name);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << content;
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path);
  return path;
}

}  // namespace penstock::inline v0::testing
