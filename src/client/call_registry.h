#pragma once

// The calls of one client that have not ended, so that closing the client can end them and wait for them.
//
// Sharded by thread: a call goes into the shard of the thread that starts it, under that shard's mutex, and is counted there until
// its completion has run, also where it comes too late and completes as refused. Closing takes a reference to each listed
// call under the mutex and cancels it without.

#include <array>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "penstock/client/detail/live_call.h"
#include "penstock/core/clock.h"

namespace penstock::inline v0::detail {

class CallRegistry {
 public:
  // Keeps what the calls need. Until the registry is closed somebody holds the client, and there is nothing to keep.
  class Owner {
   public:
    // A shard of the closed registry has calls that have not completed; under a lock.
    virtual void OnShardBusy() noexcept = 0;
    // It has none any more; on the thread of the last of them.
    virtual void OnShardIdle() noexcept = 0;

   protected:
    ~Owner() = default;
  };

  explicit CallRegistry(Owner& owner) : owner_(owner) {}

  // Of the calls of a thread the first few are sampled and then every so many. A prime, so that calls that take turns between
  // backends are sampled in turn too.
  static constexpr std::uint32_t kSampledFirst = 16;
  static constexpr std::uint32_t kSampledEvery = 61;

  // Counts the call and lists it. False once the registry is closed: the call is counted, and nobody will cancel it.
  bool Add(LiveCall& call) noexcept;

  // A call that was added has its result: it will not be cancelled from here any more. Still counted. Returns the shard.
  std::uint32_t Remove(LiveCall& call) noexcept;

  // Its completion has run; the call itself may be gone.
  void Completed(std::uint32_t shard) noexcept;

  // Refuses further calls and cancels those that are listed. False when it was closed already; nothing happens then.
  bool Close() noexcept;

  // Whether every call has completed by the (real) time given, those included that completions make meanwhile. Waits, too, for
  // a Close() that has begun on another thread.
  bool WaitIdle(TimePoint until) noexcept;

  // Whether Close() has begun.
  bool closed() const noexcept {
    std::lock_guard lock(shards_.front().mutex);
    return shards_.front().closed;
  }

  // Calls that have not completed; for tests and telemetry.
  std::size_t size() const noexcept;

 private:
  struct alignas(64) Shard {
    mutable std::mutex mutex;
    LiveCall* first = nullptr;
    std::uint32_t count = 0;
    std::uint32_t added = 0;
    bool closed = false;
    std::condition_variable idle;
  };
  static constexpr std::uint32_t kShards = 16;

  static std::uint32_t ShardOfThread() noexcept;
  void CancelAll(Shard& shard) noexcept;
  bool AllIdle() const noexcept;

  Owner& owner_;
  std::array<Shard, kShards> shards_;
};

}  // namespace penstock::inline v0::detail
