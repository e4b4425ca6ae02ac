#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "penstock/testing/pods.h"

namespace penstock::inline v0::testing {

namespace {

class ServerPod final : public Pod {
 public:
  ServerPod(std::unique_ptr<Server> server, std::vector<std::shared_ptr<AnyService>> services)
      : services_(std::move(services)), server_(std::move(server)) {
    waiter_ = std::thread([this] {
      const int code = server_->Wait();
      std::lock_guard lock(mutex_);
      code_ = code;
      gone_.notify_all();
    });
  }

  ~ServerPod() override {
    server_->ShutdownNow();
    waiter_.join();
    if (code_ != 0) Keep(services_);
  }

  std::uint16_t port() const override { return static_cast<std::uint16_t>(server_->port()); }
  void Shutdown() override { server_->Shutdown(); }
  void Kill() override { server_->ShutdownNow(); }
  bool Freeze() override { return false; }
  bool Thaw() override { return false; }

  int Wait(Duration limit) override {
    std::unique_lock lock(mutex_);
    return gone_.wait_until(lock, SaturatingAdd(std::chrono::steady_clock::now(), limit), [this] { return code_ >= 0; }) ? code_ : -1;
  }

 private:
  // A handler that never finished may still use its service: kept to the process's end, within reach of leak checkers.
  static void Keep(const std::vector<std::shared_ptr<AnyService>>& services) {
    static std::mutex& mutex = *new std::mutex;
    static auto& kept = *new std::vector<std::shared_ptr<AnyService>>;
    std::lock_guard lock(mutex);
    kept.insert(kept.end(), services.begin(), services.end());
  }

  std::vector<std::shared_ptr<AnyService>> services_;
  std::unique_ptr<Server> server_;
  std::thread waiter_;
  std::mutex mutex_;
  std::condition_variable gone_;
  int code_ = -1;  // guarded by mutex_
};

}  // namespace

Result<std::unique_ptr<Pod>> MakeServerPod(ServerSettings settings, std::vector<std::shared_ptr<AnyService>> services) {
  if (settings.address.empty()) settings.address = "127.0.0.1:0";
  std::vector<AnyService*> plain;
  for (const std::shared_ptr<AnyService>& service : services) plain.push_back(service.get());
  Result<std::unique_ptr<Server>> server = Server::Create(std::move(settings), std::move(plain));
  if (!server.ok()) return server.error();
  return std::unique_ptr<Pod>(new ServerPod(*std::move(server), std::move(services)));
}

}  // namespace penstock::inline v0::testing
