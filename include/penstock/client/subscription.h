#pragma once

// A stream that outlives its server.
//
// A watch is meant to go on: when its pod is replaced it should be opened again on the next one, at once, without a storm
// of thousands when the dependency is down, and from where it left off. A Subscription does that for server and bidi
// streams; its user sees one sequence of messages.
//
//     auto watch = client.Subscribe(PENSTOCK_METHOD(ledger::v1::Ledger, WatchAccount), request,
//         {.on_message = [&](Account& account) { version = account.version(); Show(account); },
//          .before_reopen = [&](WatchAccountRequest& request) { request.set_after_version(version); },
//          .on_end = [](const penstock::CallResult& result) { Log(result.status); }});
//
// Threads: members of a Subscription on any thread, in the hooks too. The hooks run on gRPC's callback threads, one at a time
// (but for on_write_done, which may run beside on_open and on_message); on_end is the last, and they are destroyed after it.
// Ownership: the Subscription is a handle; destroying it cancels, does not wait, and on_end still comes. What the hooks refer
// to must live until then.
// Time: by the client's time source. Without a deadline in its options it goes on until it is cancelled.
// Errors: it is opened again after UNAVAILABLE, after CANCELLED by a server before it had opened, and where Classify says
// retry; every other end is its own end. What a hook throws ends it with CANCELLED and is told to the client's observer.

#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

#include "penstock/client/call.h"
#include "penstock/client/detail/stream_calls.h"
#include "penstock/client/detail/subscription_core.h"
#include "penstock/client/detail/unary_call.h"
#include "penstock/client/gap.h"
#include "penstock/client/method.h"
#include "penstock/client/stream.h"
#include "penstock/client/stream_start.h"

namespace penstock::inline v0 {

template <class Request, class Response>
struct SubscriptionHooks {
  // Each message, in order; may be moved from. Until it returns no further one is read.
  std::function<void(Response& message)> on_message = nullptr;
  // Before each opening after the first: may change the request, to go on after what was seen.
  std::function<void(Request& request)> before_reopen = nullptr;
  // A stream has ended and the next is to be opened: at the beginning of a gap (attempts 0), and for each further attempt in it.
  // kEnd ends the subscription with the stream's status.
  std::function<GapDecision(const Gap& gap)> on_gap = nullptr;
  // A stream has opened.
  std::function<void()> on_open = nullptr;
  // Of bidi subscriptions: a message (the request on each stream, then those of Write()) was given to the connection, or lost
  // with it.
  std::function<void(bool ok)> on_write_done = nullptr;
  // Once; the last of all.
  std::function<void(const CallResult& result)> on_end = nullptr;
};

struct SubscriptionOptions {
  // Of every stream; but deadline and timeout bound the whole subscription, and max_attempts is not used: opening again is the
  // subscription's.
  CallOptions call = {};
  // How long a gap may last before the subscription ends with the status of the last attempt; above 0. Default: for ever.
  Duration give_up_after = Duration::max();
};

class Subscription {
 public:
  Subscription() = default;
  Subscription(Subscription&& other) noexcept : core_(std::exchange(other.core_, nullptr)) {}
  Subscription& operator=(Subscription&& other) noexcept {
    std::swap(core_, other.core_);
    return *this;
  }
  // Cancels.
  ~Subscription() {
    if (core_ == nullptr) return;
    core_->Cancel(detail::CancelReason::kCaller);
    core_->Release();
  }

  // Ends it soon with CANCELLED.
  void Cancel() noexcept {
    if (core_ != nullptr) core_->Cancel(detail::CancelReason::kCaller);
  }

  // From the return on no delivery begins until Resume(); one that has begun goes on. What the server sends meanwhile waits: two
  // messages at most here, the rest by flow control. A stream that ends while a message waits is opened again only after
  // it was delivered: the gap begins then. The deadline counts in a pause as well.
  void Pause() noexcept {
    if (core_ != nullptr) core_->Pause();
  }
  void Resume() noexcept {
    if (core_ != nullptr) core_->Resume();
  }

  explicit Subscription(detail::SubscriptionCore* adopted) noexcept : core_(adopted) {}

 protected:
  // Null where it was default-constructed or moved from.
  detail::SubscriptionCore* core() const noexcept { return core_; }

 private:
  detail::SubscriptionCore* core_ = nullptr;
};

namespace detail {

template <class Method>
class TypedSubscription : public SubscriptionCore {
 public:
  using Request = typename Method::Request;
  using Response = typename Method::Response;
  using Hooks = SubscriptionHooks<Request, Response>;

  TypedSubscription(const Method& method, Request&& request, Hooks&& hooks)
      : hooks_(std::move(hooks)), request_(std::move(request)), method_(method) {}

 protected:
  virtual ~TypedSubscription() = default;

  void* Message() noexcept final { return &message_; }
  void TellMessage() final {
    if (hooks_.on_message) hooks_.on_message(message_);
  }
  void TellOpen() final {
    if (hooks_.on_open) hooks_.on_open();
  }
  void TellReopen() final {
    if (hooks_.before_reopen) hooks_.before_reopen(request_);
  }
  GapDecision TellGap(const Gap& gap) final { return hooks_.on_gap ? hooks_.on_gap(gap) : GapDecision::kGoOn; }
  void TellEnd(const CallResult& result) final {
    if (hooks_.on_end) hooks_.on_end(result);
  }
  void DropHooks() noexcept final { hooks_ = Hooks(); }
  void Unreferenced() noexcept final { delete this; }

  Hooks hooks_;
  Request request_;
  Response message_;
  const Method method_;
};

template <class Method>
class ServerStreamSubscription final : public TypedSubscription<Method> {
 public:
  using TypedSubscription<Method>::TypedSubscription;

 private:
  StreamCore* MakeStream() override { return new ServerStreamCall<Method>(this->method_, this->request_); }
  void Prepare(StreamCore::Prepared& prepared) override { prepared.request_bytes = BytesOf(this->request_); }
  void TellWritten(bool) override {}
};

// One message is written at a time: the request with each opening, then the user's.
template <class Method>
class BidiSubscriptionCall final : public TypedSubscription<Method> {
 public:
  using TypedSubscription<Method>::TypedSubscription;

  StreamStart Write(typename Method::Request&& message) {
    StreamCore::Write write{&written_, {}, BytesOf(message)};
    if (write.bytes > kLongestMessage) return StreamStart::kTooLarge;
    StreamCore* stream = nullptr;
    std::uint64_t number = 0;
    {
      std::lock_guard lock(write_mutex_);
      stream = this->Stream();
      if (stream == nullptr) return StreamStart::kNotOpen;
      if (std::exchange(writing_, true)) {
        stream->Release();
        return StreamStart::kBusy;
      }
      written_ = std::move(message);
      number = streams_;
    }
    const StreamStart started = stream->StartWrite(write);
    stream->Release();
    if (started != StreamStart::kStarted) {
      std::lock_guard lock(write_mutex_);
      // Where the next stream has been opened meanwhile, it is that one's write which is under way.
      if (number == streams_) writing_ = false;
    }
    return started;
  }

 private:
  StreamCore* MakeStream() override { return new BidiCall<Method>(this->method_); }
  void Prepare(StreamCore::Prepared& prepared) override {
    {
      std::lock_guard lock(write_mutex_);
      writing_ = true;
      ++streams_;
    }
    prepared.write = StreamCore::Write{&this->request_, {}, BytesOf(this->request_)};
  }
  void TellWritten(bool ok) override {
    {
      std::lock_guard lock(write_mutex_);
      writing_ = false;
    }
    if (this->hooks_.on_write_done) this->hooks_.on_write_done(ok);
  }

  std::mutex write_mutex_;  // Never held while gRPC or the user is called.
  bool writing_ = false;
  std::uint64_t streams_ = 0;  // Opened, or about to be.
  typename Method::Request written_;
};

}  // namespace detail

// Of a bidi stream: the request is the first message of each of its streams.
template <class Method>
class BidiSubscription : public Subscription {
 public:
  BidiSubscription() = default;
  explicit BidiSubscription(detail::BidiSubscriptionCall<Method>* adopted) noexcept : Subscription(adopted) {}

  // Writes a further message on the stream that is open now; on_write_done follows. Refused while one is under way (kBusy; the
  // request is the first of each stream, and may still be in on_open), between two streams (kNotOpen, kEnded), and where there is
  // no subscription (kNotOpen).
  [[nodiscard]] StreamStart Write(typename Method::Request message) {
    if (core() == nullptr) return StreamStart::kNotOpen;
    return static_cast<detail::BidiSubscriptionCall<Method>*>(core())->Write(std::move(message));
  }
};

}  // namespace penstock::inline v0
