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
// Time: none, but for the hop of `coalesce`.
// Errors: what happens at the bounds is the settings'. After the stream's end Write says kEnded; what waited is dropped, as it
// would be in gRPC's own buffers.

#include <grpcpp/impl/call_op_set.h>
#include <grpcpp/support/status.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include "penstock/runtime/detail/coalescer.h"
#include "penstock/runtime/detail/message_size.h"

namespace penstock::inline v0 {

// What becomes of a message for which there is no room.
enum class WhenFull : unsigned char {
  kRefuse,      // Write() says kFull, and OnWritable() comes when half of the room is free again.
  kDropOldest,  // The messages that have waited longest go, and are counted: for what only the newest state matters to.
  kEndStream,   // The stream ends: at a server with RESOURCE_EXHAUSTED, at a client with CANCELLED. For what may miss nothing.
};

struct WriteQueueSettings {
  // What may wait, besides the one message that gRPC has: so many messages, 1 up, and so many bytes as sent, 2 GiB - 1 at
  // most.
  std::size_t max_messages = 64;
  std::size_t max_bytes = std::size_t{1} << 20;
  WhenFull when_full = WhenFull::kRefuse;
  // For dozens of busy streams whose messages answer others: a message that finds nothing under way is given to gRPC not at once, but with
  // those that follow it until a hop to another thread has been made (tens of microseconds), which all such streams of the process
  // share. A stream's first message never waits. With few streams it costs more than it spares.
  bool coalesce = false;
};

enum class Queued : unsigned char {
  kQueued,    // It will be written, unless the stream ends first or kDropOldest drops it.
  kFull,      // kRefuse: there is no room.
  kTooLarge,  // It alone is over max_bytes.
  kEnded,     // Nothing can be written any more.
};

template <class Reactor>
class QueuedWrites : public Reactor, private detail::Coalesced {
 public:
  using Message = typename Reactor::Written;

  // Whether it is a client's.
  static constexpr bool kHalfCloses = requires(Reactor& reactor) { reactor.StartWritesDone(); };

  explicit QueuedWrites(WriteQueueSettings settings = {}) : settings_(settings) {
    settings_.max_messages = std::max<std::size_t>(settings_.max_messages, 1);
    settings_.max_bytes = std::min(settings_.max_bytes, detail::kLongestMessage);
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
      using std::swap;  // A protobuf message has its own, which std's would not find.
      swap(place.message, message);
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
    return waiting_.size();
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
  using Reactor::StartWriteOf;
  using ReactorHold = decltype(std::declval<Reactor&>().Hold());

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
      Places place = TakeFree();
      place.front().bytes = bytes;
      fill(place.front());
      waiting_.splice(waiting_.end(), place);
      waiting_bytes_ += bytes;
      if (writing_) return Queued::kQueued;
      writing_ = true;
      TakeFront();
      if (settings_.coalesce && written_ && WaitForOthers()) return Queued::kQueued;
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
      written_ = true;
      Free(current_);
      if (!ok) {
        tell = Fail();
      } else if (!waiting_.empty()) {
        TakeFront();
        start = true;
      } else {
        writing_ = false;
        close = closing_;
        // A client's stream again: where the queue was full before the stream was opened, there was nothing to end yet.
        end = overflowed_ && kHalfCloses;
      }
      if (ok && refused_ && waiting_.size() <= settings_.max_messages / 2 && waiting_bytes_ <= settings_.max_bytes / 2) {
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

  std::size_t StartCoalesced() noexcept final {
    ReactorHold hold;  // Let go of last: the reactor may end then.
    std::size_t messages = 0;
    {
      std::lock_guard lock(mutex_);
      hold = std::move(hold_);
      messages = 1 + waiting_.size();
      current_hint_ = !waiting_.empty();
    }
    if (StartCurrent()) return messages;
    bool tell = false;
    {
      std::lock_guard lock(mutex_);
      tell = Fail();
    }
    if (tell) this->Guard("OnWritesFailed", [this] { Tell(); });
    return messages;
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
    const auto started = this->StartWriteOf(&current_.front().message, options, current_.front().bytes);
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

  // True: StartCoalesced() will come.
  bool WaitForOthers() {
    if (!detail::Coalescer::Get().Pays()) return false;
    hold_ = this->Hold();
    if (!hold_) return false;
    detail::Coalescer::Get().Add(*this);
    return true;
  }

  struct Place {
    Message message;
    std::size_t bytes = 0;  // As sent.
    std::size_t held = 0;   // The most that its memory has held.
  };
  // Places move from list to list; their messages stay where they are, for gRPC reads them there.
  using Places = std::list<Place>;

  bool Fits(std::size_t bytes) const {
    return waiting_.size() < settings_.max_messages && waiting_bytes_ + bytes <= settings_.max_bytes;
  }
  // A list of one.
  Places TakeFree() {
    if (free_.empty()) return Places(1);
    free_bytes_ -= free_.front().held;
    Places place;
    place.splice(place.begin(), free_, free_.begin());
    return place;
  }
  // The first place of `from` is free again; the memory of its message is kept, if there is room for that.
  void Free(Places& from) {
    if (free_bytes_ + from.front().held > settings_.max_bytes) return from.pop_front();
    free_bytes_ += from.front().held;
    free_.splice(free_.begin(), from, from.begin());
  }
  void DropFront() {
    waiting_bytes_ -= waiting_.front().bytes;
    Free(waiting_);
    ++dropped_;
  }
  void TakeFront() {
    waiting_bytes_ -= waiting_.front().bytes;
    current_.splice(current_.begin(), waiting_, waiting_.begin());
    current_hint_ = !waiting_.empty();
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
    waiting_.clear();
    waiting_bytes_ = 0;
    free_.clear();
    free_bytes_ = 0;
  }

  WriteQueueSettings settings_;
  mutable std::mutex mutex_;
  Places waiting_;
  Places current_;  // The one that gRPC has, if any.
  Places free_;     // The one that was written last comes first.
  std::size_t waiting_bytes_ = 0;
  std::size_t free_bytes_ = 0;  // That they hold.
  std::uint64_t dropped_ = 0;
  bool writing_ = false;       // gRPC has current_, or will once StartCoalesced() has come.
  bool written_ = false;       // The first message has been.
  bool closed_ = false;        // Nothing is taken any more.
  bool closing_ = false;       // The half-close or the finish comes once everything has been written.
  bool overflowed_ = false;    // The stream is ended because the queue was full.
  bool refused_ = false;       // Somebody waits for OnWritable().
  bool writable_due_ = false;  // OnWritable() is to be told, ...
  bool failure_due_ = false;   // ... or OnWritesFailed(), ...
  bool telling_ = false;       // ... by the thread that has set this.
  std::optional<grpc::Status> last_status_;
  bool current_hint_ = false;
  ReactorHold hold_;  // Until StartCoalesced() has come.
};

}  // namespace penstock::inline v0
