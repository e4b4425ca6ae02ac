#include "client/call_registry.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

namespace penstock::inline v0::detail {

std::uint32_t CallRegistry::ShardOfThread() noexcept {
  static constinit std::atomic<std::uint32_t> next{0};
  // relaxed: any number will do, as long as threads get different ones.
  static thread_local const std::uint32_t mine = next.fetch_add(1, std::memory_order_relaxed) % kShards;
  return mine;
}

bool CallRegistry::Add(LiveCall& call) noexcept {
  const std::uint32_t index = ShardOfThread();
  Shard& shard = shards_[index];
  std::lock_guard lock(shard.mutex);
  call.shard_ = static_cast<std::uint16_t>(index);
  call.sampled_ = shard.added < kSampledFirst || shard.added % kSampledEvery == 0;
  ++shard.added;
  call.previous_ = call.next_ = nullptr;
  const bool first = shard.count++ == 0;
  if (shard.closed) {
    if (first) owner_.OnShardBusy();
    return false;
  }
  call.next_ = shard.first;
  if (shard.first != nullptr) shard.first->previous_ = &call;
  shard.first = &call;
  return true;
}

std::uint32_t CallRegistry::Remove(LiveCall& call) noexcept {
  const std::uint32_t index = call.shard_;
  Shard& shard = shards_[index];
  std::lock_guard lock(shard.mutex);
  if (call.previous_ != nullptr) {
    call.previous_->next_ = call.next_;
  } else if (shard.first == &call) {  // Else it was refused.
    shard.first = call.next_;
  }
  if (call.next_ != nullptr) call.next_->previous_ = call.previous_;
  return index;
}

void CallRegistry::Completed(std::uint32_t index) noexcept {
  Shard& shard = shards_[index];
  bool idle = false;
  {
    std::lock_guard lock(shard.mutex);
    idle = --shard.count == 0 && shard.closed;
    // Under the mutex: a waiter may destroy the client as soon as it sees the shard idle and gets the mutex.
    if (idle) shard.idle.notify_all();
  }
  if (idle) owner_.OnShardIdle();
}

bool CallRegistry::Close() noexcept {
  for (Shard& shard : shards_) {
    std::lock_guard lock(shard.mutex);
    if (shard.closed) return false;
    shard.closed = true;
    shard.idle.notify_all();
    if (shard.count > 0) owner_.OnShardBusy();
  }
  for (Shard& shard : shards_) CancelAll(shard);
  return true;
}

void CallRegistry::CancelAll(Shard& shard) noexcept {
  std::vector<LiveCall*> calls;
  {
    std::lock_guard lock(shard.mutex);
    calls.reserve(shard.count);
    for (LiveCall* call = shard.first; call != nullptr; call = call->next_) {
      call->AddReference();  // A listed call is alive: whoever ends it comes by Remove() first.
      calls.push_back(call);
    }
  }
  for (LiveCall* call : calls) {
    call->Cancel(CancelReason::kClosed);
    call->Release();
  }
}

bool CallRegistry::WaitIdle(TimePoint until) noexcept {
  // A completion may make calls, which are refused and counted in a shard that was passed already.
  do {
    for (Shard& shard : shards_) {
      std::unique_lock lock(shard.mutex);
      if (!shard.idle.wait_until(lock, until, [&] { return shard.closed && shard.count == 0; })) return false;
    }
  } while (!AllIdle());
  return true;
}

bool CallRegistry::AllIdle() const noexcept {
  // Every mutex at once, in the order of the shards; nobody else holds two.
  std::array<std::unique_lock<std::mutex>, kShards> locks;
  for (std::uint32_t index = 0; index < kShards; ++index) locks[index] = std::unique_lock(shards_[index].mutex);
  return std::all_of(shards_.begin(), shards_.end(), [](const Shard& shard) { return shard.count == 0; });
}

std::size_t CallRegistry::size() const noexcept {
  std::size_t sum = 0;
  for (const Shard& shard : shards_) {
    std::lock_guard lock(shard.mutex);
    sum += shard.count;
  }
  return sum;
}

}  // namespace penstock::inline v0::detail
