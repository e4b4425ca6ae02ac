#pragma once

// A PostgreSQL of the test's own, in a temporary folder, listening on a Unix socket there only.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>

#include <unistd.h>

namespace penstock::test {

class Postgres {
 public:
  // Nothing when PostgreSQL is not installed.
  static std::optional<std::filesystem::path> Programs() {
    std::optional<std::filesystem::path> newest;
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator("/usr/lib/postgresql", none)) {
      if (std::filesystem::exists(entry.path() / "bin/initdb")) newest = entry.path() / "bin";
    }
    return newest;
  }

  Postgres() : programs_(Programs().value()) {
    std::string pattern = (std::filesystem::temp_directory_path() / "penstock-postgres-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder for PostgreSQL");
    folder_ = pattern;
    // PostgreSQL refuses to run as root; its package made a user for it.
    if (geteuid() == 0) {
      as_user_ = "runuser -u postgres -- ";
      Run("chown postgres " + folder_.string());
    }
    Run(as_user_ + (programs_ / "initdb").string() + " -D " + data() + " -A trust -U ledger --no-sync -E UTF8 --locale C");
    Start();
  }

  ~Postgres() {
    Stop("immediate");
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  void Start() {
    Run(as_user_ + (programs_ / "pg_ctl").string() + " -D " + data() + " -w -t 60 -l " + (folder_ / "log").string() +
        " -o \"-k " + folder_.string() + " -c listen_addresses='' -c max_connections=60\" start");
  }

  // fast ends its sessions in order, immediate as a crash would.
  void Stop(const std::string& mode) {
    std::system((as_user_ + (programs_ / "pg_ctl").string() + " -D " + data() + " -w -m " + mode + " stop >/dev/null 2>&1").c_str());
  }

  // Where its socket stands.
  std::string folder() const { return folder_.string(); }
  std::string connection() const { return "host=" + folder_.string() + " user=ledger dbname=postgres"; }

 private:
  std::string data() const { return (folder_ / "data").string(); }

  void Run(const std::string& command) const {
    const std::string log = (std::filesystem::temp_directory_path() / "penstock-postgres-run.log").string();
    if (std::system((command + " >" + log + " 2>&1").c_str()) != 0) {
      std::ifstream text(log);
      throw std::runtime_error(command + ": " + std::string(std::istreambuf_iterator<char>(text), {}));
    }
  }

  const std::filesystem::path programs_;
  std::filesystem::path folder_;
  std::string as_user_;
};

}  // namespace penstock::test
