#include "client/method_table.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>

#include "penstock/options.pb.h"
#include "runtime/grpc_quirks.h"

namespace penstock::inline v0::detail {

Repeatability RepeatabilityInProto(const MethodInfo& method) {
  std::string name(method.path.substr(1));
  std::replace(name.begin(), name.end(), '/', '.');
  const auto* descriptor = google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(name);
  if (descriptor == nullptr) return Repeatability::kUnmarked;
  const google::protobuf::MethodOptions& options = descriptor->options();
  if (options.GetExtension(once_only)) return Repeatability::kOnceOnly;
  if (options.idempotency_level() != google::protobuf::MethodOptions::IDEMPOTENCY_UNKNOWN) return Repeatability::kRepeatable;
  return Repeatability::kUnmarked;
}

const MethodEntry& MethodTable::Make(const MethodInfo& method) {
  std::lock_guard lock(mutex_);
  std::atomic<Node*>& bucket = buckets_[BucketOf(method)];
  // relaxed: only written under the mutex, which is held.
  for (const Node* node = bucket.load(std::memory_order_relaxed); node != nullptr; node = node->next) {
    if (node->entry.info == &method) return node->entry;
  }
  Node& node = nodes_.emplace_back();
  MethodEntry& entry = node.entry;
  entry.info = &method;
  entry.timeout = settings_.timeout;
  entry.max_attempts = settings_.max_attempts;
  entry.repeatability = RepeatabilityInProto(method);
  for (const MethodSettings& own : settings_.methods) {
    if (own.method.path() != method.path) continue;
    if (own.timeout) entry.timeout = *own.timeout;
    if (own.max_attempts) entry.max_attempts = *own.max_attempts;
    if (own.repeatability != Repeatability::kFromProto) entry.repeatability = own.repeatability;
    if (own.wait_for_ready) entry.wait_for_ready = own.wait_for_ready;
  }
  for (const std::shared_ptr<grpc::Channel>& channel : channels_) {
    node.stubs.push_back(method.make_stub(channel));
    node.asyncs.push_back(node.stubs.back().get());
  }
  entry.channels = static_cast<std::uint32_t>(node.asyncs.size());
  // Behind the channels': where an attempt goes that an injected fault aborts.
  if (settings_.faults != nullptr) {
    node.stubs.push_back(method.make_stub(LameChannel()));
    node.asyncs.push_back(node.stubs.back().get());
  }
  entry.asyncs = node.asyncs.data();
  // relaxed: only written under the mutex, which is held.
  node.next = bucket.load(std::memory_order_relaxed);
  // release: pairs with the acquire in Find(), makes the node visible.
  bucket.store(&node, std::memory_order_release);
  return entry;
}

}  // namespace penstock::inline v0::detail
