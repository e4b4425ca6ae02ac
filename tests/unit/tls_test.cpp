#include "runtime/tls.h"

#include <doctest/doctest.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

using namespace penstock;
using namespace penstock::detail;
using namespace std::chrono_literals;

namespace {

std::string TextOf(BIO* bio) {
  char* data = nullptr;
  const long length = BIO_get_mem_data(bio, &data);
  std::string text(data, static_cast<std::size_t>(length));
  BIO_free(bio);
  return text;
}

// A key and a certificate for it, signed by `issuer` (by itself where there is none).
struct Pair {
  explicit Pair(const char* name, const Pair* issuer = nullptr, EVP_PKEY* with = nullptr)
      : key_held(with ? with : EVP_EC_gen("P-256")) {
    static long serial = 1;
    x509 = X509_new();
    X509_set_version(x509, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(x509), ++serial);
    X509_gmtime_adj(X509_getm_notBefore(x509), -3600);
    X509_gmtime_adj(X509_getm_notAfter(x509), 86400);
    X509_set_pubkey(x509, key_held);
    X509_NAME* subject = X509_get_subject_name(x509);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(name), -1, -1, 0);
    X509_set_issuer_name(x509, issuer ? X509_get_subject_name(issuer->x509) : subject);
    X509V3_CTX context;
    X509V3_set_ctx(&context, issuer ? issuer->x509 : x509, x509, nullptr, nullptr, 0);
    const auto extend = [&](int kind, const std::string& value) {
      X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str());
      X509_add_ext(x509, extension, -1);
      X509_EXTENSION_free(extension);
    };
    extend(NID_basic_constraints, issuer ? "CA:FALSE" : "critical,CA:TRUE");
    if (issuer) extend(NID_subject_alt_name, std::string("DNS:") + name);
    X509_sign(x509, issuer ? issuer->key_held : key_held, EVP_sha256());

    BIO* bio = BIO_new(BIO_s_mem());
    PEM_write_bio_X509(bio, x509);
    certificate = TextOf(bio);
    bio = BIO_new(BIO_s_mem());
    PEM_write_bio_PrivateKey(bio, key_held, nullptr, nullptr, 0, nullptr, nullptr);
    key = TextOf(bio);
  }
  ~Pair() {
    X509_free(x509);
    EVP_PKEY_free(key_held);
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  std::string EncryptedKey() const {
    BIO* bio = BIO_new(BIO_s_mem());
    char passphrase[] = "secret";
    PEM_write_bio_PrivateKey(
        bio, key_held, EVP_aes_256_cbc(), nullptr, 0,
        [](char* buffer, int, int, void* word) {
          const std::string_view text(static_cast<const char*>(word));
          text.copy(buffer, text.size());
          return static_cast<int>(text.size());
        },
        passphrase);
    return TextOf(bio);
  }

  EVP_PKEY* key_held;
  X509* x509;
  std::string certificate;
  std::string key;
};

struct Certificates {
  Pair authority{"authority"};
  Pair other_authority{"other authority"};
  Pair server{"ledger.test", &authority};
  Pair client{"wallet", &authority};
};
const Certificates& Made() {
  static const Certificates made;
  return made;
}

struct Folder {
  Folder() {
    char name[] = "/tmp/penstock-tls-XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string Write(const std::string& name, const std::string& text) const {
    const std::string file = path + "/" + name;
    std::ofstream(file + ".new") << text;
    std::filesystem::rename(file + ".new", file);
    return file;
  }
  std::string path;
};

std::vector<std::string> ProblemsOf(const Tls& tls, TlsSide side) {
  std::vector<std::string> problems;
  const bool loaded = LoadTls("tls", tls, side, problems).has_value();
  CHECK(loaded == problems.empty());
  return problems;
}

std::string ProblemOf(const Tls& tls, TlsSide side) {
  const std::vector<std::string> problems = ProblemsOf(tls, side);
  REQUIRE(problems.size() == 1);
  return problems.front();
}

}  // namespace

TEST_CASE("T3: good certificates are taken, as text and as files") {
  const Certificates& made = Made();
  const Folder folder;
  CHECK(ProblemsOf({}, TlsSide::kClient).empty());
  CHECK(ProblemsOf({.roots = made.authority.certificate}, TlsSide::kClient).empty());
  CHECK(ProblemsOf({.roots = made.authority.certificate + "\n# a comment\n" + made.other_authority.certificate},
                   TlsSide::kClient)
            .empty());
  CHECK(
      ProblemsOf({.roots = made.authority.certificate, .certificate = made.client.certificate, .key = made.client.key},
                 TlsSide::kClient)
          .empty());
  CHECK(ProblemsOf({.certificate = made.server.certificate + made.authority.certificate, .key = made.server.key},
                   TlsSide::kServer)
            .empty());
  std::vector<std::string> problems;
  const auto material = LoadTls("tls",
                                {.roots_file = folder.Write("ca", made.authority.certificate),
                                 .certificate_file = folder.Write("c", made.server.certificate),
                                 .key_file = folder.Write("k", made.server.key)},
                                TlsSide::kServer, problems);
  REQUIRE(material);
  CHECK(*material == TlsMaterial{made.authority.certificate, made.server.certificate, made.server.key});
}

TEST_CASE("T3: malformed PEM is refused with its field and its reason") {
  const Certificates& made = Made();
  const std::string& good = made.authority.certificate;
  const auto roots = [](std::string text) { return ProblemOf({.roots = std::move(text)}, TlsSide::kClient); };
  CHECK(roots("") == "tls.roots: is empty; expected PEM text");
  CHECK(roots(" \n\t\r\n") == "tls.roots: is empty; expected PEM text");
  CHECK(roots("garbage") == "tls.roots: holds no PEM certificate");
  CHECK(roots(std::string("\0\xff\x30\x82", 4)) == "tls.roots: holds no PEM certificate");
  CHECK(roots(made.server.key) == "tls.roots: holds a private key where only certificates belong");
  CHECK(roots(good + made.server.key) == "tls.roots: holds a private key where only certificates belong");
  CHECK(roots("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n").starts_with("tls.roots: is malformed"));
  CHECK(roots("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
            .starts_with("tls.roots: is malformed in certificate 1"));
  CHECK(roots("-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n").starts_with("tls.roots: is malformed"));
  CHECK(roots("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n") ==
        "tls.roots: holds a block that is no certificate");
  // Truncated anywhere, alone and after a good one.
  for (std::size_t length = 28; length < good.size() - 26; length += 7) {
    CAPTURE(length);
    CHECK(roots(good.substr(0, length)).starts_with("tls.roots: is malformed"));
    CHECK(roots(good + good.substr(0, length)).starts_with("tls.roots: is malformed"));
  }
  // One character of the middle changed: whatever OpenSSL makes of it, it is not taken for another certificate
  // silently.
  std::string flipped = good;
  flipped[40] = flipped[40] == 'A' ? 'B' : 'A';
  const auto problems = ProblemsOf({.roots = flipped}, TlsSide::kClient);
  CHECK(problems.size() == 1);
}

TEST_CASE("T3: a key that does not fit its certificate, or is no plain key, is refused") {
  const Certificates& made = Made();
  const auto pair = [](std::string certificate, std::string key) {
    return ProblemOf({.certificate = std::move(certificate), .key = std::move(key)}, TlsSide::kServer);
  };
  CHECK(pair(made.server.certificate, made.client.key) == "tls.key: does not fit the certificate");
  CHECK(pair(made.authority.certificate + made.server.certificate, made.server.key) ==
        "tls.key: fits certificate 2 of the chain, but one's own certificate must stand first");
  CHECK(pair(made.server.certificate, made.server.EncryptedKey()) ==
        "tls.key: is encrypted; expected a key without a passphrase");
  CHECK(pair(made.server.certificate, "garbage") == "tls.key: holds no PEM private key");
  CHECK(pair(made.server.certificate, made.server.certificate) == "tls.key: holds no PEM private key");
  CHECK(pair(made.server.certificate, made.server.key.substr(0, 90)).starts_with("tls.key: is malformed"));
  CHECK(pair("garbage", made.server.key) == "tls.certificate: holds no PEM certificate");
  const Pair small("small", nullptr, EVP_RSA_gen(512));
  CHECK(pair(small.certificate, small.key).starts_with("tls.key: is refused by OpenSSL"));
  CHECK(ProblemsOf({.roots = "a", .certificate = "b", .key = "c"}, TlsSide::kServer).size() == 3);
}

TEST_CASE("T3: a certificate and its key come together, and a server needs them") {
  const Certificates& made = Made();
  CHECK(ProblemOf({.certificate = made.client.certificate}, TlsSide::kClient) ==
        "tls.key: is missing; a certificate needs its key");
  CHECK(ProblemOf({.key = made.client.key}, TlsSide::kClient) ==
        "tls.certificate: is missing; a key needs its certificate");
  CHECK(ProblemOf({}, TlsSide::kServer).starts_with("tls.certificate: is missing; a server needs"));
  CHECK(ProblemOf({.roots = made.authority.certificate, .roots_file = "/x"}, TlsSide::kClient) ==
        "tls.roots: is given as text and as a file; expected one of the two");
  CHECK(ProblemOf({.server_name_override = "a b"}, TlsSide::kClient)
            .starts_with("tls.server_name_override: \"a b\" has white space"));
  CHECK(ProblemOf({.certificate = made.server.certificate, .key = made.server.key, .server_name_override = "x"},
                  TlsSide::kServer) == "tls.server_name_override: is for clients only");
}

TEST_CASE("T3, V11: a file that cannot be read or is empty is refused with its name") {
  const Certificates& made = Made();
  const Folder folder;
  CHECK(ProblemOf({.roots_file = folder.path + "/none"}, TlsSide::kClient) ==
        "tls.roots_file " + folder.path + "/none: cannot be read (No such file or directory)");
  CHECK(ProblemOf({.roots_file = folder.path}, TlsSide::kClient) ==
        "tls.roots_file " + folder.path + ": cannot be read (Is a directory)");
  CHECK(ProblemOf({.roots_file = ""}, TlsSide::kClient) ==
        "tls.roots_file \"\": cannot be read (No such file or directory)");
  const std::string empty = folder.Write("empty", "");
  CHECK(ProblemOf({.roots_file = empty}, TlsSide::kClient) ==
        "tls.roots_file " + empty + ": is empty; expected PEM text");
  const std::string large = folder.Write("large", std::string((std::size_t{4} << 20) + 1, 'x'));
  CHECK(ProblemOf({.roots_file = large}, TlsSide::kClient) == "tls.roots_file " + large + ": is larger than 4 MiB");
  const std::string key = folder.Write("key", made.client.key);
  CHECK(ProblemOf({.certificate = made.server.certificate, .key_file = key}, TlsSide::kServer) ==
        "tls.key_file " + key + ": does not fit the certificate");
}

namespace {

// Answers every call with OK.
struct AnswerAll final : grpc::CallbackGenericService {
  struct Reactor final : grpc::ServerGenericBidiReactor {
    void OnDone() override { delete this; }
  };
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    auto* reactor = new Reactor;
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

struct TestServer {
  explicit TestServer(const Tls& tls) {
    std::vector<std::string> problems;
    const auto material = LoadTls("tls", tls, TlsSide::kServer, problems);
    REQUIRE(material);
    credentials = ServerCredentialsOf(tls, *material);
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", credentials, &port);
    builder.RegisterCallbackGenericService(&service);
    server = builder.BuildAndStart();
    REQUIRE(server != nullptr);
    REQUIRE(port != 0);
  }
  ~TestServer() { server->Shutdown(std::chrono::system_clock::now()); }

  // The code of one call on a connection of its own.
  grpc::StatusCode Call(const Tls& tls, const std::string& name = "ledger.test") const {
    std::vector<std::string> problems;
    const auto material = LoadTls("tls", tls, TlsSide::kClient, problems);
    REQUIRE(material);
    grpc::ChannelArguments arguments;
    arguments.SetSslTargetNameOverride(name);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto channel =
        grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port), ClientCredentialsOf(*material), arguments);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + 10s);
    grpc::ByteBuffer request, response;
    const grpc::Slice empty("", 0);
    request = grpc::ByteBuffer(&empty, 1);
    std::promise<grpc::Status> done;
    grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer>(channel).UnaryCall(
        &context, "/x/Y", {}, &request, &response, [&](grpc::Status status) { done.set_value(status); });
    const grpc::Status status = done.get_future().get();
    return status.error_code();
  }

  AnswerAll service;
  std::shared_ptr<grpc::ServerCredentials> credentials;
  int port = 0;
  std::unique_ptr<grpc::Server> server;
};

// The generic service sends no message, which a unary call hears as UNIMPLEMENTED or INTERNAL: the handshake was good.
bool Reached(grpc::StatusCode code) {
  return code != grpc::StatusCode::UNAVAILABLE && code != grpc::StatusCode::DEADLINE_EXCEEDED;
}

}  // namespace

TEST_CASE("T3: the credentials work: the host is verified, and with a server's roots a client needs its certificate") {
  const Certificates& made = Made();
  const TestServer plain({.certificate = made.server.certificate, .key = made.server.key});
  CHECK(Reached(plain.Call({.roots = made.authority.certificate})));
  CHECK_FALSE(Reached(plain.Call({.roots = made.authority.certificate}, "other.test")));
  CHECK_FALSE(Reached(plain.Call({.roots = made.other_authority.certificate})));

  const TestServer mutual(
      {.roots = made.authority.certificate, .certificate = made.server.certificate, .key = made.server.key});
  CHECK(Reached(mutual.Call(
      {.roots = made.authority.certificate, .certificate = made.client.certificate, .key = made.client.key})));
  CHECK_FALSE(Reached(mutual.Call({.roots = made.authority.certificate})));
  const Pair stranger("stranger", &made.other_authority);
  CHECK_FALSE(Reached(
      mutual.Call({.roots = made.authority.certificate, .certificate = stranger.certificate, .key = stranger.key})));
}

TEST_CASE("T3: a server's replaced files take effect, and bad ones leave the last good material in force") {
  const Certificates& made = Made();
  const Folder folder;
  const Pair renewed("ledger.test", &made.other_authority);
  const Tls tls{.certificate_file = folder.Write("certificate", made.server.certificate),
                .key_file = folder.Write("key", made.server.key)};
  const TestServer server(tls);
  const Tls old_roots{.roots = made.authority.certificate};
  const Tls new_roots{.roots = made.other_authority.certificate};
  CHECK(Reached(server.Call(old_roots)));
  CHECK_FALSE(Reached(server.Call(new_roots)));

  // The certificate alone first: its key does not fit, and is not used.
  folder.Write("certificate", renewed.certificate);
  std::this_thread::sleep_for(1100ms);
  CHECK(Reached(server.Call(old_roots)));
  folder.Write("key", "garbage");
  std::this_thread::sleep_for(1100ms);
  CHECK(Reached(server.Call(old_roots)));
  folder.Write("key", renewed.key);
  const auto limit = std::chrono::steady_clock::now() + 30s;
  while (!Reached(server.Call(new_roots)) && std::chrono::steady_clock::now() < limit)
    std::this_thread::sleep_for(50ms);
  CHECK(Reached(server.Call(new_roots)));
  CHECK_FALSE(Reached(server.Call(old_roots)));
}
