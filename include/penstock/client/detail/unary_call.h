#pragma once

// The typed part of a unary call by callback, and what the blocking form needs.

#include <condition_variable>
#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "penstock/client/detail/call_memory.h"
#include "penstock/client/detail/call_messages.h"
#include "penstock/client/detail/unary_core.h"
#include "penstock/client/method.h"

namespace penstock::inline v0::detail {

template <class Method, class Callback>
class CallbackCall final : public UnaryCore {
 public:
  using Request = typename Method::Request;
  using Response = typename Method::Response;

  template <class Given>
  CallbackCall(const Method& method, Given&& request, Callback&& callback)
      : method_(method), messages_(Messages::Take()), callback_(std::move(callback)) {
    messages_->request = std::forward<Given>(request);
  }
  ~CallbackCall() { Messages::Give(messages_); }
  CallbackCall(const CallbackCall&) = delete;
  CallbackCall& operator=(const CallbackCall&) = delete;

  static void* operator new(std::size_t size) {
    static_assert(alignof(CallbackCall) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
    return TakeCallMemory(size);
  }
  static void operator delete(void* memory, std::size_t size) noexcept { GiveCallMemory(memory, size); }

  void Begin(ClientState& state, CallOptions&& options) noexcept {
    UnaryCore::Begin(state, *method_.info, std::move(options), BytesOf(messages_->request), kCallAndHandle);
  }

 private:
  using Messages = CallMessages<Request, Response>;
  static constexpr std::uint32_t kCallAndHandle = 2;

  void StartAttempt(void* async, const std::shared_ptr<grpc::Channel>&, grpc::ClientContext* context, bool further) override {
    if (further) messages_->response = Response();
    (static_cast<typename Method::Async*>(async)->*method_.start)(
        context, &messages_->request, &messages_->response, [this](grpc::Status status) { AttemptDone(std::move(status)); });
  }
  void Complete(const CallResult& result) override {
    // Moved out, so that what it holds goes with its run and not with the last handle.
    Callback callback = std::move(callback_);
    callback(result, messages_->response);
  }
  bool completes_unreferenced() const noexcept override { return false; }
  void Unreferenced() noexcept override { delete this; }

  const Method method_;
  Messages* const messages_;
  Callback callback_;
};

// True, with the result that says so, where a wait would block a callback thread.
bool RefusedToWait(CallResult& result);

class Waiter {
 public:
  void Done() {
    std::lock_guard lock(mutex_);
    done_ = true;
    // Under the mutex: the waiter is gone as soon as it gets it.
    condition_.notify_one();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    condition_.wait(lock, [this] { return done_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  bool done_ = false;
};

void CopyMetadata(const ServerMetadata* from, std::multimap<std::string, std::string>& to);

}  // namespace penstock::inline v0::detail
