#include "health.h"

#include <chrono>
#include <utility>

#include "grpc/health/v1/health.grpc.pb.h"
#include "penstock/runtime/callback_thread.h"
#include "runtime/log.h"

namespace penstock::inline v0::detail {

namespace health = grpc::health::v1;

namespace {

// How long one check of a monitor may take, and the pause after one that failed.
constexpr Duration kCheckFor = std::chrono::seconds(10);
constexpr Duration kCheckAgain = std::chrono::seconds(1);

// The whole server has two names; this is the one that is looked up.
const std::string& OneNameOf(const std::string& name) {
  static const std::string& whole = *new std::string;
  return name == "readiness" ? whole : name;
}

}  // namespace

// One Watch. Sends the status at once and after each change; what changes while a write is under way is sent after it, the
// last value only. Monitors are asked by one thread at a time and without the lock: they are user code, and may come back here.
class HealthWatcher final : public ServerWriteReactor<health::HealthCheckResponse> {
 public:
  HealthWatcher(std::shared_ptr<HealthState> state, std::string name) : state_(std::move(state)), name_(std::move(name)) {
    state_->Add(*this);
    Update();
  }

  void Update() {
    {
      std::lock_guard lock(mutex_);
      changed_ = true;
      if (writing_ || asking_) return;  // OnWriteDone, and who asks, look again
      asking_ = true;
    }
    for (;;) {
      {
        std::lock_guard lock(mutex_);
        changed_ = false;
      }
      const std::optional<bool> serving = state_->Serving(name_);
      const auto status = !serving  ? health::HealthCheckResponse::SERVICE_UNKNOWN
                          : *serving ? health::HealthCheckResponse::SERVING
                                     : health::HealthCheckResponse::NOT_SERVING;
      std::lock_guard lock(mutex_);
      if (changed_) continue;
      asking_ = false;
      if (sent_ && *sent_ == status) return;
      sent_ = status;
      message_.set_status(status);
      writing_ = true;
      break;
    }
    StartWrite(&message_);  // refused when the call is ending: then there is nobody to tell
  }

 private:
  void OnWriteDone(bool ok) override {
    {
      std::lock_guard lock(mutex_);
      writing_ = false;
    }
    if (ok) Update();
  }

  void OnDone() override { state_->Remove(*this); }

  const std::shared_ptr<HealthState> state_;
  const std::string name_;
  std::mutex mutex_;
  bool writing_ = false;
  bool asking_ = false;
  bool changed_ = false;  // since who asks last began to
  std::optional<health::HealthCheckResponse::ServingStatus> sent_;
  health::HealthCheckResponse message_;
};

namespace {

class HealthService final : public Service<health::Health> {
 public:
  explicit HealthService(std::shared_ptr<HealthState> state) : state_(std::move(state)) {}

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context, const health::HealthCheckRequest* request,
                                  health::HealthCheckResponse* response) override {
    return Handle(context, [&]() -> grpc::Status {
      const std::optional<bool> serving = state_->Serving(request->service());
      if (!serving) return {grpc::StatusCode::NOT_FOUND, "no such service"};
      response->set_status(*serving ? health::HealthCheckResponse::SERVING : health::HealthCheckResponse::NOT_SERVING);
      return grpc::Status::OK;
    });
  }

  grpc::ServerWriteReactor<health::HealthCheckResponse>* Watch(grpc::CallbackServerContext* context,
                                                               const health::HealthCheckRequest* request) override {
    return Start<HealthWatcher>(context, state_, request->service());
  }

 private:
  const std::shared_ptr<HealthState> state_;
};

}  // namespace

std::unique_ptr<AnyService> MakeHealthService(std::shared_ptr<HealthState> state) {
  return std::make_unique<HealthService>(std::move(state));
}

// Waits a while before a monitor is checked again. Deletes itself as it fires.
class HealthState::Retry final : public Timer {
 public:
  Retry(std::shared_ptr<HealthState> state, std::shared_ptr<ReadinessMonitor> monitor)
      : state_(std::move(state)), monitor_(std::move(monitor)) {}

  void Fire() noexcept override {
    {
      std::lock_guard lock(state_->mutex_);
      state_->retries_.erase(this);
    }
    // A monitor is user code, which does not run on the loop thread.
    PostToCallbackThread([state = std::move(state_), monitor = std::move(monitor_)] { state->Check(monitor); });
    delete this;
  }

 private:
  std::shared_ptr<HealthState> state_;
  std::shared_ptr<ReadinessMonitor> monitor_;
};

HealthState::HealthState(std::shared_ptr<TimeSource> time, std::vector<std::string> services,
                         std::vector<std::shared_ptr<ReadinessMonitor>> readiness,
                         std::map<std::string, std::vector<std::shared_ptr<ReadinessMonitor>>> service_readiness)
    : time_(std::move(time)),
      services_(services.begin(), services.end()),
      readiness_(std::move(readiness)),
      service_readiness_(std::move(service_readiness)) {}

void HealthState::Start() {
  std::set<std::shared_ptr<ReadinessMonitor>> monitors(readiness_.begin(), readiness_.end());
  for (const auto& [name, of_service] : service_readiness_) monitors.insert(of_service.begin(), of_service.end());
  for (const auto& monitor : monitors) {
    PostToCallbackThread([self = shared_from_this(), monitor] { self->Check(monitor); });
  }
}

void HealthState::Check(const std::shared_ptr<ReadinessMonitor>& monitor) {
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return;
  }
  try {
    UserCodeScope in_user_code;
    monitor->Check(SaturatingAdd(time_->clock().Now(), kCheckFor),
                   [self = weak_from_this(), monitor](bool ready) {
                     if (const auto state = self.lock()) state->OnChecked(monitor, ready);
                   });
  } catch (...) {
    Log(LogSeverity::kError, "a readiness monitor threw; it is not asked again");
  }
}

void HealthState::OnChecked(const std::shared_ptr<ReadinessMonitor>& monitor, bool ready) {
  if (ready) {
    NotifyAll();
    return;
  }
  auto* retry = new Retry(shared_from_this(), monitor);
  {
    std::lock_guard lock(mutex_);
    if (stopped_) {
      delete retry;
      return;
    }
    retries_.insert(retry);
  }
  time_->Arm(*retry, SaturatingAdd(time_->clock().Now(), kCheckAgain));
}

void HealthState::Stop() noexcept {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  // Disarmed under the lock: one that is firing waits for it at its first line, and deletes itself only then.
  for (Retry* retry : std::exchange(retries_, {})) {
    if (time_->Disarm(*retry)) delete retry;
  }
}

bool HealthState::SetServing(const std::string& service, bool serving) {
  const std::string& name = OneNameOf(service);
  if (!name.empty() && !services_.contains(name)) return false;
  bool changed = false;
  {
    std::lock_guard lock(mutex_);
    changed = serving ? not_serving_.erase(name) != 0 : not_serving_.insert(name).second;
  }
  if (changed) NotifyAll();
  return true;
}

void HealthState::Drain() {
  {
    std::lock_guard lock(mutex_);
    if (draining_) return;
    draining_ = true;
  }
  NotifyAll();
}

std::optional<bool> HealthState::Serving(const std::string& service) const {
  // A monitor is asked without the lock held: it is user code.
  const auto all_ready = [](const std::vector<std::shared_ptr<ReadinessMonitor>>& monitors) {
    for (const auto& monitor : monitors) {
      if (!monitor->ready()) return false;
    }
    return true;
  };
  if (service == "liveness") return true;
  const std::string& name = OneNameOf(service);
  if (!name.empty() && !services_.contains(name)) return std::nullopt;
  {
    std::lock_guard lock(mutex_);
    if (draining_ || not_serving_.contains("") || not_serving_.contains(name)) return false;
  }
  if (!all_ready(readiness_)) return false;
  const auto own = service_readiness_.find(name);
  return own == service_readiness_.end() || all_ready(own->second);
}

void HealthState::Add(HealthWatcher& watcher) {
  std::lock_guard lock(mutex_);
  watchers_.insert(&watcher);
}

void HealthState::Remove(HealthWatcher& watcher) {
  std::lock_guard lock(mutex_);
  watchers_.erase(&watcher);
}

void HealthState::NotifyAll() {
  std::vector<std::pair<HealthWatcher*, CallHold>> held;
  {
    std::lock_guard lock(mutex_);
    held.reserve(watchers_.size());
    for (HealthWatcher* watcher : watchers_) {
      if (CallHold hold = watcher->Hold()) held.emplace_back(watcher, std::move(hold));
    }
  }
  for (auto& [watcher, hold] : held) watcher->Update();
}

}  // namespace penstock::inline v0::detail
