#pragma once

// A stream, but for its types.
//
// Its opening is a call like any other (CallCore). Once open, this translates between the user's reactor and gRPC's; what a start or
// an arrival means is decided by ReadSide and WriteSide, which are tested without gRPC.
//
//     driver (see CallWord)   everything that is not atomic and not under mutex_
//     gRPC's reactions        come from several threads at once; OnDone after all others
//     mutex_                  the two sides and what says which of gRPC's operations may be started; never held while gRPC
//                             (but for its count of holds) or the user is called
//
// A hold on gRPC's reactor stands from the start of an attempt until a read fails. So starts from any thread are safe, and the
// end is heard at once, since a read is posted whenever none of the user's is kept from him (ReadSide).

#include <grpcpp/support/client_callback.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "penstock/client/call.h"
#include "penstock/client/detail/call_core.h"
#include "penstock/client/detail/stream_sides.h"
#include "penstock/core/timer_queue.h"

namespace penstock::inline v0::detail {

// What the user's reactor hears; the public reactors say what each means.
class StreamEvents {
 public:
  virtual void OnOpened() {}
  virtual void OnReadDone(bool /*ok*/) {}
  virtual void OnWriteDone(bool /*ok*/) {}
  virtual void OnWritesDoneDone(bool /*ok*/) {}
  virtual void OnDone(const CallResult& result) = 0;

 protected:
  ~StreamEvents() = default;
};

// How a stream ended, beside its result, for who may open another (S8).
struct StreamEnd {
  grpc::StatusCode code = grpc::StatusCode::OK;  // The server's or gRPC's, before the client put its own in its place.
  bool opened = false;
  // What Classify said, where it was asked; or that it threw or made no sense, and the stream ends with INTERNAL.
  bool retryable = false;
  bool faulty = false;
  std::optional<Duration> retry_after;
  TimePoint opened_at{};
};

class StreamCore : public CallCore {
 public:
  // What gRPC is given with StartWrite().
  struct Write {
    const void* message = nullptr;
    grpc::WriteOptions options;
    std::size_t bytes = 0;
  };
  // What was asked before the stream was opened.
  struct Prepared {
    void* read = nullptr;
    std::optional<Write> write;
    bool writes_done = false;
    std::size_t request_bytes = 0;  // Of a server stream.
    bool subscribed = false;        // It is one of a subscription's.
  };

  // Who is told of the stream, and what was asked for before it is opened. From then on all of the following may be called, from any
  // thread, while the user's reactor lives.
  void Take(StreamEvents& events, Prepared prepared) noexcept;

  // Opens the stream, after Take(). Runs none of the events; they may run on another thread before this returns. The caller's
  // reference stays his.
  void Begin(ClientState& state, const MethodInfo& method, CallOptions&& options) noexcept;

  StreamStart StartRead(void* message) noexcept;
  StreamStart StartWrite(Write write) noexcept;
  StreamStart StartWritesDone() noexcept;
  // False where no attempt runs. Until RemoveHold() the stream does not end.
  bool AddHold() noexcept;
  void RemoveHold() noexcept { GrpcRemoveHold(); }
  // As one of the reactions, with a hold.
  void Run(const char* name, const std::function<void()>& reaction) noexcept;

  // The headers of the stream; none before it has opened and after its end.
  const ServerMetadata& headers() const noexcept {
    static const ServerMetadata none;
    return context_ != nullptr && end_.opened ? context_->GetServerInitialMetadata() : none;
  }

  // While OnDone() runs.
  const StreamEnd& end() const noexcept { return end_; }

 protected:
  // kOneResponse: a client stream, whose one answer is read without being asked for.
  enum class Reads : bool { kAsAsked, kOneResponse };

  explicit StreamCore(Reads reads) noexcept : CallCore(Kind::kStream), reads_(reads), status_timer_(*this) { Renew(1); }
  ~StreamCore() = default;

  // gRPC's reactions.
  void HeadersArrived(bool ok) noexcept;
  void ReadEnded(bool ok) noexcept;
  void WriteEnded(bool ok) noexcept;
  void HalfCloseEnded(bool ok) noexcept;
  using CallCore::AttemptDone;

 private:
  // The status has not come with the read's failure.
  class StatusTimer final : public Timer {
   public:
    explicit StatusTimer(StreamCore& stream) : stream_(stream) {}
    void Fire() noexcept override;

   private:
    StreamCore& stream_;
  };
  // Typed code. Prepare() binds gRPC's reactor to a new RPC, which Start...() and the holds then act on.
  virtual void Prepare(void* async, const std::shared_ptr<grpc::Channel>& channel, grpc::ClientContext* context) = 0;
  virtual void GrpcStartCall() = 0;
  virtual void GrpcRead(void* message) = 0;  // Null: into a message of the library's own.
  virtual void GrpcWrite(const Write& write) = 0;
  virtual void GrpcWritesDone() = 0;
  virtual void GrpcAddHold() = 0;
  virtual void GrpcRemoveHold() = 0;
  virtual void TakeKept(void* message) = 0;  // Moves the library's own message into the user's.

  void StartAttempt(void* async, const std::shared_ptr<grpc::Channel>& channel, grpc::ClientContext* context,
                    bool further) final;
  void AttemptEndHere() noexcept final;
  void OnCancelling() noexcept final { DropKeptIfCancelled(); }
  grpc::Status OwnStatus(CancelReason reason) const noexcept final;
  void FinishHere() noexcept final;
  const char* ServerFault() const noexcept;

  // The reactions' parts.
  void TellOpened() noexcept;
  void TellOpened(std::unique_lock<std::mutex>& lock) noexcept;  // Without the lock meanwhile.
  void ReadEndedInOrder(std::unique_lock<std::mutex> lock, bool ok) noexcept;
  void NoMoreReads(std::unique_lock<std::mutex> lock) noexcept;
  void AwaitStatus() noexcept;
  void TellRead() noexcept;
  void TellKept() noexcept;
  void DropKeptIfCancelled() noexcept;

  // Runs one of the user's reactions; what it throws cancels the stream.
  template <class Reaction>
  void Tell(const char* name, Reaction reaction) noexcept;

  const Reads reads_;
  StreamEvents* events_ = nullptr;
  bool status_armed_ = false;
  bool subscribed_ = false;
  StreamEnd end_;
  StatusTimer status_timer_;

  // kOpening: OnOpened() runs; a read that ends meanwhile waits for it.
  enum class Opening : std::uint8_t { kNotYet, kOpening, kOpened };
  std::mutex mutex_;
  // All under mutex_:
  ReadSide read_;
  WriteSide write_;
  Opening opening_ = Opening::kNotYet;
  bool live_ = false;  // An attempt runs and its hold stands.
  bool written_ = false;
  std::optional<bool> read_meanwhile_;
  int responses_ = 0;
  std::size_t largest_write_ = 0;
  std::string thrown_;
  void* user_message_ = nullptr;    // Of the user's read.
  void* posted_message_ = nullptr;  // Of the read at gRPC; null: the library's own.
  Write user_write_;
};

}  // namespace penstock::inline v0::detail
