#include "penstock/client/detail/stream_core.h"

#include <algorithm>
#include <utility>

#include "client/attempt.h"
#include "client/client_state.h"
#include "client/stream_end.h"
#include "penstock/runtime/callback_thread.h"

namespace penstock::inline v0::detail {

// The opening.

void StreamCore::Take(StreamEvents& events, Prepared prepared) noexcept {
  events_ = &events;
  user_message_ = prepared.read;
  largest_write_ = prepared.request_bytes;
  subscribed_ = prepared.subscribed;
  if (prepared.read != nullptr && reads_ == Reads::kAsAsked) read_.Asked();
  if (prepared.write) {
    user_write_ = *prepared.write;
    largest_write_ = std::max(largest_write_, prepared.write->bytes);
    write_.Asked(prepared.write->options.is_last_message());
  }
  if (prepared.writes_done) write_.WritesDoneAsked();
}

void StreamCore::Begin(ClientState& state, const MethodInfo& method, CallOptions&& options) noexcept {
  AddReference();  // The driver's, until the end.
  std::size_t bytes = 0;
  {
    std::lock_guard lock(mutex_);
    bytes = largest_write_;
  }
  CallCore::Begin(state, method, std::move(options), bytes);
}

void StreamCore::StartAttempt(void* async, const std::shared_ptr<grpc::Channel>& channel, grpc::ClientContext* context,
                              bool further) {
  Prepare(async, channel, context);
  GrpcAddHold();  // Until a read fails.
  GrpcAddHold();  // Until this function has done its work.
  void* into = nullptr;
  bool write = false;
  bool half_close = false;
  Write message;
  {
    std::lock_guard lock(mutex_);
    if (further) {
      read_.AttemptFailed();
      write_.AttemptFailed();
    }
    live_ = true;
    opening_ = Opening::kNotYet;
    written_ = false;
    responses_ = 0;
    const bool wanted = reads_ == Reads::kOneResponse || read_.AttemptStarted();
    into = posted_message_ = wanted ? user_message_ : nullptr;
    write = write_.IssueWrite();
    half_close = !write && write_.IssueHalfClose();
    message = user_write_;
  }
  GrpcRead(into);
  if (write) GrpcWrite(message);
  if (half_close) GrpcWritesDone();
  GrpcStartCall();
  GrpcRemoveHold();
}

// The user's starts.

StreamStart StreamCore::StartRead(void* message) noexcept {
  ReadSide::OnAsk what;
  {
    std::lock_guard lock(mutex_);
    what = read_.Asked();
    if (what == ReadSide::OnAsk::kBusy) return StreamStart::kBusy;
    if (what == ReadSide::OnAsk::kEnded) return StreamStart::kEnded;
    user_message_ = message;
  }
  if (what == ReadSide::OnAsk::kHop) {
    AddReference();
    PostToCallbackThread([this] {
      TellKept();
      Release();
    });
  }
  return StreamStart::kStarted;
}

StreamStart StreamCore::StartWrite(Write write) noexcept {
  {
    std::lock_guard lock(mutex_);
    const StreamStart started = write_.Asked(write.options.is_last_message());
    if (started != StreamStart::kStarted) return started;
    user_write_ = write;
    largest_write_ = std::max(largest_write_, write.bytes);
    if (!live_ || !write_.IssueWrite()) return StreamStart::kStarted;
    GrpcAddHold();
  }
  GrpcWrite(write);
  GrpcRemoveHold();
  return StreamStart::kStarted;
}

StreamStart StreamCore::StartWritesDone() noexcept {
  {
    std::lock_guard lock(mutex_);
    const StreamStart started = write_.WritesDoneAsked();
    if (started != StreamStart::kStarted) return started;
    if (!live_ || !write_.IssueHalfClose()) return StreamStart::kStarted;
    GrpcAddHold();
  }
  GrpcWritesDone();
  GrpcRemoveHold();
  return StreamStart::kStarted;
}

bool StreamCore::AddHold() noexcept {
  std::lock_guard lock(mutex_);
  if (live_) GrpcAddHold();
  return live_;
}

// The end of an attempt.

void StreamCore::AttemptEndHere() noexcept {
  CancelReason cancelled = word_.reason();
  if (result_.status.ok() && !end_.opened) TellOpened();  // An empty stream.

  StreamFacts facts;
  facts.opened = end_.opened;
  std::size_t largest = 0;
  {
    std::lock_guard lock(mutex_);
    facts.sent = facts.opened || written_;
    largest = largest_write_;
    if (const char* fault = ServerFault()) {
      result_.status = {grpc::StatusCode::INTERNAL, fault};
      cancelled = CancelReason::kNone;
    }
  }
  // Nobody wanted the end: the status that came, however late, is what it was.
  if (cancelled == CancelReason::kServerFault) cancelled = CancelReason::kNone;
  const EndedAttempt end = ReadEnd(cancelled, largest);
  facts.attempt = end.facts;
  facts.sent = facts.sent || end.connection != nullptr;
  end_.code = end.facts.code;

  Reached reached = facts.opened ? Reached::kResponded : Reached::kNotSent;
  if (!facts.opened && facts.sent) {
    reached = std::max(Reached::kMaybeProcessed, ReachOf(*context_, result_.status, end.connection));
  }
  AttemptReport report = SettleEnd(end, JudgeStreamEnd(facts), reached);
  end_.retryable = report.classification.decision == Decision::kRetry;
  end_.faulty = report.faulty;
  end_.retry_after = report.classification.retry_after;

  if (facts.opened) {
    observation_.reset();
    // U2: nothing follows from here, but the attempt is one to retry. A subscription knows whether it has (S8).
    if (end_.retryable && !subscribed_) state_->budget().OnRetryable();
    EndReason reason = EndReason::kStopped;
    if (result_.status.ok()) {
      reason = EndReason::kAnswered;
    } else if (report.deadline_passed) {
      reason = EndReason::kExpired;
    } else if (report.cancelled) {
      reason = EndReason::kCancelled;
    }
    return End(reason, true);
  }
  // S2: once it may have reached a server, the opening is not tried again.
  if (facts.sent && end_.retryable) {
    if (report.takes_token) state_->budget().OnRetryable();
    report.classification.decision = Decision::kStop;
  }
  FollowHere(end, report);
}

const char* StreamCore::ServerFault() const noexcept {
  if (responses_ > 1) return "the server sent more than one response to a client stream";
  if (word_.reason() == CancelReason::kServerFault && result_.status.error_code() == grpc::StatusCode::CANCELLED) {
    return "a message of the server could not be parsed";
  }
  if (reads_ != Reads::kOneResponse) return nullptr;
  if (result_.status.ok() && responses_ == 0) return "the server ended a client stream with OK and no response";
  return nullptr;
}

grpc::Status StreamCore::OwnStatus(CancelReason reason) const noexcept {
  if (reason == CancelReason::kCaller && !thrown_.empty()) return {grpc::StatusCode::CANCELLED, thrown_};
  return CallCore::OwnStatus(reason);
}

}  // namespace penstock::inline v0::detail
