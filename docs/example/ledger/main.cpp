// The ledger: accounts, kept in SQLite or PostgreSQL, served over gRPC.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/config.h"
#include "common/serving.h"
#include "common/telemetry.h"
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
  const ServingFlags serving(config, ":9090");
  const auto clients_ca = config.Text("clients-ca", "a file: whom clients' certificates must lead to (PEM); empty: clients need none");
  const auto database = config.Text("database", "a file for SQLite, or PostgreSQL: postgresql://..., or host=... dbname=...", "ledger.db",
                                    [](const std::string& text) { return text.empty() ? "is missing" : ""; });
  const auto accounts = config.Text("accounts", "accounts to make where they are missing: alice=1000,bob=0", "", [](const std::string& text) {
    return ParseAccounts(text) ? "" : "is \"" + text + "\": it must be of the form alice=1000,bob=0";
  });
  const auto record = config.Text("telemetry", Telemetry::kHelp, "", Telemetry::Check);
  config.Check([&] {
    const bool good = *serving.plaintext || !serving.certificate->empty();
    return good ? "" : "--certificate and --key (LEDGER_CERTIFICATE, LEDGER_KEY) are needed, or --plaintext";
  });
  config.Check([&] { return ProblemsOf(serving.Settings(*clients_ca)); }, ServingFlags::Names());
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

  const Telemetry telemetry("ledger", *record);
  LedgerService service(*store);
  penstock::ServerSettings settings = serving.Settings(*clients_ca);
  settings.observers = telemetry.ForServer();
  auto server = penstock::Server::Create(std::move(settings), {&service});
  if (!server.ok()) {
    fmt::print(stderr, "ledger: {}\n", server.error().message());
    return kBadConfiguration;
  }
  fmt::print("ledger: serving on port {}\n", (*server)->port());
  std::fflush(stdout);
  const int code = (*server)->Run();
  if (code != 0) {
    telemetry.Flush();
    std::_Exit(code);  // a handler may still run: destroy nothing under it
  }
  return code;
}
