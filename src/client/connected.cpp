#include "client/connected.h"

#include <grpcpp/completion_queue.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <thread>
#include <utility>

#include "penstock/runtime/callback_thread.h"
#include "runtime/log.h"

namespace penstock::inline v0::detail {
namespace {

// gRPC tells of a channel's state only through a completion queue of the older kind, which needs a thread. One for the
// process, asleep but when something connects for the first time; never torn down (G7).
class StateWatch {
 public:
  static StateWatch& Get() {
    static StateWatch& watch = *new StateWatch;
    return watch;
  }

  // Calls `changed` once the channel's state is another than `last`, also as the channel is destroyed.
  void Await(grpc::Channel& channel, grpc_connectivity_state last, std::function<void()> changed) {
    channel.NotifyOnStateChange(last, gpr_inf_future(GPR_CLOCK_MONOTONIC), &queue_,
                                new std::function<void()>(std::move(changed)));
  }

 private:
  StateWatch() {
    std::thread([this] {
      void* tag = nullptr;
      bool ok = false;
      while (queue_.Next(&tag, &ok)) {
        const std::unique_ptr<std::function<void()>> changed(static_cast<std::function<void()>*>(tag));
        (*changed)();
      }
    }).detach();
  }

  grpc::CompletionQueue queue_;
};

void Tell(std::function<void(bool)> done, bool ready) {
  PostToCallbackThread([done = std::move(done), ready] {
    const UserCodeScope in_user_code;
    try {
      done(ready);
    } catch (const std::exception& exception) {
      Log(LogSeverity::kError, "client: a readiness check's function threw: {}", exception.what());
    } catch (...) {
      Log(LogSeverity::kError, "client: a readiness check's function threw something that is no std::exception");
    }
  });
}

}  // namespace

// One check that waits. In the list until it is told; its timer holds on to it and to the monitor while it is armed or
// fires.
struct ConnectedMonitor::Waiter final : Timer {
  explicit Waiter(std::function<void(bool)> function) : done(std::move(function)) {}

  void Fire() noexcept override {
    const std::shared_ptr<Waiter> alive = std::move(self);
    const std::shared_ptr<ConnectedMonitor> owner = std::move(monitor);
    owner->Expire(this);
  }

  std::function<void(bool)> done;
  std::shared_ptr<Waiter> self;
  std::shared_ptr<ConnectedMonitor> monitor;
};

ConnectedMonitor::ConnectedMonitor(std::vector<std::shared_ptr<grpc::Channel>> channels,
                                   std::shared_ptr<TimeSource> time)
    : time_(std::move(time)), channels_(std::move(channels)) {}

ConnectedMonitor::~ConnectedMonitor() = default;

void ConnectedMonitor::Start() {
  const std::lock_guard lock(mutex_);
  for (std::size_t place = 0; place < channels_.size(); ++place) {
    Watch(place, channels_[place]->GetState(/*try_to_connect=*/false));
  }
}

// Under the mutex.
void ConnectedMonitor::Watch(std::size_t place, grpc_connectivity_state last) {
  StateWatch::Get().Await(*channels_[place], last, [weak = weak_from_this(), place] {
    if (const std::shared_ptr<ConnectedMonitor> self = weak.lock()) self->OnChange(place);
  });
}

void ConnectedMonitor::OnChange(std::size_t place) {
  std::vector<std::shared_ptr<Waiter>> told;
  {
    const std::lock_guard lock(mutex_);
    if (closed_ || (ready_.load(std::memory_order_relaxed) && waiters_.empty())) return;
    // While somebody waits, a channel that has gone idle again is woken again.
    const grpc_connectivity_state state = channels_[place]->GetState(/*try_to_connect=*/!waiters_.empty());
    if (state != GRPC_CHANNEL_READY && !ready_.load(std::memory_order_relaxed)) return Watch(place, state);
    ready_.store(true, std::memory_order_release);
    told.swap(waiters_);
  }
  for (const std::shared_ptr<Waiter>& waiter : told) {
    if (time_->Disarm(*waiter)) {
      waiter->monitor.reset();
      waiter->self.reset();
    }
    Tell(std::move(waiter->done), true);
  }
}

bool ConnectedMonitor::ready() const noexcept {
  if (ready_.load(std::memory_order_acquire)) return true;
  // The watch may be a moment behind a call that has already been answered.
  const std::lock_guard lock(mutex_);
  if (closed_) return false;
  const bool is = std::any_of(channels_.begin(), channels_.end(), [](const auto& channel) {
    return channel->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY;
  });
  // release: see the member. Whoever waits is told by the watch.
  if (is) ready_.store(true, std::memory_order_release);
  return is;
}

void ConnectedMonitor::Check(TimePoint deadline, std::function<void(bool)> done) {
  {
    const std::lock_guard lock(mutex_);
    const bool known = closed_ || ready_.load(std::memory_order_relaxed);
    if (!known && deadline > time_->clock().Now()) {
      auto waiter = std::make_shared<Waiter>(std::move(done));
      waiter->self = waiter;
      waiter->monitor = shared_from_this();
      waiters_.push_back(waiter);
      // The first channel stands for all: one connection says that the dependency can be reached.
      channels_.front()->GetState(/*try_to_connect=*/true);
      // Under the mutex, so that whoever tells the waiter finds its timer armed.
      if (deadline != TimePoint::max()) {
        time_->Arm(*waiter, deadline);
      } else {
        waiter->monitor.reset();
        waiter->self.reset();
      }
      return;
    }
  }
  Tell(std::move(done), ready());
}

void ConnectedMonitor::Expire(Waiter* waiter) noexcept {
  std::shared_ptr<Waiter> expired;
  {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(waiters_.begin(), waiters_.end(), [&](const auto& held) { return held.get() == waiter; });
    if (found == waiters_.end()) return;  // Told already.
    expired = std::move(*found);
    waiters_.erase(found);
  }
  Tell(std::move(expired->done), false);
}

void ConnectedMonitor::Close() noexcept {
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  std::vector<std::shared_ptr<Waiter>> told;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    // release: pairs with the acquire in ready().
    ready_.store(false, std::memory_order_release);
    channels.swap(channels_);
    told.swap(waiters_);
  }
  for (const std::shared_ptr<Waiter>& waiter : told) {
    if (time_->Disarm(*waiter)) {
      waiter->monitor.reset();
      waiter->self.reset();
    }
    Tell(std::move(waiter->done), false);
  }
}

}  // namespace penstock::inline v0::detail
