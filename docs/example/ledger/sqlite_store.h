#pragma once

// The ledger's accounts in a SQLite file (WAL), which several ledgers on one machine may share.

#include <chrono>
#include <memory>
#include <string>
#include <variant>

#include "store.h"

namespace example::ledger {

struct SqliteSettings {
  std::string path;
  // How often another process's changes are looked for.
  std::chrono::milliseconds poll{20};
  // How many operations may wait; one more is refused with kUnavailable.
  std::size_t queue = 1024;
};

// The store, or why the file cannot be used.
std::variant<std::unique_ptr<Store>, std::string> OpenSqlite(const SqliteSettings& settings);

}  // namespace example::ledger
