#include "client/connection_samples.h"

#include <algorithm>

#include "runtime/baggage.h"
#include "runtime/grpc_quirks.h"

namespace penstock::inline v0::detail {

std::string ConnectionSamples::PeerName(std::string_view peer) {
  for (const std::string_view scheme : {"ipv4:", "ipv6:"}) {
    if (!peer.starts_with(scheme)) continue;
    peer.remove_prefix(scheme.size());
    return PercentDecoded(peer).value_or(std::string(peer));
  }
  return std::string(peer);
}

void ConnectionSamples::Note(const grpc::ClientContext& context, TimePoint now) {
  std::shared_ptr<const grpc::AuthContext> auth_context = context.auth_context();
  const void* const identity = ConnectionOf(*auth_context);
  if (identity == nullptr) return;

  std::vector<Connection> dropped;  // destroyed without the lock
  std::lock_guard lock(mutex_);
  const auto gone = std::stable_partition(connections_.begin(), connections_.end(),
                                          [&](const Connection& known) { return now - known.last < kForgottenAfter; });
  std::move(gone, connections_.end(), std::back_inserter(dropped));
  connections_.erase(gone, connections_.end());

  auto known = std::find_if(connections_.begin(), connections_.end(),
                            [&](const Connection& one) { return one.identity == identity; });
  if (known == connections_.end()) {
    if (connections_.size() == kMost) return;
    connections_.push_back({std::move(auth_context), identity, PeerName(context.peer()), now, now, 0});
    known = std::prev(connections_.end());
  }
  known->last = latest_ = now;
  known->notes += 1;
  notes_ += 1;
  if (notes_ < kNotesOfLate) return;
  notes_ /= 2;
  for (Connection& connection : connections_) connection.notes /= 2;
}

std::vector<ClientConnection> ConnectionSamples::Read() const {
  std::vector<ClientConnection> read;
  std::lock_guard lock(mutex_);
  double all = 0;
  for (const Connection& connection : connections_) {
    if (latest_ - connection.last >= kForgottenAfter) continue;
    all += connection.notes;
    read.push_back({connection.peer, connection.since, connection.notes});
  }
  for (ClientConnection& connection : read) connection.share /= all;
  return read;
}

}  // namespace penstock::inline v0::detail
