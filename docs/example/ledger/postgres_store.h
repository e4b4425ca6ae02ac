#pragma once

// The ledger's accounts in PostgreSQL: libpq's asynchronous interface on a libuv loop of the ledger's own, a small pool of
// connections, statement timeouts from each call's deadline, and LISTEN for other ledgers' changes.

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <variant>

#include "store.h"

namespace example::ledger {

struct PostgresSettings {
  // As libpq takes it: "host=... dbname=..." or a postgresql:// address.
  std::string connection;
  std::size_t connections = 4;
  std::chrono::milliseconds reconnect{200};
  // How many operations may wait for a connection; one more is refused with kUnavailable.
  std::size_t queue = 1024;
};

// Makes the schema if there is none (blocks), then starts the pool. The store, or why the database cannot be used.
std::variant<std::unique_ptr<Store>, std::string> OpenPostgres(const PostgresSettings& settings);

}  // namespace example::ledger
