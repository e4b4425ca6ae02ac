#include "client/connected.h"

#include <grpcpp/completion_queue.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <thread>
#include <utility>

#include "client/user_code.h"
#include "penstock/runtime/callback_thread.h"
#include "runtime/log.h"

namespace penstock::inline v0::detail {
namespace {

// How long a watch lasts that nothing ends; it is begun again while somebody waits.
constexpr auto kWatchFor = std::chrono::milliseconds(500);

// gRPC tells of a channel's state only through a completion queue of the older kind, which needs a thread. One for the
// process, never torn down (G7), and in the queue only while something is watched: a thread that waits in such a queue takes its turn
// at reading the sockets of the whole process, and hands every answer on to another thread (seen: seven times the context
// switches and half as much CPU again for a call).
class StateWatch {
 public:
  static StateWatch& Get() {
    static StateWatch& watch = *new StateWatch;
    return watch;
  }

  // Calls `changed` once the channel's state is another than `last`, after kWatchFor, or as the channel is destroyed.
  void Await(grpc::Channel& channel, grpc_connectivity_state last, std::function<void()> changed) {
    {
      const std::lock_guard lock(mutex_);
      ++watches_;
    }
    some_.notify_one();
    channel.NotifyOnStateChange(last, std::chrono::system_clock::now() + kWatchFor, &queue_,
                                new std::function<void()>(std::move(changed)));
  }

 private:
  StateWatch() {
    std::thread([this] {
      for (;;) {
        {
          std::unique_lock lock(mutex_);
          some_.wait(lock, [this] { return watches_ > 0; });
        }
        void* tag = nullptr;
        bool ok = false;
        if (!queue_.Next(&tag, &ok)) return;
        const std::unique_ptr<std::function<void()>> changed(static_cast<std::function<void()>*>(tag));
        (*changed)();
        const std::lock_guard lock(mutex_);
        --watches_;
      }
    }).detach();
  }

  grpc::CompletionQueue queue_;
  std::mutex mutex_;
  std::condition_variable some_;
  std::size_t watches_ = 0;  // Under mutex_: begun, and not told of.
};

void Tell(std::function<void(bool)> done, bool ready) {
  PostToCallbackThread([done = std::move(done), ready] {
    auto tell = [&] { done(ready); };
    const std::string thrown = RunUserCode("a readiness check's function", tell);
    if (!thrown.empty()) Log(LogSeverity::kError, "client: {}", thrown);
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

ConnectedMonitor::ConnectedMonitor(std::string dependency, std::vector<std::shared_ptr<grpc::Channel>> channels,
                                   std::shared_ptr<TimeSource> time)
    : dependency_(std::move(dependency)), time_(std::move(time)), channels_(std::move(channels)), watched_(channels_.size()) {}

ConnectedMonitor::~ConnectedMonitor() = default;

// Under the mutex.
void ConnectedMonitor::Watch(std::size_t place, grpc_connectivity_state last) {
  watched_[place] = true;
  StateWatch::Get().Await(*channels_[place], last, [weak = weak_from_this(), place] {
    if (const std::shared_ptr<ConnectedMonitor> self = weak.lock()) self->OnChange(place);
  });
}

// Under the mutex. The channels' states; one that is ready is known for good.
std::vector<grpc_connectivity_state> ConnectedMonitor::Look() const {
  std::vector<grpc_connectivity_state> states;
  for (const auto& channel : channels_) {
    states.push_back(channel->GetState(/*try_to_connect=*/false));
    // release: see the member.
    if (states.back() == GRPC_CHANNEL_READY) ready_.store(true, std::memory_order_release);
  }
  return states;
}

void ConnectedMonitor::OnChange(std::size_t place) {
  {
    const std::lock_guard lock(mutex_);
    watched_[place] = false;
    if (closed_ || waiters_.empty()) return;
    // While somebody waits, a channel that has gone idle again is woken again.
    const grpc_connectivity_state state = channels_[place]->GetState(/*try_to_connect=*/true);
    if (state != GRPC_CHANNEL_READY && !ready_.load(std::memory_order_relaxed)) return Watch(place, state);
  }
  Latch();
}

void ConnectedMonitor::Latch() noexcept {
  std::vector<std::shared_ptr<Waiter>> told;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
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
  // The call whose connection it is may not have been answered yet.
  const std::lock_guard lock(mutex_);
  if (!closed_) Look();
  return ready_.load(std::memory_order_relaxed);
}

void ConnectedMonitor::Check(TimePoint deadline, std::function<void(bool)> done) {
  {
    const std::lock_guard lock(mutex_);
    const std::vector<grpc_connectivity_state> states = Look();
    const bool known = closed_ || ready_.load(std::memory_order_relaxed);
    if (!known && deadline > time_->clock().Now()) {
      auto waiter = std::make_shared<Waiter>(std::move(done));
      waiter->self = waiter;
      waiter->monitor = shared_from_this();
      waiters_.push_back(waiter);
      // The first channel stands for all: one connection says that the dependency can be reached.
      channels_.front()->GetState(/*try_to_connect=*/true);
      for (std::size_t place = 0; place < channels_.size(); ++place) {
        if (!watched_[place]) Watch(place, states[place]);
      }
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
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(waiters_.begin(), waiters_.end(), [&](const auto& held) { return held.get() == waiter; });
    if (found == waiters_.end()) return;  // Told already.
    expired = std::move(*found);
    waiters_.erase(found);
    first = !std::exchange(expired_before_, true);
  }
  if (first) {
    // Here and not on the loop's thread, which the user's log must not hold up.
    PostToCallbackThread([self = shared_from_this()] {
      Log(LogSeverity::kWarning,
          "client: {} was not connected by the end of a readiness check. gRPC tells why to calls only (make one with CallAndWait) "
          "and to its own log (GRPC_VERBOSITY=info)",
          self->dependency_);
    });
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
