#pragma once

// The ledger's accounts in a SQLite file (WAL), which several ledgers on one machine may share.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>

#include "store.h"

namespace example::ledger {

struct SqliteSettings {
  std::string path;
  // How often another process's changes are looked for.
  std::chrono::milliseconds poll{20};
  // So many of the latest changes are kept for other processes, up to twice as many stay; one that is further behind is told
  // that any account may have changed. 1 and up.
  std::int64_t kept_changes = 1000;
  // How many operations may wait; one more is refused with kUnavailable.
  std::size_t queue = 1024;
};

// The store, or why the file cannot be used.
std::variant<std::unique_ptr<Store>, std::string> OpenSqlite(const SqliteSettings& settings);

}  // namespace example::ledger
