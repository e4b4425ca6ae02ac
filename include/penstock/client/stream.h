#pragma once

// Streams that can be opened again while nothing has reached a server, and whose ends mean what they mean.
//
// gRPC's reactors make one attempt, abort the process when they are misused, and end with a bare status: a rollout looks
// like an outage. These have their names and their reactions, and are opened with the client's retries, breaker and budget.
//
//     class Watch final : public penstock::ClientReadReactor<Account> {
//       void OnReadDone(bool ok) override { if (ok) { Show(account_); (void)StartRead(&account_); } }
//       void OnDone(const penstock::CallResult& result) override { delete this; }
//       ...
//     };
//     auto* watch = new Watch;
//     (void)watch->StartRead(&watch->account_);
//     client.Open(PENSTOCK_METHOD(ledger::v1::Ledger, WatchAccount), request, {}, *watch);
//
// Threads: StartRead, StartWrite and StartWritesDone from any thread, before Open() or after it; so Cancel(). Reactions run on
// gRPC's callback threads, those of reads, of writes and OnOpened possibly at once; OnOpened before the first OnReadDone,
// OnDone after all others. A write's reaction that has started the next one may still run as that one's does.
// Ownership: the reactor is the user's and must live until OnDone, where it may delete itself. A reactor serves one stream: a
// second Open() with it is refused.
// Messages that are read into or written stay the user's and must live until OnReadDone or OnWriteDone.
// Time: a stream lives as long as it is wanted: the settings' `timeout` is no stream's. A deadline or a timeout in its options
// ends it, open or not.
// Errors: a start that gRPC would abort on is refused with a reason and changes nothing. What a reaction throws ends the stream
// with CANCELLED and is told to the client's observer.

#include <grpcpp/support/client_callback.h>

#include <atomic>
#include <cstddef>
#include <mutex>
#include <type_traits>
#include <utility>

#include "penstock/client/call.h"
#include "penstock/client/detail/stream_calls.h"
#include "penstock/client/detail/stream_core.h"
#include "penstock/client/detail/unary_call.h"
#include "penstock/client/method.h"
#include "penstock/client/stream_start.h"

namespace penstock::inline v0 {

namespace detail {

// While one lives, its stream's OnDone does not come.
class StreamHold {
 public:
  StreamHold() = default;
  explicit StreamHold(StreamCore* core) noexcept : core_(core) {}
  StreamHold(StreamHold&& other) noexcept : core_(std::exchange(other.core_, nullptr)) {}
  StreamHold& operator=(StreamHold&& other) noexcept {
    std::swap(core_, other.core_);
    return *this;
  }
  ~StreamHold() {
    if (core_ != nullptr) core_->RemoveHold();
  }

  explicit operator bool() const noexcept { return core_ != nullptr; }

 private:
  StreamCore* core_ = nullptr;
};

// What the public reactors have in common.
class StreamReactor : protected StreamEvents {
 public:
  StreamReactor() = default;
  StreamReactor(const StreamReactor&) = delete;
  StreamReactor& operator=(const StreamReactor&) = delete;
  virtual ~StreamReactor() {
    if (StreamCore* const opened = core()) opened->Release();
  }

  // Ends the stream soon with CANCELLED; nothing before Open() and after the end.
  void Cancel() noexcept {
    if (StreamCore* const opened = core()) opened->Cancel(CancelReason::kCaller);
  }

  // The headers that the server sent; from OnOpened on, until OnDone returns.
  const ServerMetadata& ServerHeaders() const noexcept {
    static const ServerMetadata none;
    const StreamCore* const opened = core();
    return opened != nullptr ? opened->headers() : none;
  }

  // The stream has opened: the server's headers, its first message or an OK end have arrived. Once, or never.
  using StreamEvents::OnOpened;
  // The stream has ended, or never opened. Once, and the last of all.
  using StreamEvents::OnDone;

  // For Client::Open() and penstock's own parts; takes over the reference. What was asked before goes to the core with it, as what is
  // asked by other threads from then on does.
  bool Adopt(StreamCore* core) noexcept {
    std::lock_guard lock(mutex_);
    // relaxed: written under the lock only.
    if (core_.load(std::memory_order_relaxed) != nullptr) {
      core->Release();
      return false;
    }
    core->Take(*this, prepared_);
    core_.store(core, std::memory_order_release);  // Publishes what it has taken.
    return true;
  }
  // By Client::Open(), before Adopt().
  StreamCore::Prepared& prepared() noexcept { return prepared_; }
  StreamCore* core() const noexcept { return core_.load(std::memory_order_acquire); }  // acquire: see Adopt()
  // Empty before the opening, between two attempts at it, and once the stream is ending. Let go of it soon.
  StreamHold Hold() noexcept {
    StreamCore* const opened = core();
    return StreamHold(opened != nullptr && opened->AddHold() ? opened : nullptr);
  }

 protected:
  // Runs a method of the user's outside of gRPC's reactions, with a Hold(); what it throws ends the stream.
  template <class Function>
  void Guard(const char* where, Function&& function) noexcept {
    core()->Run(where, std::forward<Function>(function));
  }

  StreamStart AskRead(void* message) noexcept {
    return Ask([&](StreamCore& opened) { return opened.StartRead(message); },
               [&] {
                 if (prepared_.read != nullptr) return StreamStart::kBusy;
                 prepared_.read = message;
                 return StreamStart::kStarted;
               });
  }
  StreamStart AskWrite(const void* message, grpc::WriteOptions options, std::size_t bytes) noexcept {
    const StreamCore::Write write{message, options, bytes};
    if (bytes > kLongestMessage) return StreamStart::kTooLarge;
    return Ask([&](StreamCore& opened) { return opened.StartWrite(write); },
               [&] {
                 if (half_closes()) return StreamStart::kHalfClosed;
                 if (prepared_.write) return StreamStart::kBusy;
                 prepared_.write = write;
                 return StreamStart::kStarted;
               });
  }
  StreamStart AskWritesDone() noexcept {
    return Ask([](StreamCore& opened) { return opened.StartWritesDone(); },
               [&] {
                 if (half_closes()) return StreamStart::kHalfClosed;
                 prepared_.writes_done = true;
                 return StreamStart::kStarted;
               });
  }

 private:
  // Of the core, or, before Open(), of what is prepared for it.
  template <class Start, class Prepare>
  StreamStart Ask(const Start& start, const Prepare& prepare) noexcept {
    if (StreamCore* const opened = core()) [[likely]] return start(*opened);
    {
      std::lock_guard lock(mutex_);
      if (core_.load(std::memory_order_relaxed) == nullptr) return prepare();  // relaxed: as in Adopt()
    }
    return start(*core());
  }
  bool half_closes() const noexcept {
    return prepared_.writes_done || (prepared_.write && prepared_.write->options.is_last_message());
  }

  std::atomic<StreamCore*> core_{nullptr};
  std::mutex mutex_;  // Of the opening.
  StreamCore::Prepared prepared_;
};

}  // namespace detail

// Of a server stream.
template <class Response>
class ClientReadReactor : public detail::StreamReactor {
 public:
  // The next message is read into `message`; OnReadDone follows. Refused while one is under way.
  [[nodiscard]] StreamStart StartRead(Response* message) noexcept { return AskRead(message); }

  // The read has ended; false: no message came and none will.
  using StreamEvents::OnReadDone;

 private:
  using StreamEvents::OnWriteDone;
  using StreamEvents::OnWritesDoneDone;
};

// Of a client stream. The response is in the message that Open() was given, once OnDone says OK.
template <class Request>
class ClientWriteReactor : public detail::StreamReactor {
 public:
  using Written = Request;

  // Writes `message`; OnWriteDone follows. Refused while one is under way and after the half-close. The first write waits for the
  // opening and is made again with it.
  [[nodiscard]] StreamStart StartWrite(const Request* message, grpc::WriteOptions options = {}) noexcept {
    return AskWrite(message, options, detail::BytesOf(*message));
  }
  // With the half-close: nothing may be written after it.
  [[nodiscard]] StreamStart StartWriteLast(const Request* message, grpc::WriteOptions options = {}) noexcept {
    return AskWrite(message, options.set_last_message(), detail::BytesOf(*message));
  }
  // The half-close, after the write that is under way; OnWritesDoneDone follows.
  [[nodiscard]] StreamStart StartWritesDone() noexcept { return AskWritesDone(); }

  // The write has ended; true: it was given to the connection, which does not say that the server has it.
  using StreamEvents::OnWriteDone;
  using StreamEvents::OnWritesDoneDone;

 protected:
  // As StartWrite(), of a message whose size is known.
  StreamStart StartWriteOf(const Request* message, grpc::WriteOptions options, std::size_t bytes) noexcept {
    return AskWrite(message, options, bytes);
  }

 private:
  using StreamEvents::OnReadDone;
};

// Of a bidi stream.
template <class Request, class Response>
class ClientBidiReactor : public detail::StreamReactor {
 public:
  using Written = Request;

  [[nodiscard]] StreamStart StartRead(Response* message) noexcept { return AskRead(message); }
  [[nodiscard]] StreamStart StartWrite(const Request* message, grpc::WriteOptions options = {}) noexcept {
    return AskWrite(message, options, detail::BytesOf(*message));
  }
  [[nodiscard]] StreamStart StartWriteLast(const Request* message, grpc::WriteOptions options = {}) noexcept {
    return AskWrite(message, options.set_last_message(), detail::BytesOf(*message));
  }
  [[nodiscard]] StreamStart StartWritesDone() noexcept { return AskWritesDone(); }

  using StreamEvents::OnReadDone;
  using StreamEvents::OnWriteDone;
  using StreamEvents::OnWritesDoneDone;

 protected:
  StreamStart StartWriteOf(const Request* message, grpc::WriteOptions options, std::size_t bytes) noexcept {
    return AskWrite(message, options, bytes);
  }
};

namespace detail {

template <class Core>
bool OpenStream(ClientState& state, const MethodInfo& method, Core* core, CallOptions&& options, StreamReactor& reactor) {
  if (!reactor.Adopt(core)) return false;
  core->Begin(state, method, std::move(options));
  return true;
}

}  // namespace detail
}  // namespace penstock::inline v0
