#include "penstock/server/server.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "penstock/runtime/callback_thread.h"
#include "runtime/loop.h"
#include "server_core.h"

namespace penstock::inline v0 {

namespace {

// The servers whose Run() runs, which share the process's one watch of signals.
class Running {
 public:
  explicit Running(std::shared_ptr<detail::ServerCore> core) : core_(std::move(core)) {
    std::lock_guard lock(State().mutex);
    State().cores.push_back(core_);
    {
      // Before the watch: a signal that comes as soon as its handler stands must reach this server.
      std::lock_guard told(State().told_mutex);
      State().told = State().cores;
    }
    if (State().cores.size() == 1) {
      State().watch = std::make_unique<detail::SignalWatch>([](int) {
        std::vector<std::shared_ptr<detail::ServerCore>> cores;
        {
          std::lock_guard told(State().told_mutex);
          cores = State().told;
        }
        for (const auto& core : cores) core->OnSignal();
      });
    }
  }

  ~Running() {
    std::lock_guard lock(State().mutex);
    std::erase(State().cores, core_);
    {
      std::lock_guard told(State().told_mutex);
      State().told = State().cores;
    }
    if (State().cores.empty()) State().watch.reset();
  }

  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  struct Shared {
    // Held while the watch is made and taken down, which waits for the loop thread.
    std::mutex mutex;
    std::vector<std::shared_ptr<detail::ServerCore>> cores;
    std::unique_ptr<detail::SignalWatch> watch;
    // The loop thread takes this one only.
    std::mutex told_mutex;
    std::vector<std::shared_ptr<detail::ServerCore>> told;
  };

  static Shared& State() {
    static Shared& shared = *new Shared;
    return shared;
  }

  std::shared_ptr<detail::ServerCore> core_;
};

}  // namespace

Result<std::unique_ptr<Server>> Server::Create(ServerSettings settings, std::vector<AnyService*> services) {
  auto core = detail::ServerCore::Create(std::move(settings), services);
  if (!core.ok()) return core.error();
  return std::unique_ptr<Server>(new Server(*std::move(core)));
}

Server::~Server() {
  if (core_->state() == ServerState::kStopped) return;
  core_->ShutdownNow();
  if (!OnCallbackThread()) core_->Wait();
}

int Server::port() const noexcept { return core_->port(); }
int Server::health_port() const noexcept { return core_->health_port(); }

int Server::Run() {
  if (OnCallbackThread()) return core_->Wait();  // refuses
  const Running running(core_);
  return core_->Wait();
}

void Server::Shutdown() { core_->Shutdown(); }
void Server::ShutdownNow() { core_->ShutdownNow(); }
int Server::Wait() { return core_->Wait(); }
ServerState Server::state() const noexcept { return core_->state(); }
ServerCounts Server::counts() const { return core_->counts(); }
bool Server::SetServing(const std::string& service, bool serving) { return core_->health().SetServing(service, serving); }

}  // namespace penstock::inline v0
