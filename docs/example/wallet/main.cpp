// The wallet: what an app calls to pay and to see its balance. Its money is in the ledger.

#include <fmt/format.h>

#include <cstdio>
#include <utility>

#include "common/config.h"
#include "penstock/client/client.h"
#include "penstock/server/server.h"
#include "wallet/service.h"

using namespace example;
using namespace example::wallet;

int main(int argc, char** argv) {
  Config config("wallet", "WALLET_", "Pays from and to accounts of the ledger.");
  const auto address = config.Text("address", "where to listen, host:port", ":9091", true);
  const auto health_address = config.Text("health-address", "where to answer health checks in plain text, for probes; empty: nowhere");
  const auto ledger_address = config.Text("ledger-address", "the ledger's host:port", "", true);
  const auto ca = config.File("ca", "whom the ledger's certificate must lead to (PEM)");
  const auto certificate = config.File("certificate", "the wallet's certificate chain, for its clients and for the ledger (PEM)");
  const auto key = config.File("key", "its private key (PEM)");
  const auto plaintext = config.Flag("plaintext", "no TLS, neither in nor out: for trying it on one machine");
  const auto timeout = config.Number("ledger-timeout-ms", "how long a call to the ledger may take in all", 2000, 1, 60'000);
  const auto give_up = config.Number("watch-give-up-ms", "how long the ledger may be out of reach before a watch ends", 10'000, 1, 3'600'000);
  const auto drain = config.Number("drain-ms", "how long to serve on after SIGTERM while new connections go elsewhere", 5000, 0, 600'000);
  config.Check([&] {
    return *plaintext || (!certificate->empty() && !ca->empty()) ? "" : "--ca, --certificate and --key (WALLET_CA, ...) are needed, or --plaintext";
  });
  if (const auto exit_code = config.Parse(argc, argv)) return *exit_code;

  penstock::ClientSettings ledger_settings{.address = *ledger_address};
  ledger_settings.plaintext = *plaintext;
  if (!*plaintext) ledger_settings.tls = penstock::Tls{.roots = *ca, .certificate = *certificate, .key = *key};
  ledger_settings.timeout = std::chrono::milliseconds(*timeout);
  auto ledger = penstock::Client::Create(std::move(ledger_settings));
  if (!ledger.ok()) {
    fmt::print(stderr, "wallet: the ledger's client: {}\n", ledger.error().message());
    return kBadConfiguration;
  }

  WalletService service(*ledger, std::chrono::milliseconds(*give_up));
  penstock::ServerSettings settings{.address = *address};
  settings.plaintext = *plaintext;
  if (!*plaintext) settings.tls = penstock::Tls{.certificate = *certificate, .key = *key};
  settings.drain = std::chrono::milliseconds(*drain);
  if (!health_address->empty()) settings.health_address = *health_address;
  settings.readiness = {ledger->Connected()};  // no call is sent here before the ledger was reached once
  auto server = penstock::Server::Create(std::move(settings), {&service});
  if (!server.ok()) {
    fmt::print(stderr, "wallet: {}\n", server.error().message());
    return kBadConfiguration;
  }
  fmt::print("wallet: serving on port {}\n", (*server)->port());
  std::fflush(stdout);
  return (*server)->Run();
}
