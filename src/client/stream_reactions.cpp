#include "penstock/client/detail/stream_core.h"

#include <utility>

#include "client/client_state.h"
#include "client/user_code.h"

// What gRPC reports of a stream, and what the user hears of it.

namespace penstock::inline v0::detail {

namespace {

// How long the status may stay out once a read has failed on an open stream. It comes with the failure, unless the read failed
// because its message could not be parsed: gRPC leaves such a stream open.
constexpr Duration kStatusPatience = std::chrono::seconds(5);

}  // namespace

template <class Reaction>
void StreamCore::Tell(const char* name, Reaction reaction) noexcept {
  std::string thrown = RunUserCode(name, reaction);
  if (thrown.empty()) [[likely]] return;
  state_->ReportFault(method_->info->path, thrown);
  {
    std::lock_guard lock(mutex_);
    if (thrown_.empty()) thrown_ = std::move(thrown);
  }
  Cancel(CancelReason::kCaller);
}

void StreamCore::Run(const char* name, const std::function<void()>& reaction) noexcept { Tell(name, reaction); }

void StreamCore::HeadersArrived(bool ok) noexcept {
  if (!ok) return;
  std::unique_lock lock(mutex_);
  if (opening_ != Opening::kNotYet) return;
  TellOpened(lock);
  if (const std::optional<bool> read = std::exchange(read_meanwhile_, std::nullopt)) {
    ReadEndedInOrder(std::move(lock), *read);
  } else if (!live_) {
    lock.unlock();
    AwaitStatus();
  }
}

void StreamCore::ReadEnded(bool ok) noexcept {
  std::unique_lock lock(mutex_);
  if (opening_ == Opening::kOpening) {
    read_meanwhile_ = ok;
    return;
  }
  if (ok && opening_ == Opening::kNotYet) TellOpened(lock);
  ReadEndedInOrder(std::move(lock), ok);
}

void StreamCore::TellOpened(std::unique_lock<std::mutex>& lock) noexcept {
  opening_ = Opening::kOpening;
  lock.unlock();
  TellOpened();
  lock.lock();
  opening_ = Opening::kOpened;
}

void StreamCore::TellOpened() noexcept {
  end_.opened = true;
  end_.opened_at = state_->clock().Now();
  // S6: a probe has proved itself; it does not wait for the stream's end.
  if (ticket_.held() && ticket_.is_probe()) state_->Settle(ticket_, Outcome::kSuccess, observation_.get());
  state_->broken_connections().Ended(broken_attempt_, *context_);
  state_->budget().OnSuccess();
  state_->NoteConnected();
  if (sampled()) state_->NoteConnection(*context_);
  Decided(RetryDecision::kSucceeded);
  (void)context_->GetServerInitialMetadata();  // gRPC fills its map when it is first asked, without a lock: not by two reactions at once.
  Tell("OnOpened", [this] { events_->OnOpened(); });
}

void StreamCore::ReadEndedInOrder(std::unique_lock<std::mutex> lock, bool ok) noexcept {
  if (!ok) return NoMoreReads(std::move(lock));
  if (reads_ == Reads::kOneResponse) {
    const bool surplus = ++responses_ > 1;
    lock.unlock();
    // A server may answer once; what it sends more must not keep the stream open.
    if (surplus) Cancel(CancelReason::kServerFault);
    return GrpcRead(nullptr);
  }
  const ReadSide::OnArrival what = read_.Arrived();
  // From here on a next read may be asked for, and is into another message.
  void* const into = posted_message_ == nullptr ? user_message_ : nullptr;
  lock.unlock();
  if (what == ReadSide::OnArrival::kKeep) return DropKeptIfCancelled();
  if (into != nullptr) TakeKept(into);
  TellRead();
}

void StreamCore::NoMoreReads(std::unique_lock<std::mutex> lock) noexcept {
  live_ = false;
  // Before the opening it is not known yet whether the user has to hear of it (S2).
  const bool opened = opening_ == Opening::kOpened;
  const bool tell = opened && read_.Ended();
  lock.unlock();
  if (tell) Tell("OnReadDone", [this] { events_->OnReadDone(false); });
  // After what the user takes his time for: until the hold is let go of, the status could not be told.
  if (opened) AwaitStatus();
  GrpcRemoveHold();
}

void StreamCore::AwaitStatus() noexcept {
  AddReference();  // The timer's.
  status_armed_ = true;
  state_->time().Arm(status_timer_, SaturatingAdd(state_->clock().Now(), kStatusPatience));
}

void StreamCore::TellRead() noexcept {
  Tell("OnReadDone", [this] { events_->OnReadDone(true); });
  void* into = nullptr;
  {
    std::lock_guard lock(mutex_);
    into = posted_message_ = read_.Told() ? user_message_ : nullptr;
  }
  // In a reaction, or in a hop while nothing is read and so the hold stands.
  GrpcRead(into);
}

void StreamCore::TellKept() noexcept {
  void* into = nullptr;
  {
    std::lock_guard lock(mutex_);
    read_.Hopped();
    into = user_message_;
  }
  TakeKept(into);
  TellRead();
}

void StreamCore::DropKeptIfCancelled() noexcept {
  if (word_.reason() == CancelReason::kNone) return;
  {
    std::lock_guard lock(mutex_);
    if (!read_.Drop()) return;
    posted_message_ = nullptr;
  }
  GrpcRead(nullptr);
}

void StreamCore::WriteEnded(bool ok) noexcept {
  bool tell = false;
  bool half_close = false;
  {
    std::lock_guard lock(mutex_);
    written_ = written_ || ok;
    tell = write_.Written(ok, opening_ != Opening::kNotYet);
    half_close = live_ && write_.IssueHalfClose();
  }
  if (half_close) GrpcWritesDone();
  if (tell) Tell("OnWriteDone", [&] { events_->OnWriteDone(ok); });
}

void StreamCore::HalfCloseEnded(bool ok) noexcept {
  bool tell = false;
  {
    std::lock_guard lock(mutex_);
    written_ = written_ || ok;
    tell = write_.HalfClosed(ok, opening_ != Opening::kNotYet);
  }
  if (tell) Tell("OnWritesDoneDone", [&] { events_->OnWritesDoneDone(ok); });
}

void StreamCore::StatusTimer::Fire() noexcept {
  StreamCore& stream = stream_;
  stream.Cancel(CancelReason::kServerFault);
  stream.Release();
}

// Its end.

void StreamCore::FinishHere() noexcept {
  const std::uint32_t shard = Conclude();
  if (end_.opened) result_.reached = Reached::kResponded;
  if (status_armed_ && state_->time().Disarm(status_timer_)) DropReference();

  bool read = false;
  WriteSide::Untold untold;
  {
    std::lock_guard lock(mutex_);
    read = read_.Ended();
    untold = write_.Ended();
  }
  if (read) Tell("OnReadDone", [this] { events_->OnReadDone(false); });
  if (untold.write) Tell("OnWriteDone", [this] { events_->OnWriteDone(false); });
  if (untold.half_close) Tell("OnWritesDoneDone", [this] { events_->OnWritesDoneDone(false); });

  Tell("OnDone", [this] { events_->OnDone(result_); });
  Completed(shard);
}

}  // namespace penstock::inline v0::detail
