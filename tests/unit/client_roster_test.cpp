#include "runtime/client_roster.h"

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/name_table.h"

using namespace penstock;
using namespace penstock::detail;

namespace {

struct FixedView final : ClientView {
  explicit FixedView(std::string at, CircuitTotals counted = {}) : address_(std::move(at)), totals_(counted) {}
  const std::string& address() const noexcept override { return address_; }
  CircuitState state() const noexcept override { return CircuitState::kClosed; }
  CircuitTotals totals() const noexcept override { return totals_; }
  std::vector<ClientConnection> connections() const override { return {}; }

  std::string address_;
  CircuitTotals totals_;
};

}  // namespace

TEST_CASE("O2: a dependency's host and port are told apart where there are any") {
  CHECK(NameOf("ledger:9090") == ServerName{"ledger", 9090});
  CHECK(NameOf("ledger:09090") == ServerName{"ledger", 9090});
  CHECK(NameOf("[2001:db8::1]:9090") == ServerName{"2001:db8::1", 9090});
  CHECK(NameOf("10.0.0.1:1,10.0.0.2:1") == ServerName{"10.0.0.1:1,10.0.0.2:1", 0});
  for (const char* path : {"/run/ledger.sock", "/run/ledger:9090", "run/ledger:9090", "unix:/run/ledger:9090"}) {
    CHECK(NameOf(path) == ServerName{path, 0});
  }
  for (const char* odd : {"", ":", "ledger", "ledger:", "ledger:70000", "ledger:9x"}) CHECK(NameOf(odd) == ServerName{odd, 0});
}

TEST_CASE("O2: clients whose addresses are exported alike are one series") {
  ClientRoster roster;
  const auto one = roster.Add(std::make_shared<FixedView>("ledger:9090", CircuitTotals{.successes = 1}));
  const auto other = roster.Add(std::make_shared<FixedView>("ledger:09090", CircuitTotals{.successes = 2}));
  roster.Add(std::make_shared<FixedView>("ledger:9091"));
  auto totals = roster.ReadTotals();
  REQUIRE(totals.size() == 2);
  CHECK(totals[0].server == ServerName{"ledger", 9090});
  CHECK(totals[0].totals.calls[0] == 3);
  CHECK(roster.ReadStates()[0].breakers[0] == 2);
  roster.Remove(*other);
  totals = roster.ReadTotals();
  CHECK(totals[0].totals.calls[0] == 3);
  CHECK(roster.ReadStates()[0].breakers[0] == 1);
}

TEST_CASE("O2: addresses beyond the most that are told apart are one") {
  ClientRoster roster;
  std::vector<std::shared_ptr<ClientRoster::Entry>> entries;
  for (std::size_t i = 0; i < ClientRoster::kMostAddresses + 5; ++i) {
    entries.push_back(roster.Add(std::make_shared<FixedView>("pod" + std::to_string(i) + ":1", CircuitTotals{.failures = 1})));
  }
  const auto totals = roster.ReadTotals();
  CHECK(totals.size() == ClientRoster::kMostAddresses + 1);
  std::uint64_t others = 0;
  std::uint64_t all = 0;
  for (const auto& row : totals) {
    all += row.totals.calls[1];
    if (row.server == ServerName{std::string(ClientRoster::kOther), 0}) others = row.totals.calls[1];
  }
  CHECK(others == 5);
  CHECK(all == ClientRoster::kMostAddresses + 5);
  // One that is known stays known.
  roster.Add(std::make_shared<FixedView>("pod3:1"));
  CHECK(roster.ReadTotals().size() == ClientRoster::kMostAddresses + 1);
}

TEST_CASE("O2: of the names that are asked for the first thousand are kept, by many threads at once") {
  auto table = std::make_unique<NameTable>();
  const auto name = [](std::size_t i) { return "/service/method" + std::to_string(i); };
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&] {
        for (std::size_t i = 0; i < NameTable::kMostNames; ++i) CHECK(table->Find(name(i)) == name(i));
      });
    }
  }
  for (std::size_t i = 0; i < 100; ++i) CHECK(table->Find(name(NameTable::kMostNames + i)) == NameTable::kOther);
  for (std::size_t i = 0; i < NameTable::kMostNames; ++i) CHECK(table->Find(name(i)) == name(i));
}
