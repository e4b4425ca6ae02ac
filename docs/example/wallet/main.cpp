// The wallet: what an app calls to pay and to see its balance. Its money is in the ledger.

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "common/config.h"
#include "common/serving.h"
#include "common/telemetry.h"
#include "penstock/client/client.h"
#include "penstock/faults.h"
#include "penstock/server/server.h"
#include "wallet/service.h"

using namespace example;
using namespace example::wallet;

int main(int argc, char** argv) {
  Config config("wallet", "WALLET_", "Pays from and to accounts of the ledger.");
  const ServingFlags serving(config, ":9091");
  const auto ledger_address = config.Text("ledger-address", "the ledger's host:port");
  const auto ca = config.Text("ca", "a file: whom the ledger's certificate must lead to (PEM)");
  const auto timeout = config.Number("ledger-timeout-ms", "how long a call to the ledger may take in all", 2000, 1, 60'000);
  const auto open_for = config.Number("breaker-open-ms", "how long calls to a ledger that fails are turned away before it is asked again", 10'000, 1, 600'000);
  const auto give_up = config.Number("watch-give-up-ms", "how long the ledger may be out of reach before a watch ends", 10'000, 1, 3'600'000);
  const auto record = config.Text("telemetry", Telemetry::kHelp, "", Telemetry::Check);
  const auto faults = config.Flag("faults", "play the fault scenarios in requests' baggage; not where strangers call");

  // The wallet shows the ledger the certificate that it serves with.
  const auto ledger_settings = [&] {
    penstock::ClientSettings settings{.address = *ledger_address};
    settings.plaintext = *serving.plaintext;
    if (!*serving.plaintext) settings.tls = penstock::Tls{.roots_file = *ca, .certificate_file = *serving.certificate, .key_file = *serving.key};
    settings.timeout = std::chrono::milliseconds(*timeout);
    settings.breaker.open_for = std::chrono::milliseconds(*open_for);
    if (*faults) settings.faults = std::make_shared<penstock::FaultInjector>();
    return settings;
  };
  config.Check([&] {
    const bool good = *serving.plaintext || (!serving.certificate->empty() && !ca->empty());
    return good ? "" : "--ca, --certificate and --key (WALLET_CA, WALLET_CERTIFICATE, WALLET_KEY) are needed, or --plaintext";
  });
  config.Check([&] { return ProblemsOf(serving.Settings()); }, ServingFlags::Names());
  config.Check(
      [&] {
        const auto client = penstock::Client::Create(ledger_settings());  // dials nothing
        return client.ok() ? "" : client.error().message();
      },
      {{"address", "ledger-address"}, {"tls.roots_file", "ca"}, {"tls.certificate_file", "certificate"}, {"tls.key_file", "key"}});
  if (const auto exit_code = config.Parse(argc, argv)) return *exit_code;

  const Telemetry telemetry("wallet", *record);
  penstock::ClientSettings to_ledger = ledger_settings();
  to_ledger.observer = telemetry.ForClient();
  auto ledger = penstock::Client::Create(std::move(to_ledger));
  if (!ledger.ok()) {
    fmt::print(stderr, "wallet: the ledger's client: {}\n", ledger.error().message());
    return kBadConfiguration;
  }

  WalletService service(*ledger, std::chrono::milliseconds(*give_up));
  penstock::ServerSettings settings = serving.Settings();
  settings.readiness = {ledger->Connected()};  // no call is sent here before the ledger was reached once
  settings.observers = telemetry.ForServer();
  auto server = penstock::Server::Create(std::move(settings), {&service});
  if (!server.ok()) {
    fmt::print(stderr, "wallet: {}\n", server.error().message());
    return kBadConfiguration;
  }
  fmt::print("wallet: serving on port {}\n", (*server)->port());
  std::fflush(stdout);
  const int code = (*server)->Run();
  if (code != 0) {
    telemetry.Flush();
    std::_Exit(code);  // a handler may still run: destroy nothing under it
  }
  return code;
}
