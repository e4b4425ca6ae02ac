// The shutdown's thread: it waits for events and does what the plan says.

#include <fmt/format.h>

#include <chrono>
#include <initializer_list>
#include <system_error>
#include <thread>
#include <utility>

#include "penstock/runtime/callback_thread.h"
#include "runtime/grpc_quirks.h"
#include "runtime/log.h"
#include "server_core.h"

namespace penstock::inline v0::detail {

namespace {

constexpr std::chrono::milliseconds kTick(10);
// Calls that arrive this long after the drain are no latecomers: new connections still reach this server.
constexpr Duration kLatecomers = std::chrono::seconds(1);

TimePoint RealNow() { return SteadyClock().Now(); }

ServerState StateOf(ShutdownPlan::State state) noexcept {
  switch (state) {
    case ShutdownPlan::State::kServing: return ServerState::kServing;
    case ShutdownPlan::State::kDraining: return ServerState::kDraining;
    case ShutdownPlan::State::kAnnouncing:
    case ShutdownPlan::State::kEmptying:
    case ShutdownPlan::State::kLingering:
    case ShutdownPlan::State::kExpiring:
    case ShutdownPlan::State::kStopping: return ServerState::kLeaving;
    case ShutdownPlan::State::kStopped: return ServerState::kStopped;
  }
  return ServerState::kStopped;
}

}  // namespace

// Posts an event once. Held by the driver, and by itself while it is armed or firing.
class ServerCore::Timeout final : public Timer {
 public:
  Timeout(std::shared_ptr<ServerCore> core, std::uint32_t event) : core_(std::move(core)), event_(event) {}

  static std::shared_ptr<Timeout> Start(std::shared_ptr<ServerCore> core, Duration after, std::uint32_t event) {
    TimeSource& time = core->time();
    auto timeout = std::make_shared<Timeout>(std::move(core), event);
    timeout->self_ = timeout;
    time.Arm(*timeout, SaturatingAdd(time.clock().Now(), after));
    return timeout;
  }

  void Stop() noexcept {
    if (core_->time().Disarm(*this)) self_.reset();
  }

  void Fire() noexcept override {
    const std::shared_ptr<Timeout> self = std::move(self_);
    core_->Post(event_);
  }

 private:
  const std::shared_ptr<ServerCore> core_;
  const std::uint32_t event_;
  std::shared_ptr<Timeout> self_;
};

void ServerCore::StartTimer(std::shared_ptr<Timeout>& timer, Duration after, std::uint32_t event) {
  if (after <= Duration::zero()) {
    Post(event);
  } else {
    timer = Timeout::Start(shared_from_this(), after, event);
  }
}

void ServerCore::Post(std::uint32_t event) noexcept {
  std::lock_guard lock(mutex_);
  events_ |= event;
  wake_.notify_one();
}

void ServerCore::Shutdown() { Post(kBegin); }
void ServerCore::ShutdownNow() { Post(kBegin | kExpired); }

void ServerCore::OnSignal() {
  if (signals_.fetch_add(1, std::memory_order_relaxed) == 0) {
    Shutdown();
  } else {
    ShutdownNow();
  }
}

int ServerCore::Wait() {
  if (OnCallbackThread()) {
    Log(LogSeverity::kError, "Wait() and Run() block, and are not for callback threads");
    return -1;
  }
  std::unique_lock lock(mutex_);
  stopped_changed_.wait(lock, [&] { return exit_code_.has_value(); });
  return *exit_code_;
}

void ServerCore::Drive() noexcept {
  for (;;) {
    std::uint32_t events = 0;
    {
      std::unique_lock lock(mutex_);
      const auto something = [&] { return events_ != 0; };
      if (plan_.ticking()) {
        wake_.wait_for(lock, kTick, something);
      } else {
        wake_.wait(lock, something);
      }
      events = std::exchange(events_, 0);
    }
    if ((events & kBegin) != 0) Act(plan_.Begin());
    if ((events & kDrainOver) != 0) Act(plan_.DrainOver(RealNow()));
    if ((events & kExpired) != 0) Act(plan_.Expire(RealNow()));
    if ((events & kDown) != 0) plan_.Stopped();
    if (plan_.ticking()) {
      const TimePoint now = RealNow();
      const std::uint64_t started = Started();
      NoteArrivals(now, started);
      const bool counted = plan_.state() == ShutdownPlan::State::kEmptying || plan_.state() == ShutdownPlan::State::kLingering;
      Act(plan_.Tick({now, counted ? ServerConnections(channelz_id_) : std::nullopt, Sum(&MethodState::InFlight),
                      Sum(&MethodState::Unanswered), started}));
    }
    state_.store(StateOf(plan_.state()), std::memory_order_release);
    if (plan_.state() != ShutdownPlan::State::kStopped) continue;

    for (const auto& timer : {std::exchange(drain_timer_, nullptr), std::exchange(grace_timer_, nullptr)}) {
      if (timer) timer->Stop();
    }
    std::lock_guard lock(mutex_);
    exit_code_ = plan_.abandoned() ? 1 : 0;
    stopped_changed_.notify_all();
    return;
  }
}

void ServerCore::Act(const ShutdownActions& actions) {
  // First, so that whoever sees an action's effect (NOT_SERVING, GOAWAY) finds the state that goes with it.
  state_.store(StateOf(plan_.state()), std::memory_order_release);
  if (actions.start_drain) {
    health_->Drain();
    StartTimer(drain_timer_, settings_.drain, kDrainOver);
  }
  if (actions.start_grace) {
    leaving_since_ = RealNow();
    StartTimer(grace_timer_, settings_.grace, kExpired);
  }
  if (actions.stop_listening) StopListening();
  if (actions.send_goaways) {
    bool send = false;
    {
      std::lock_guard lock(mutex_);
      send = goaways_pending_ == 0;  // the alarm of the last tick may not have run on a busy machine
      if (send) ++goaways_pending_;
    }
    if (send) {
      SendGoaways(*server_, [self = shared_from_this()] {
        std::lock_guard lock(self->mutex_);
        --self->goaways_pending_;
        self->wake_.notify_one();
      });
    }
  }
  if (actions.end_streams) {
    // Runs user code (OnShutdown), so on a callback thread.
    PostToCallbackThread([self = shared_from_this()] { self->registry_.ShutDownAll(); });
  }
  if (actions.stop) TakeDown();
  if (actions.abandon) {
    Log(LogSeverity::kError, "shutdown: gave up on handlers that never finished: {}. Exit now; they may still run.",
        Names(&MethodState::InFlight));
  }
}

// Calls that still arrive well after the drain say that its premise does not hold (V3): told once.
void ServerCore::NoteArrivals(TimePoint now, std::uint64_t started) {
  if (told_arrivals_ || plan_.state() != ShutdownPlan::State::kEmptying) return;
  if (arrivals_noted_at_ == TimePoint{}) {
    if (now - leaving_since_ < kLatecomers) return;
    arrivals_noted_at_ = now;
    started_then_ = started;
    return;
  }
  if (started == started_then_) return;
  told_arrivals_ = true;
  Log(LogSeverity::kWarning,
      "shutdown: calls still arrive {} ms after the drain. New connections still reach this server (its endpoint is still "
      "listed, or nothing else serves), so clients that return may lose calls when the grace ends.",
      std::chrono::duration_cast<std::chrono::milliseconds>(now - leaving_since_).count());
}

void ServerCore::StopListening() {
  stop_first_queue_ = grpc_completion_queue_create_for_next(nullptr);
  grpc_server_shutdown_and_notify(server_->c_server(), stop_first_queue_, this);
}

void ServerCore::TakeDown() {
  if (plan_.abandoned()) {
    Log(LogSeverity::kError, "shutdown: the grace is over; cancelled: {}", Names(&MethodState::Unanswered));
  }
  health_->Stop();
  // Shutdown() waits for every reactor, however long that takes: not on this thread.
  const auto come_down = [self = shared_from_this()] {
    grpc_completion_queue* queue = self->stop_first_queue_;
    if (queue != nullptr) grpc_server_cancel_all_calls(self->server_->c_server());
    self->server_->Shutdown(std::chrono::system_clock::now());
    if (self->health_server_) self->health_server_->Shutdown(std::chrono::system_clock::now());
    if (queue != nullptr) {
      grpc_completion_queue_next(queue, gpr_inf_future(GPR_CLOCK_REALTIME), nullptr);
      grpc_completion_queue_shutdown(queue);
      while (grpc_completion_queue_next(queue, gpr_inf_future(GPR_CLOCK_REALTIME), nullptr).type != GRPC_QUEUE_SHUTDOWN) {
      }
      grpc_completion_queue_destroy(queue);
    }
    self->Post(kDown);
  };
  try {
    std::thread(come_down).detach();
  } catch (const std::system_error&) {
    come_down();  // no thread to be had: without a watchdog, then
  }
}

}  // namespace penstock::inline v0::detail
