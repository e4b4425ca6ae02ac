#include "runtime/client_roster.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "runtime/log.h"

namespace penstock::inline v0::detail {

ServerName NameOf(std::string_view address) {
  const std::size_t colon = address.rfind(':');
  int port = 0;
  if (colon != std::string_view::npos && address.find_first_of(",/") == std::string_view::npos) {
    const std::string_view digits = address.substr(colon + 1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
    if (error != std::errc() || end != digits.data() + digits.size() || port < 0 || port > 65535) port = 0;
  }
  if (port == 0) return {std::string(address), 0};
  std::string_view host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return {std::string(host), port};
}

namespace {

void AddTo(ClientRoster::Totals& sum, const ClientRoster::Totals& more) {
  const auto add = [](auto& left, const auto& right) {
    for (std::size_t i = 0; i < left.size(); ++i) left[i] += right[i];
  };
  add(sum.transitions, more.transitions);
  add(sum.calls, more.calls);
  add(sum.decisions, more.decisions);
}

}  // namespace

ClientRoster::Totals ClientRoster::Entry::Read() const {
  const CircuitTotals circuit = view_->totals();
  Totals totals;
  totals.transitions = {circuit.entered_closed, circuit.entered_open, circuit.entered_half_open};
  totals.calls = {circuit.successes, circuit.failures, circuit.ignored, circuit.rejected};
  for (std::size_t i = 0; i < totals.decisions.size(); ++i) {
    totals.decisions[i] = decisions_[i].load(std::memory_order_relaxed);  // relaxed: see Count()
  }
  return totals;
}

std::shared_ptr<ClientRoster::Entry> ClientRoster::Add(std::shared_ptr<const ClientView> view) {
  auto entry = std::make_shared<Entry>();
  entry->view_ = std::move(view);
  std::lock_guard lock(mutex_);
  entry->server_ = NameOf(entry->view_->address());
  if (dependencies_.size() >= kMostAddresses && !dependencies_.contains(entry->server_)) entry->server_ = {std::string(kOther), 0};
  dependencies_[entry->server_].clients.push_back(entry);
  return entry;
}

void ClientRoster::Remove(Entry& entry) noexcept {
  std::shared_ptr<Entry> removed;  // dropped without the lock: the end of a view runs other people's code
  std::shared_ptr<const ClientView> view;
  std::lock_guard lock(mutex_);
  for (auto& [server, dependency] : dependencies_) {
    auto& clients = dependency.clients;
    const auto found =
        std::find_if(clients.begin(), clients.end(), [&](const auto& one) { return one.get() == &entry; });
    if (found == clients.end()) continue;
    AddTo(dependency.gone, entry.Read());
    if (clients.size() == 1) {
      dependency.readings_left = 2;
      dependency.last_state = entry.view_->state();
    }
    removed = std::move(*found);
    view = std::move(entry.view_);
    clients.erase(found);
    return;
  }
}

std::vector<ClientRoster::TotalsRow> ClientRoster::ReadTotals() const {
  std::vector<TotalsRow> rows;
  std::lock_guard lock(mutex_);
  for (const auto& [server, dependency] : dependencies_) {
    TotalsRow row{server, dependency.gone};
    for (const auto& client : dependency.clients) AddTo(row.totals, client->Read());
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<ClientRoster::StatesRow> ClientRoster::ReadStates() {
  std::vector<StatesRow> rows;
  std::lock_guard lock(mutex_);
  for (auto& [server, dependency] : dependencies_) {
    StatesRow row{server, {}};
    if (dependency.clients.empty()) {
      if (dependency.readings_left == 0) continue;
      if (dependency.readings_left == 2) row.breakers[static_cast<std::size_t>(dependency.last_state)] = 1;
      --dependency.readings_left;
    }
    for (const auto& client : dependency.clients) ++row.breakers[static_cast<std::size_t>(client->view_->state())];
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<ClientRoster::ConnectionsRow> ClientRoster::ReadConnections() {
  std::vector<ConnectionsRow> rows;
  std::lock_guard lock(mutex_);
  for (auto& [server, dependency] : dependencies_) {
    std::map<std::string, std::int64_t> by_peer;
    for (const std::string& peer : dependency.peers) by_peer[peer] = 0;
    for (const auto& client : dependency.clients) {
      for (ClientConnection& connection : client->view_->connections()) {
        auto known = by_peer.find(connection.peer);
        if (known == by_peer.end()) {
          const bool full = by_peer.size() >= kMostPeers;
          known = by_peer.try_emplace(full ? std::string(kOther) : std::move(connection.peer)).first;
        }
        ++known->second;
      }
    }
    dependency.peers.clear();
    for (auto& [peer, connections] : by_peer) {
      if (connections > 0) dependency.peers.insert(peer);
      rows.push_back({server, peer, connections});
    }
  }
  return rows;
}

bool ObservedClients::Enter(const ClientView& client) noexcept {
  // relaxed: whoever enters or leaves first is told apart by the number alone.
  if (clients_.fetch_add(1, std::memory_order_relaxed) == 0) return true;
  Log(LogSeverity::kError,
      "telemetry: the client for {} has an observer that another client has, too, and is not counted: ForClient() makes one for each",
      client.address());
  return false;
}

bool ObservedClients::Leave() noexcept {
  // acq_rel: what the others did with the observer comes before what the last one lets go of.
  return clients_.fetch_sub(1, std::memory_order_acq_rel) == 1;
}

}  // namespace penstock::inline v0::detail
