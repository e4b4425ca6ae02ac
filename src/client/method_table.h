#pragma once

// What a client knows of each method that was called: its stub, and its settings, resolved once.
//
// Looking a method up is on the path of every call: it takes no lock and writes nothing.

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "penstock/client/detail/method_entry.h"
#include "penstock/client/settings.h"

namespace penstock::inline v0::detail {

// As the proto says: its idempotency_level, or penstock's option once_only, which wins. kUnmarked for a method that the
// program has no descriptor of.
Repeatability RepeatabilityInProto(const MethodInfo& method);

class MethodTable {
 public:
  // The settings and the channels are the client's and outlive the table.
  MethodTable(const ClientSettings& settings, const std::vector<std::shared_ptr<grpc::Channel>>& channels)
      : settings_(settings), channels_(channels) {}

  // Valid for as long as the table.
  const MethodEntry& Find(const MethodInfo& method) {
    // acquire: pairs with the release in Make(), makes the node visible.
    for (const Node* node = buckets_[BucketOf(method)].load(std::memory_order_acquire); node != nullptr; node = node->next) {
      if (node->entry.info == &method) return node->entry;
    }
    return Make(method);
  }

 private:
  struct Node {
    MethodEntry entry;
    std::vector<std::shared_ptr<void>> stubs;
    std::vector<void*> asyncs;
    Node* next = nullptr;
  };
  static constexpr std::size_t kBuckets = 64;

  static std::size_t BucketOf(const MethodInfo& method) noexcept {
    return (reinterpret_cast<std::uintptr_t>(&method) >> 5) % kBuckets;
  }
  const MethodEntry& Make(const MethodInfo& method);

  const ClientSettings& settings_;
  const std::vector<std::shared_ptr<grpc::Channel>>& channels_;
  std::mutex mutex_;
  std::deque<Node> nodes_;  // under mutex_; nodes never move
  std::array<std::atomic<Node*>, kBuckets> buckets_{};
};

}  // namespace penstock::inline v0::detail
