#pragma once

// How the example's programs are told to serve: flags that both have, and the server's settings made of them.
//
//     Config config("ledger", "LEDGER_", "Keeps accounts.");
//     const ServingFlags serving(config, ":9090");
//     const auto clients_ca = config.Text("clients-ca", "...");
//     const auto settings = [&] { return serving.Settings(*clients_ca); };
//     config.Check([&] { return ProblemsOf(settings()); }, ServingFlags::Names());
//
// Threads, ownership, time: a program's start-up only.
// Errors: what is wrong is told by Config::Parse().

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "common/config.h"
#include "penstock/server/settings.h"

namespace example {

struct ServingFlags {
  ServingFlags(Config& config, const std::string& default_address)
      : address(config.Text("address", "where to listen, host:port", default_address)),
        health_address(config.Text("health-address", "where to answer health checks in plain text, for probes; empty: nowhere")),
        certificate(config.Text("certificate", "a file with the certificate chain (PEM)")),
        key(config.Text("key", "a file with its private key (PEM)")),
        plaintext(config.Flag("plaintext", "no TLS, neither in nor out: for trying it on one machine")),
        drain(config.Number("drain-ms", "how long to serve on after SIGTERM while new connections go elsewhere", 5000, 0, 600'000)) {}

  // Unless `clients_ca` names no file, clients must show a certificate that leads to what is in it. Files that change are read
  // again: certificates are renewed without a restart.
  penstock::ServerSettings Settings(const std::string& clients_ca = {}) const {
    penstock::ServerSettings settings{.address = *address};
    settings.plaintext = *plaintext;
    if (!*plaintext) settings.tls = penstock::Tls{.certificate_file = *certificate, .key_file = *key};
    if (settings.tls && !clients_ca.empty()) settings.tls->roots_file = clients_ca;
    settings.drain = std::chrono::milliseconds(*drain);
    if (!health_address->empty()) settings.health_address = *health_address;
    return settings;
  }

  // For Config::Check: which flag each of the settings is made of.
  static std::map<std::string, std::string> Names() {
    return {{"address", "address"},
            {"health_address", "health-address"},
            {"tls.roots_file", "clients-ca"},
            {"tls.certificate_file", "certificate"},
            {"tls.key_file", "key"}};
  }

  const Config::Value<std::string> address;
  const Config::Value<std::string> health_address;
  const Config::Value<std::string> certificate;
  const Config::Value<std::string> key;
  const Config::Value<bool> plaintext;
  const Config::Value<std::int64_t> drain;
};

// What is wrong with a server's settings, a line each.
inline std::string ProblemsOf(const penstock::ServerSettings& settings) {
  std::vector<std::string> problems;
  penstock::CheckSettings(settings, problems);
  std::string lines;
  for (const std::string& problem : problems) lines += problem + "\n";
  return lines;
}

}  // namespace example
