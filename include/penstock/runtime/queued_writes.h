#pragma once

// A bounded queue in front of a reactor's writes.
//
// gRPC takes one message at a time and, unless told that another follows at once, makes a system call for each: most of what a
// stream costs. This takes messages as they come, writes them one after the other, and gives gRPC's buffer hint to exactly
// those behind which another one waits, so that a burst goes out together and its last message goes out at once.
//
//     class Watcher final : public penstock::QueuedWrites<penstock::ServerWriteReactor<Account>> {
//      public:
//       explicit Watcher(Store& store) : QueuedWrites({.max_messages = 256, .when_full = penstock::WhenFull::kDropOldest}) {
//         store.Subscribe(this, [this](const Account& account) { Write(account); });     // OnDone unsubscribes
//       }
//     };
//
// For ClientWriteReactor, ClientBidiReactor, ServerWriteReactor and ServerBidiReactor.
//
// Threads: Write and the closing ones from any thread that knows the reactor to be alive, several at once: messages go out in the
// order in which their Write() returned or would have. OnWritable and OnWritesFailed run on gRPC's callback threads, one at a
// time, without a lock; OnWritesFailed comes once, and OnWritable never after it.
// Ownership: the messages are copied or moved in. A message's memory is used again for a later one: Write(const Message&) into a queue
// that has been used allocates nothing that the last message of its place did not. Messages of max_bytes together are kept for
// that, no more: one beyond it is freed once it has been written.
// Time: none.
// Errors: what happens at the bounds is the settings'. After the stream's end Write says kEnded; what waited is dropped, as it
// would be in gRPC's own buffers.

#include <grpcpp/impl/call_op_set.h>
#include <grpcpp/support/status.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace penstock::inline v0 {

// What becomes of a message for which there is no room.
enum class WhenFull : unsigned char {
  kRefuse,      // Write() says kFull, and OnWritable() comes when half of the room is free again.
  kDropOldest,  // The messages that have waited longest go, and are counted: for what only the newest state matters to.
  kEndStream,   // The stream ends: at a server with RESOURCE_EXHAUSTED, at a client with CANCELLED. For what may miss nothing.
};

struct WriteQueueSettings {
  // What may wait, besides the one message that gRPC has: so many messages, 1 up, and so many bytes as sent.
  std::size_t max_messages = 64;
  std::size_t max_bytes = std::size_t{1} << 20;
  WhenFull when_full = WhenFull::kRefuse;
};

enum class Queued : unsigned char {
  kQueued,    // It will be written, unless the stream ends first or kDropOldest drops it.
  kFull,      // kRefuse: there is no room.
  kTooLarge,  // It alone is over max_bytes.
  kEnded,     // Nothing can be written any more.
};

template <class Reactor>
class QueuedWrites : public Reactor {
 public:
  using Message = typename Reactor::Written;

  // Whether it is a client's.
  static constexpr bool kHalfCloses = requires(Reactor& reactor) { reactor.StartWritesDone(); };

  explicit QueuedWrites(WriteQueueSettings settings = {}) : settings_(settings) {
    settings_.max_messages = std::max<std::size_t>(settings_.max_messages, 1);
  }

  Queued Write(const Message& message) {
    return Add(message.ByteSizeLong(), [&](Place& place) {
      place.message = message;
      place.held = std::max(place.held, place.bytes);
    });
  }
  // The message is left with what its place in the queue held before: valid, and good to be filled again.
  Queued Write(Message&& message) {
    return Add(message.ByteSizeLong(), [&](Place& place) {
      std::swap(place.message, message);
      place.held = place.bytes;
    });
  }

  // At a client: the half-close, once everything has been written. Nothing may be written after it.
  void WritesDone()
    requires kHalfCloses
  {
    {
      std::lock_guard lock(mutex_);
      if (closed_) return;
      closed_ = true;
      closing_ = true;
      if (writing_) return;  // The last write's end does it.
    }
    Close();
  }

  // At a server: ends the call with `status` once everything has been written. The first one counts.
  void FinishAfterWrites(grpc::Status status)
    requires(!kHalfCloses)
  {
    {
      std::lock_guard lock(mutex_);
      if (closed_) return;
      closed_ = true;
      closing_ = true;
      last_status_ = std::move(status);
      if (writing_) return;  // The last write's end does it.
    }
    Close();
  }

  // How many wait.
  std::size_t waiting() const {
    std::lock_guard lock(mutex_);
    return count_;
  }
  // How many were dropped by kDropOldest.
  std::uint64_t dropped() const {
    std::lock_guard lock(mutex_);
    return dropped_;
  }

 protected:
  // After a kFull: half of the room is free.
  virtual void OnWritable() {}
  // A write has failed, and what waited is dropped. The stream's end follows. Not for one that Write() has said kEnded of.
  virtual void OnWritesFailed() {}

 private:
  using Reactor::StartWrite;

  template <class Fill>
  Queued Add(std::size_t bytes, Fill fill) {
    {
      std::unique_lock lock(mutex_);
      if (closed_) return Queued::kEnded;
      if (bytes > settings_.max_bytes) return Queued::kTooLarge;
      if (!Fits(bytes)) {
        if (settings_.when_full == WhenFull::kRefuse) {
          refused_ = true;
          return Queued::kFull;
        }
        if (settings_.when_full == WhenFull::kEndStream) {
          closed_ = true;
          overflowed_ = true;
          Drop();
          lock.unlock();
          EndStream();
          return Queued::kEnded;
        }
        // The hint of the message that gRPC has promises another: this one takes the place of what goes.
        while (!Fits(bytes)) DropFront();
      }
      Place& place = AppendPlace();
      place.bytes = bytes;
      fill(place);
      waiting_bytes_ += bytes;
      if (writing_) return Queued::kQueued;
      writing_ = true;
      TakeFront();
    }
    if (StartCurrent()) return Queued::kQueued;
    std::lock_guard lock(mutex_);
    StopTaking();
    return Queued::kEnded;
  }

  void OnWriteDone(bool ok) final {
    bool start = false;
    bool close = false;
    bool end = false;
    bool tell = false;
    {
      std::lock_guard lock(mutex_);
      if (!ok) {
        tell = Fail();
      } else if (count_ > 0) {
        TakeFront();
        start = true;
      } else {
        writing_ = false;
        close = closing_;
        // A client's stream again: where the queue was full before the stream was opened, there was nothing to end yet.
        end = overflowed_ && kHalfCloses;
      }
      if (ok && refused_ && count_ <= settings_.max_messages / 2 && waiting_bytes_ <= settings_.max_bytes / 2) {
        refused_ = false;
        writable_due_ = true;
        tell = ClaimTelling();
      }
    }
    if (start && !StartCurrent()) {
      std::lock_guard lock(mutex_);
      tell = Fail() || tell;
    }
    if (close) Close();
    if (end) EndStream();
    if (tell) Tell();
  }

  // The next message may have been written, and its OnWriteDone be under way, before this one has told what it found. So one
  // of them tells, and the others leave what they have to tell to him.
  void Tell() {
    std::unique_lock lock(mutex_);
    // Should a reaction throw, which ends the stream: who comes next tells the rest.
    struct Release {
      QueuedWrites& queue;
      std::unique_lock<std::mutex>& lock;
      ~Release() {
        if (!lock.owns_lock()) lock.lock();
        queue.telling_ = false;
      }
    } const release{*this, lock};
    while (failure_due_ || writable_due_) {
      const bool failed = failure_due_;
      failure_due_ = false;
      writable_due_ = false;
      lock.unlock();
      if (failed) {
        OnWritesFailed();
      } else {
        OnWritable();
      }
      lock.lock();
    }
  }

  // With writing_ set and the message taken: only one thread comes here at a time. False: the stream has ended.
  bool StartCurrent() {
    grpc::WriteOptions options;
    if (current_hint_) options.set_buffer_hint();
    const auto started = this->StartWrite(&current_, options);
    if constexpr (std::is_same_v<decltype(started), const bool>) {
      return started;
    } else {
      return started == decltype(started){};
    }
  }

  void Close() {
    if constexpr (kHalfCloses) {
      (void)this->StartWritesDone();
    } else {
      this->Finish(*std::move(last_status_));
    }
  }
  void EndStream() {
    if constexpr (kHalfCloses) {
      this->Cancel();
    } else {
      this->Finish({grpc::StatusCode::RESOURCE_EXHAUSTED, "the reader is too slow: its queue is full"});
    }
  }

  // The rest with the lock held.
  struct Place {
    Message message;
    std::size_t bytes = 0;
    std::size_t held = 0;  // The most that its memory has held.
  };

  bool Fits(std::size_t bytes) const {
    return count_ < settings_.max_messages && waiting_bytes_ + bytes <= settings_.max_bytes;
  }
  Place& AppendPlace() {
    if (count_ == ring_.size()) {
      // In order, so that what is added comes last.
      std::rotate(ring_.begin(), ring_.begin() + static_cast<std::ptrdiff_t>(first_), ring_.end());
      first_ = 0;
      ring_.resize(std::min(std::max<std::size_t>(4, ring_.size() * 2), settings_.max_messages));
    }
    Place& place = ring_[(first_ + count_++) % ring_.size()];
    kept_bytes_ -= place.held;
    return place;
  }
  // Ends the waiting of the first place; the memory of its message is kept, if there is room for that.
  void FreeFront() {
    Place& place = ring_[first_];
    waiting_bytes_ -= place.bytes;
    if (kept_bytes_ + place.held > settings_.max_bytes) {
      Message freed;
      std::swap(place.message, freed);
      place.held = 0;
    }
    kept_bytes_ += place.held;
    first_ = (first_ + 1) % ring_.size();
    --count_;
  }
  void DropFront() {
    FreeFront();
    ++dropped_;
  }
  void TakeFront() {
    std::swap(current_, ring_[first_].message);
    std::swap(current_held_, ring_[first_].held);
    FreeFront();
    current_hint_ = count_ > 0;
  }
  // For the stream's end.
  void StopTaking() {
    closed_ = true;
    writing_ = false;
    refused_ = false;
    Drop();
  }
  // As StopTaking(), to be told. True: by the caller.
  bool Fail() {
    StopTaking();
    failure_due_ = true;
    return ClaimTelling();
  }
  bool ClaimTelling() { return !std::exchange(telling_, true); }
  void Drop() {
    ring_.clear();
    first_ = 0;
    count_ = 0;
    waiting_bytes_ = 0;
  }

  WriteQueueSettings settings_;
  mutable std::mutex mutex_;
  std::vector<Place> ring_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  std::size_t waiting_bytes_ = 0;
  std::size_t kept_bytes_ = 0;
  std::uint64_t dropped_ = 0;
  bool writing_ = false;       // gRPC has current_.
  bool closed_ = false;        // Nothing is taken any more.
  bool closing_ = false;       // The half-close or the finish comes once everything has been written.
  bool overflowed_ = false;    // The stream is ended because the queue was full.
  bool refused_ = false;       // Somebody waits for OnWritable().
  bool writable_due_ = false;  // OnWritable() is to be told, ...
  bool failure_due_ = false;   // ... or OnWritesFailed(), ...
  bool telling_ = false;       // ... by the thread that has set this.
  std::optional<grpc::Status> last_status_;
  Message current_;
  std::size_t current_held_ = 0;
  bool current_hint_ = false;
};

}  // namespace penstock::inline v0
