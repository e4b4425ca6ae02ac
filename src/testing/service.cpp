#include <mutex>
#include <utility>

#include "penstock/testing/pods.h"
#include "penstock/testing/resolver.h"

namespace penstock::inline v0::testing {

namespace {

constexpr char kName[] = "pods.penstock.test";

// Pods of a headless service stand at 127.0.0.11, 127.0.0.12, …
constexpr std::size_t kFirstHost = 11;
constexpr std::size_t kMostHosts = 240;

std::string Host(std::size_t index) { return "127.0.0." + std::to_string(kFirstHost + index); }

}  // namespace

class Service::Impl {
 public:
  explicit Impl(ServiceSettings settings) : settings_(std::move(settings)) {}

  // The reason when it fails.
  std::string Begin() {
    if (!settings_.make_pod) return "service: make_pod is empty";
    settings_.router.targets.clear();
    settings_.router.port = 0;
    if (settings_.headless) {
      auto resolver = Resolver::Create();
      if (!resolver.ok()) return resolver.error().message();
      resolver_ = *std::move(resolver);
      resolver_->Set(kName, {});
    } else {
      settings_.router.host = "127.0.0.1";
      auto router = Router::Create(settings_.router);
      if (!router.ok()) return router.error().message();
      routers_.push_back(*std::move(router));
    }
    for (std::size_t i = 0; i < settings_.pods; ++i) {
      auto started = Start();
      if (!started.ok()) return started.error().message();
    }
    return {};
  }

  std::string address() const {
    std::lock_guard lock(mutex_);
    if (!settings_.headless) return routers_.front()->address();
    return std::string(kName) + ":" + std::to_string(routers_.empty() ? 0 : routers_.front()->port());
  }
  std::string name_server() const { return resolver_ == nullptr ? "" : resolver_->address(); }

  std::size_t size() const {
    std::lock_guard lock(mutex_);
    return pods_.size();
  }
  Pod& pod(std::size_t index) {
    std::lock_guard lock(mutex_);
    return *pods_.at(index).pod;
  }
  Router& router(std::size_t index) {
    std::lock_guard lock(mutex_);
    return *routers_.at(settings_.headless ? index : 0);
  }
  std::vector<std::size_t> ready() const {
    std::lock_guard lock(mutex_);
    return Ready();
  }

  Result<std::size_t> Start() {
    const std::size_t index = size();
    if (settings_.headless && index >= kMostHosts) return Error("service: no loopback address is left for another pod");
    auto made = settings_.make_pod(index);
    if (!made.ok()) return made.error();
    std::unique_ptr<Router> own;
    if (settings_.headless) {
      RouterSettings settings = settings_.router;
      settings.host = Host(index);
      settings.port = index == 0 ? std::uint16_t{0} : router(0).port();
      settings.targets = {(*made)->port()};
      auto router = Router::Create(std::move(settings));
      if (!router.ok()) return router.error();
      own = *std::move(router);
    }
    std::lock_guard lock(mutex_);
    if (own != nullptr) routers_.push_back(std::move(own));
    pods_.push_back({.pod = *std::move(made), .ready = true});
    Publish();
    return index;
  }

  void SetReady(std::size_t index, bool ready) {
    std::lock_guard lock(mutex_);
    pods_.at(index).ready = ready;
    Publish();
  }

  void Kill(std::size_t index) {
    Pod& killed = pod(index);
    SetReady(index, false);
    Router& its_router = router(index);
    // Off the targets and cut first, so that a pod in this process seems to die as one of its own does: without a word.
    if (settings_.headless) its_router.SetTargets({});
    its_router.CutTarget(killed.port());
    killed.Kill();
  }

  void Freeze(std::size_t index, bool frozen) {
    Pod& its_pod = pod(index);
    if (frozen ? its_pod.Freeze() : its_pod.Thaw()) return;
    router(index).FreezeTarget(its_pod.port(), frozen);
  }

 private:
  struct Entry {
    std::unique_ptr<Pod> pod;
    bool ready = false;
  };

  // Under mutex_.
  std::vector<std::size_t> Ready() const {
    std::vector<std::size_t> indices;
    for (std::size_t i = 0; i < pods_.size(); ++i) {
      if (pods_[i].ready) indices.push_back(i);
    }
    return indices;
  }

  // Tells whoever gives out connections. Under mutex_.
  void Publish() {
    if (settings_.headless) {
      std::vector<std::string> hosts;
      for (const std::size_t i : Ready()) hosts.push_back(Host(i));
      resolver_->Set(kName, std::move(hosts));
      return;
    }
    std::vector<std::uint16_t> ports;
    for (const std::size_t i : Ready()) ports.push_back(pods_[i].pod->port());
    routers_.front()->SetTargets(std::move(ports));
  }

  ServiceSettings settings_;
  std::unique_ptr<Resolver> resolver_;
  mutable std::mutex mutex_;
  std::vector<Entry> pods_;                        // guarded by mutex_; grows only
  std::vector<std::unique_ptr<Router>> routers_;   // guarded by mutex_; grows only, destroyed before the pods
};

Result<std::unique_ptr<Service>> Service::Create(ServiceSettings settings) {
  auto impl = std::make_unique<Impl>(std::move(settings));
  std::string problem = impl->Begin();
  if (!problem.empty()) return Error(std::move(problem));
  return std::unique_ptr<Service>(new Service(std::move(impl)));
}

Service::Service(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Service::~Service() = default;

std::string Service::address() const { return impl_->address(); }

std::string Service::name_server() const { return impl_->name_server(); }

std::size_t Service::size() const { return impl_->size(); }

Pod& Service::pod(std::size_t index) { return impl_->pod(index); }

Router& Service::router(std::size_t index) { return impl_->router(index); }

std::vector<std::size_t> Service::ready() const { return impl_->ready(); }

Result<std::size_t> Service::Start() { return impl_->Start(); }

void Service::Drain(std::size_t index) { impl_->SetReady(index, false); }

void Service::Ready(std::size_t index) { impl_->SetReady(index, true); }

void Service::Shutdown(std::size_t index) {
  Drain(index);
  pod(index).Shutdown();
}

int Service::Stop(std::size_t index) {
  Shutdown(index);
  return pod(index).Wait();
}

Result<std::size_t> Service::Replace(std::size_t index) {
  Result<std::size_t> started = Start();
  if (started.ok()) Stop(index);
  return started;
}

void Service::Kill(std::size_t index) { impl_->Kill(index); }

void Service::Freeze(std::size_t index) { impl_->Freeze(index, true); }

void Service::Thaw(std::size_t index) { impl_->Freeze(index, false); }

}  // namespace penstock::inline v0::testing
