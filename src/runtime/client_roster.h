#pragma once

// The clients whose numbers one exporter reads, added up by their dependency, as it is exported.
//
// An exporter reads at its own times, from its own threads, while clients come and go. It never touches a client: it
// reads the roster, which holds each client's view for as long as that may be read, and what gone clients have counted.
//
//     auto entry = roster.Add(view);                 // a client was created
//     entry->Count(RetryDecision::kRetried);
//     roster.Remove(*entry);                         // its last call has ended
//     for (const auto& row : roster.ReadTotals()) ...
//
// Threads: every member may be called from any thread.
// Ownership: an entry is its client's observer's; the roster drops the view in Remove().
// Time: none.
// Errors: none.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/telemetry.h"
#include "runtime/name_table.h"

namespace penstock::inline v0::detail {

// The words of telemetry, in the order of their enumerations.
inline constexpr std::array<std::string_view, 3> kStateNames = {"closed", "open", "half-open"};
inline constexpr std::array<std::string_view, 4> kOutcomeNames = {"success", "failure", "ignored", "rejected"};
inline constexpr std::array<std::string_view, 6> kDecisionNames = {"retried",   "succeeded", "stopped",
                                                                   "exhausted", "throttled", "expired"};

// server.address and server.port of a dependency: what stands before and behind the last colon of host:port, without
// brackets; all of it and 0 for a Unix socket's path (what has a slash) and for a list.
struct ServerName {
  std::string address;
  int port = 0;

  friend auto operator<=>(const ServerName&, const ServerName&) = default;
};
ServerName NameOf(std::string_view address);

class ClientRoster {
 public:
  struct Totals {
    std::array<std::uint64_t, 3> transitions{};  // by the state entered
    std::array<std::uint64_t, 4> calls{};        // by outcome
    std::array<std::uint64_t, 6> decisions{};
  };
  struct TotalsRow {
    ServerName server;
    Totals totals;
  };
  struct StatesRow {
    ServerName server;
    std::array<std::int64_t, 3> breakers{};
  };
  struct ConnectionsRow {
    ServerName server;
    std::string peer;
    std::int64_t connections = 0;
  };

  class Entry {
   public:
    void Count(RetryDecision decision) noexcept {
      // relaxed: a statistic.
      decisions_[static_cast<std::size_t>(decision)].fetch_add(1, std::memory_order_relaxed);
    }
    // Under which name its dependency is counted: its own, or kOther.
    const ServerName& server() const noexcept { return server_; }

   private:
    friend class ClientRoster;
    Totals Read() const;

    std::shared_ptr<const ClientView> view_;
    ServerName server_;  // set before anybody else has the entry
    alignas(64) std::array<std::atomic<std::uint64_t>, 6> decisions_{};
  };

  std::shared_ptr<Entry> Add(std::shared_ptr<const ClientView> view);

  // Its totals stay; its view is dropped before this returns. More than once is fine.
  void Remove(Entry& entry) noexcept;

  // Since the roster was made; never less than before, for as long as no more than kMostAddresses are known.
  std::vector<TotalsRow> ReadTotals() const;

  // How many breakers are in each state now. An address whose last client has gone shows the state in which that one
  // went once more, so that an export made right after the end of a program's clients still has it, then zeros once.
  std::vector<StatesRow> ReadStates();

  // Connections by peer; a peer that has gone shows a zero once.
  std::vector<ConnectionsRow> ReadConnections();

  // Addresses beyond so many, and peers of one address beyond so many, are put together under kOther: what comes in
  // from outside must not make series without end.
  static constexpr std::size_t kMostAddresses = 1000;
  static constexpr std::size_t kMostPeers = 256;
  static constexpr std::string_view kOther = NameTable::kOther;

 private:
  struct Dependency {
    std::vector<std::shared_ptr<Entry>> clients;
    Totals gone;  // of the clients that have gone
    // What a dependency without clients still shows.
    int readings_left = 0;
    CircuitState last_state = CircuitState::kClosed;
    std::set<std::string> peers;  // shown and not yet zero
  };

  mutable std::mutex mutex_;
  std::map<ServerName, Dependency> dependencies_;  // under mutex_
};

// The clients of one observer. It is made for one; where a program gives it to several (a copy of the settings, made for another
// address), the first is counted, and what it is counted by stays until the last has ended.
class ObservedClients {
 public:
  // As a client is created. False, and the log says so: there is one already.
  bool Enter(const ClientView& client) noexcept;
  // As one has ended. True: none is left.
  bool Leave() noexcept;

 private:
  std::atomic<int> clients_{0};
};

}  // namespace penstock::inline v0::detail
