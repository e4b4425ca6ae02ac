#pragma once

// The wallet and the ledger as whole processes: the ledger's pods behind one address, the wallet before it.

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "example/app.h"
#include "penstock/client/client.h"
#include "penstock/testing/certificates.h"
#include "penstock/testing/router.h"
#include "support/program.h"

namespace penstock::test {

struct Pod {
  Program program;
  std::uint16_t port;
};

// A ledger of replaceable pods behind one address, and a wallet that calls it.
class Setting {
 public:
  // An empty database is SQLite's, in a folder of this setting's.
  explicit Setting(std::string database = {}) : database_(database.empty() ? folder_.path() + "/ledger.db" : std::move(database)) {
    auto made = testing::Router::Create();
    REQUIRE(made.ok());
    router_ = *std::move(made);
    StartLedger();
    StartWallet();
  }

  void StartLedger() {
    Program program({LEDGER_PROGRAM, "--plaintext", "--address", "127.0.0.1:0", "--database", database_, "--accounts", "alice=100000,bob=0", "--drain-ms", "50"});
    const auto port = program.WaitForNumber("serving on port ");
    REQUIRE_MESSAGE(port.has_value(), program.text());
    ledgers_.push_back({std::move(program), static_cast<std::uint16_t>(*port)});
    router_->SetTargets({ledgers_.back().port});
  }

  // No word to anybody: its process is gone at once, and so are its connections.
  void KillLedger() {
    ledger().program.Signal(SIGKILL);
    router_->DropTarget(ledger().port);
    ledger().program.WaitForExit();
    ledgers_.pop_back();
  }

  void StartWallet(std::vector<std::string> more = {}) {
    std::vector<std::string> command{WALLET_PROGRAM, "--plaintext", "--address", "127.0.0.1:" + std::to_string(wallet_port_),
                                     "--ledger-address", router_->address(), "--drain-ms", "50", "--watch-give-up-ms", "1500", "--breaker-open-ms", "200"};
    command.insert(command.end(), more.begin(), more.end());
    wallet_.emplace(std::move(command));
    const auto port = wallet_->WaitForNumber("serving on port ");
    REQUIRE_MESSAGE(port.has_value(), wallet_->text());
    wallet_port_ = *port;
  }

  // A new pod takes over, and the old one is told to go. Its exit code.
  int ReplaceLedger() {
    StartLedger();
    Program& old = ledgers_.front().program;
    old.Signal(SIGTERM);
    const auto code = old.WaitForExit();
    REQUIRE_MESSAGE(code.has_value(), old.text());
    ledgers_.pop_front();
    return *code;
  }

  // It never stops asking: a breaker of its own would keep the load away from what is killed and replaced.
  Client Caller(Duration timeout = 10s) {
    ClientSettings settings{.address = "127.0.0.1:" + std::to_string(wallet_port_), .plaintext = true, .timeout = timeout};
    settings.breaker.trip = [](const Counts&) { return false; };
    auto made = Client::Create(std::move(settings));
    REQUIRE(made.ok());
    return *std::move(made);
  }

  Pod& ledger() { return ledgers_.back(); }
  Program& wallet() { return *wallet_; }
  testing::Router& router() { return *router_; }
  int wallet_port() const { return wallet_port_; }

 private:
  testing::TemporaryFolder folder_;
  std::string database_;
  std::unique_ptr<testing::Router> router_;
  std::deque<Pod> ledgers_;
  std::optional<Program> wallet_;
  int wallet_port_ = 0;
};

// A connection that never says anything: held in its handshake.
class Silent {
 public:
  explicit Silent(std::uint16_t port) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  }
  ~Silent() { close(socket_); }

 private:
  int socket_;
};

}  // namespace penstock::test
