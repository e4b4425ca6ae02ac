// The ledger: accounts, kept in SQLite or PostgreSQL, served over gRPC.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/config.h"
#include "ledger/postgres_store.h"
#include "ledger/service.h"
#include "ledger/sqlite_store.h"
#include "penstock/server/server.h"

using namespace example;
using namespace example::ledger;

namespace {

// "alice=1000,bob=0"; nothing when it is not of that form.
std::optional<std::vector<std::pair<std::string, std::int64_t>>> ParseAccounts(const std::string& text) {
  std::vector<std::pair<std::string, std::int64_t>> accounts;
  std::istringstream list(text);
  for (std::string entry; std::getline(list, entry, ',');) {
    const std::size_t equals = entry.find('=');
    if (equals == 0 || equals == std::string::npos) return std::nullopt;
    std::istringstream number(entry.substr(equals + 1));
    std::int64_t balance = -1;
    if (!(number >> balance) || !number.eof() || balance < 0) return std::nullopt;
    accounts.emplace_back(entry.substr(0, equals), balance);
  }
  return accounts;
}

std::variant<std::unique_ptr<Store>, std::string> OpenStore(const std::string& database) {
  if (database.starts_with("postgresql://") || database.find('=') != std::string::npos) return OpenPostgres({.connection = database});
  return OpenSqlite({.path = database});
}

}  // namespace

int main(int argc, char** argv) {
  Config config("ledger", "LEDGER_", "Keeps accounts and moves money between them.");
  const auto address = config.Text("address", "where to listen, host:port", ":9090", true);
  const auto health_address = config.Text("health-address", "where to answer health checks in plain text, for probes; empty: nowhere");
  const auto certificate = config.File("certificate", "the server's certificate chain (PEM)");
  const auto key = config.File("key", "its private key (PEM)");
  const auto clients_ca = config.File("clients-ca", "whom clients' certificates must lead to (PEM); empty: clients need none");
  const auto plaintext = config.Flag("plaintext", "no TLS: for trying it on one machine");
  const auto database = config.Text("database", "a file for SQLite, or PostgreSQL: postgresql://..., or host=... dbname=...", "ledger.db", true);
  const auto accounts = config.Text("accounts", "accounts to make where they are missing: alice=1000,bob=0");
  const auto drain = config.Number("drain-ms", "how long to serve on after SIGTERM while new connections go elsewhere", 5000, 0, 600'000);
  config.Check([&] { return *plaintext || !certificate->empty() ? "" : "--certificate and --key (LEDGER_CERTIFICATE, LEDGER_KEY) are needed, or --plaintext"; });
  config.Check([&] { return ParseAccounts(*accounts) ? "" : "--accounts (LEDGER_ACCOUNTS) must be of the form alice=1000,bob=0"; });
  if (const auto exit_code = config.Parse(argc, argv)) return *exit_code;

  auto opened = OpenStore(*database);
  if (const auto* problem = std::get_if<std::string>(&opened)) {
    fmt::print(stderr, "ledger: the database cannot be used: {}\n", *problem);
    return 1;
  }
  const std::unique_ptr<Store> store = std::move(std::get<std::unique_ptr<Store>>(opened));
  const auto wanted = ParseAccounts(*accounts).value();
  for (const auto& [id, balance] : wanted) {
    const auto made = store->CreateAccount(id, balance);
    if (const auto* error = std::get_if<StoreError>(&made)) {
      fmt::print(stderr, "ledger: account {} cannot be made: {}\n", id, error->text);
      return 1;
    }
  }

  LedgerService service(*store);
  penstock::ServerSettings settings{.address = *address};
  settings.plaintext = *plaintext;
  if (!*plaintext) settings.tls = penstock::Tls{.roots = *clients_ca, .certificate = *certificate, .key = *key};
  settings.drain = std::chrono::milliseconds(*drain);
  if (!health_address->empty()) settings.health_address = *health_address;
  auto server = penstock::Server::Create(std::move(settings), {&service});
  if (!server.ok()) {
    fmt::print(stderr, "ledger: {}\n", server.error().message());
    return kBadConfiguration;
  }
  fmt::print("ledger: serving on port {}\n", (*server)->port());
  std::fflush(stdout);
  return (*server)->Run();
}
