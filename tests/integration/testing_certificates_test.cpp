#include "penstock/testing/certificates.h"

#include <doctest/doctest.h>
#include <grpcpp/grpcpp.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "support/echo_service.h"

using namespace std::chrono_literals;
using penstock::testing::CertificateAuthority;
using penstock::testing::Identity;

namespace {

// One call over TLS; whether the pod could be trusted.
grpc::Status Call(const std::string& roots, const Identity& server_identity, const std::string& client_roots = {},
                  const Identity& client_identity = {}, const std::string& name = {}) {
  grpc::SslServerCredentialsOptions server_options(
      client_roots.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                           : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  server_options.pem_root_certs = client_roots;
  server_options.pem_key_cert_pairs.push_back({server_identity.key, server_identity.certificate});
  penstock::test::EchoServer server(
      penstock::test::EchoServerOptions{.credentials = grpc::SslServerCredentials(server_options)});
  grpc::SslCredentialsOptions client_options;
  client_options.pem_root_certs = roots;
  client_options.pem_cert_chain = client_identity.certificate;
  client_options.pem_private_key = client_identity.key;
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  if (!name.empty()) arguments.SetSslTargetNameOverride(name);
  const auto stub = penstock::test::v1::Echo::NewStub(
      grpc::CreateCustomChannel(server.address(), grpc::SslCredentials(client_options), arguments));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + 30s);
  penstock::test::EchoResponse response;
  return stub->Unary(&context, {}, &response);
}

}  // namespace

TEST_CASE("X3: a server with a certificate of the authority is trusted, by address and by name") {
  const CertificateAuthority authority;
  CHECK(Call(authority.certificate(), authority.Issue()).ok());
  CHECK(Call(authority.certificate(), authority.Issue({.names = {"ledger.prod"}, .addresses = {}}), {}, {}, "ledger.prod").ok());
}

TEST_CASE("X3: another authority's, an expired one and one for another name are not") {
  const CertificateAuthority authority;
  CHECK_FALSE(Call(CertificateAuthority().certificate(), authority.Issue()).ok());
  CHECK_FALSE(Call(authority.certificate(), authority.IssueExpired()).ok());
  CHECK_FALSE(Call(authority.certificate(), authority.Issue({.names = {"elsewhere"}, .addresses = {"10.0.0.1"}})).ok());
}

TEST_CASE("X3: a client's certificate is asked for and checked") {
  const CertificateAuthority authority;
  const CertificateAuthority clients("clients");
  const Identity server = authority.Issue();
  CHECK(Call(authority.certificate(), server, clients.certificate(), clients.Issue({.common_name = "wallet"})).ok());
  CHECK_FALSE(Call(authority.certificate(), server, clients.certificate()).ok());
  CHECK_FALSE(Call(authority.certificate(), server, clients.certificate(), authority.Issue()).ok());
}

TEST_CASE("X3: a wrong key and malformed PEM are what they say") {
  const CertificateAuthority authority;
  const Identity wrong = authority.IssueWithWrongKey();
  CHECK(wrong.key.find("BEGIN PRIVATE KEY") != std::string::npos);
  grpc::SslServerCredentialsOptions options;
  options.pem_key_cert_pairs.push_back({wrong.key, wrong.certificate});
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(options));
  CHECK(builder.BuildAndStart() == nullptr);
  CHECK(penstock::testing::MalformedCertificate().starts_with("-----BEGIN CERTIFICATE-----"));
  CHECK(penstock::testing::MalformedKey().starts_with("-----BEGIN PRIVATE KEY-----"));
  CHECK_THROWS_AS((void)authority.Issue({.addresses = {"localhost"}}), std::invalid_argument);
}

TEST_CASE("X3: a temporary folder holds files and goes away") {
  std::string path;
  {
    const penstock::testing::TemporaryFolder folder;
    path = folder.Write("tls.key", "secret");
    std::stringstream content;
    content << std::ifstream(path).rdbuf();
    CHECK(content.str() == "secret");
  }
  CHECK_FALSE(std::filesystem::exists(path));
}
