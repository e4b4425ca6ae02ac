#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "penstock/core/clock.h"
#include "penstock/runtime/callback_thread.h"
#include "runtime/log.h"
#include "runtime/tls.h"

namespace penstock::inline v0::detail {
namespace {

// What a server's certificates are right now. gRPC asks before each handshake.
class ReloadedMaterial {
 public:
  ReloadedMaterial(Tls tls, TlsMaterial material) : tls_(std::move(tls)), material_(std::move(material)) {}

  grpc_ssl_certificate_config_reload_status Fetch(grpc_ssl_server_certificate_config** config) {
    Lines lines;
    const auto status = FetchLocked(config, lines);
    if (!lines.empty()) {
      // Elsewhere: the log may be the user's, and slow or calling, and gRPC holds a lock around this, for which the port's other
      // handshakes wait.
      PostToCallbackThread([lines = std::move(lines)] {
        const UserCodeScope in_user_code;
        for (const auto& [severity, line] : lines) Log(severity, "{}", line);
      });
    }
    return status;
  }

 private:
  using Lines = std::vector<std::pair<LogSeverity, std::string>>;

  grpc_ssl_certificate_config_reload_status FetchLocked(grpc_ssl_server_certificate_config** config, Lines& lines) {
    const std::lock_guard lock(mutex_);
    const TimePoint now = SteadyClock().Now();
    const bool first = std::exchange(first_, false);
    if (!first) {
      if (now < next_look_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
      if (!Reload(lines)) {
        next_look_ = now + kLeastBetweenLooks;
        return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
      }
    }
    next_look_ = now + kLeastBetweenLooks;
    const grpc_ssl_pem_key_cert_pair pair{material_.key.c_str(), material_.certificate.c_str()};
    // gRPC 1.51 asserts that there are roots, also where no client is asked for a certificate; then nothing is held
    // against them, and one's own certificate does.
    const std::string& roots = material_.roots.empty() ? material_.certificate : material_.roots;
    *config = grpc_ssl_server_certificate_config_create(roots.c_str(), &pair, 1);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  static constexpr Duration kLeastBetweenLooks = std::chrono::seconds(1);

  // True when there is new material that is good. What is bad is told once, until it changes or the files are good
  // again.
  bool Reload(Lines& lines) {
    std::vector<std::string> problems;
    std::optional<TlsMaterial> loaded = LoadTls("tls", tls_, TlsSide::kServer, problems);
    if (!loaded) {
      if (problems != told_) {
        for (const std::string& problem : problems) {
          lines.emplace_back(LogSeverity::kError, "certificates not reloaded, the last good ones stay: " + problem);
        }
        told_ = std::move(problems);
      }
      return false;
    }
    told_.clear();
    if (*loaded == material_) return false;
    material_ = *std::move(loaded);
    lines.emplace_back(LogSeverity::kInfo, "certificates reloaded");
    return true;
  }

  const Tls tls_;
  std::mutex mutex_;
  TlsMaterial material_;
  std::vector<std::string> told_;
  TimePoint next_look_{};
  bool first_ = true;
};

// gRPC keeps the callback's argument for as long as its own credentials live, which is longer than anybody says. So it
// is a number, which names the material while that exists.
class Registry {
 public:
  static Registry& Get() {
    static Registry& registry = *new Registry;  // Handshakes may come during exit().
    return registry;
  }

  std::uintptr_t Add(std::shared_ptr<ReloadedMaterial> material) {
    const std::lock_guard lock(mutex_);
    materials_.emplace(++last_, std::move(material));
    return last_;
  }

  void Remove(std::uintptr_t number) {
    const std::lock_guard lock(mutex_);
    materials_.erase(number);
  }

  static grpc_ssl_certificate_config_reload_status Fetch(void* number, grpc_ssl_server_certificate_config** config) {
    Registry& registry = Get();
    std::shared_ptr<ReloadedMaterial> material;
    {
      const std::lock_guard lock(registry.mutex_);
      const auto found = registry.materials_.find(reinterpret_cast<std::uintptr_t>(number));
      if (found == registry.materials_.end()) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
      material = found->second;
    }
    return material->Fetch(config);
  }

 private:
  std::mutex mutex_;
  std::uintptr_t last_ = 0;
  std::unordered_map<std::uintptr_t, std::shared_ptr<ReloadedMaterial>> materials_;
};

grpc_ssl_client_certificate_request_type ClientCertificates(const TlsMaterial& material) {
  // Anything less than "require and verify" serves a client that shows nothing.
  return material.roots.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
}

// grpc++ wraps no credentials that ask for their certificates again; C-core has them, and a port is all they are for.
class ReloadingCredentials final : public grpc::ServerCredentials {
 public:
  ReloadingCredentials(const Tls& tls, const TlsMaterial& material)
      : number_(Registry::Get().Add(std::make_shared<ReloadedMaterial>(tls, material))),
        credentials_(grpc_ssl_server_credentials_create_with_options(
            grpc_ssl_server_credentials_create_options_using_config_fetcher(
                ClientCertificates(material), &Registry::Fetch, reinterpret_cast<void*>(number_)))) {}

  ~ReloadingCredentials() override {
    Registry::Get().Remove(number_);
    grpc_server_credentials_release(credentials_);
  }

  // Never called: penstock authenticates in its own order (V7).
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  const std::uintptr_t number_;
  grpc_server_credentials* const credentials_;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const Tls& tls, TlsMaterial material) {
  if (tls.roots_file || tls.certificate_file || tls.key_file)
    return std::make_shared<ReloadingCredentials>(tls, material);
  grpc::SslServerCredentialsOptions options(ClientCertificates(material));
  options.pem_root_certs = std::move(material.roots);
  options.pem_key_cert_pairs.push_back({std::move(material.key), std::move(material.certificate)});
  return grpc::SslServerCredentials(options);
}

}  // namespace penstock::inline v0::detail
