#include "penstock/server/auth.h"

#include <grpcpp/security/auth_context.h>

#include <string>
#include <utility>

namespace penstock::inline v0 {

namespace {

std::string_view View(grpc::string_ref text) { return {text.data(), text.size()}; }

class BearerAuthenticator final : public Authenticator {
 public:
  explicit BearerAuthenticator(std::function<std::optional<Identity>(std::string_view)> find) : find_(std::move(find)) {}

  grpc::Status Authenticate(ServerCall& call, Identity& identity) override {
    constexpr std::string_view kScheme = "bearer ";
    const auto [first, last] = call.client_metadata().equal_range("authorization");
    if (first == last) return {grpc::StatusCode::UNAUTHENTICATED, "a bearer token is required"};
    if (std::next(first) != last) return {grpc::StatusCode::UNAUTHENTICATED, "more than one authorization"};
    const std::string_view value = View(first->second);
    if (value.size() <= kScheme.size() || !EqualIgnoringCase(value.substr(0, kScheme.size()), kScheme)) {
      return {grpc::StatusCode::UNAUTHENTICATED, "a bearer token is required"};
    }
    std::optional<Identity> found = find_(value.substr(kScheme.size()));
    if (!found) return {grpc::StatusCode::UNAUTHENTICATED, "the token is not valid"};
    identity = *std::move(found);
    if (identity.scheme.empty()) identity.scheme = "bearer";
    return grpc::Status::OK;
  }

 private:
  static bool EqualIgnoringCase(std::string_view left, std::string_view right) noexcept {
    const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; };
    for (std::size_t i = 0; i < left.size(); ++i) {
      if (lower(left[i]) != lower(right[i])) return false;
    }
    return left.size() == right.size();
  }

  const std::function<std::optional<Identity>(std::string_view)> find_;
};

class MutualTlsAuthenticator final : public Authenticator {
 public:
  explicit MutualTlsAuthenticator(std::function<bool(const Identity&)> allow) : allow_(std::move(allow)) {}

  grpc::Status Authenticate(ServerCall& call, Identity& identity) override {
    const std::shared_ptr<const grpc::AuthContext> context = call.auth_context();
    if (context == nullptr || !context->IsPeerAuthenticated()) {
      return {grpc::StatusCode::UNAUTHENTICATED, "a client certificate is required"};
    }
    identity.scheme = "mtls";
    for (const char* name : {"peer_uri", "peer_dns", "x509_common_name"}) {
      for (const grpc::string_ref& value : context->FindPropertyValues(name)) {
        if (identity.subject.empty()) identity.subject.assign(value.data(), value.size());
        identity.attributes.emplace(name, std::string(value.data(), value.size()));
      }
    }
    if (identity.subject.empty()) return {grpc::StatusCode::UNAUTHENTICATED, "the client certificate names nobody"};
    if (allow_ && !allow_(identity)) return {grpc::StatusCode::PERMISSION_DENIED, "not allowed"};
    return grpc::Status::OK;
  }

 private:
  const std::function<bool(const Identity&)> allow_;
};

}  // namespace

std::shared_ptr<Authenticator> BearerTokens(std::function<std::optional<Identity>(std::string_view token)> find) {
  return std::make_shared<BearerAuthenticator>(std::move(find));
}

std::shared_ptr<Authenticator> MutualTlsIdentity(std::function<bool(const Identity&)> allow) {
  return std::make_shared<MutualTlsAuthenticator>(std::move(allow));
}

}  // namespace penstock::inline v0
