#pragma once

// A service of several pods behind one address, as Kubernetes has it: its clients know the address, and the test decides
// which pods are ready, which leave in order, which die and which stand still.
//
//     auto service = testing::Service::Create({.make_pod = [](std::size_t index) {
//       return testing::MakeServerPod(settings, {std::make_shared<LedgerService>(index)});
//     }});
//     ... = penstock::Client::Create({.address = (*service)->address(), ...});
//     (*service)->Replace(0);                          // a rollout's step: one more pod, then the old one leaves
//     (*service)->Kill(1);
//
// A headless service has no address of its own: its name resolves to the ready pods, each at a loopback address of its own.
// Clients are given `address()` and, as the DNS server to ask, `name_server()`.
//
// Threads: every member may be called from any thread, those that take pods on and off by one thread at a time.
// Ownership: the service owns its pods, its routers and its resolver; destroying it kills what still runs.
// Time: real, but for what a pod's own settings say. Nothing lags by itself: to have new connections reach a pod that
// leaves, call pod(i).Shutdown() and, later, Drain(i).
// Errors: Create and Start say why a pod or a listener did not come up.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "penstock/core/clock.h"
#include "penstock/core/result.h"
#include "penstock/server/server.h"
#include "penstock/testing/router.h"

namespace penstock::inline v0::testing {

class Resolver;

// One server. Members may be called from any thread, again and in any state, where they do nothing more.
class Pod {
 public:
  virtual ~Pod() = default;

  // On 127.0.0.1.
  virtual std::uint16_t port() const = 0;

  // As SIGTERM: begins to leave in order, and returns at once.
  virtual void Shutdown() = 0;

  // Blocks until it is gone; its exit code, 128 + the signal where one killed it, -1 when the limit ended first. Of a process
  // 255 where the code went to somebody else: this program ignores SIGCHLD, or waits for any child.
  virtual int Wait(Duration limit = std::chrono::seconds(60)) = 0;

  // As SIGKILL.
  virtual void Kill() = 0;

  // As SIGSTOP and SIGCONT. False where the pod cannot be: then its connections have to stand still for it.
  virtual bool Freeze() = 0;
  virtual bool Thaw() = 0;
};

// A penstock::Server in this process. An empty address is 127.0.0.1:0. Kill() cuts its calls off, and leaves the memory of
// handlers that never finish to the process's end.
Result<std::unique_ptr<Pod>> MakeServerPod(ServerSettings settings, std::vector<std::shared_ptr<AnyService>> services);

struct ProcessPodSettings {
  // The program and its arguments; the path is not searched for. SelfCommand() names the program that runs.
  std::vector<std::string> command;
  // `NAME=value`, added to this process's environment.
  std::vector<std::string> environment = {};
  // How long it may take to call AnnouncePort.
  Duration start_limit = std::chrono::seconds(30);
};

// A process of its own, which must call AnnouncePort. It dies with this process.
Result<std::unique_ptr<Pod>> StartProcessPod(ProcessPodSettings settings);

// This program's own file, then the arguments: a test that is its own pod looks at them first thing in main().
std::vector<std::string> SelfCommand(std::vector<std::string> arguments);

// In the pod's process: says where it serves, and has the process end when its parent does. Where nobody started it as a
// pod, it prints the port.
void AnnouncePort(std::uint16_t port);

struct ServiceSettings {
  // Makes the index'th pod that was ever started, and returns when it serves.
  std::function<Result<std::unique_ptr<Pod>>(std::size_t index)> make_pod;

  // How many are started at first.
  std::size_t pods = 3;

  bool headless = false;

  // For the one router, or for each pod's own where the service is headless; its targets, host and port are not used.
  RouterSettings router = {};
};

class Service {
 public:
  static Result<std::unique_ptr<Service>> Create(ServiceSettings settings);
  ~Service();

  // host:port. Of a headless service a name, which only its name_server() knows.
  std::string address() const;

  // The DNS server of a headless service, host:port; empty for others.
  std::string name_server() const;

  // Every pod that was ever started, in that order.
  std::size_t size() const;
  Pod& pod(std::size_t index);

  // What its connections go through: the one router, or the pod's own where the service is headless.
  Router& router(std::size_t index = 0);

  // The pods that new connections may reach.
  std::vector<std::size_t> ready() const;

  // One more pod, ready at once; its index.
  Result<std::size_t> Start();

  // New connections go elsewhere; the pod serves on, and knows nothing of it.
  void Drain(std::size_t index);
  // Undoes it.
  void Ready(std::size_t index);

  // Drain and the pod's Shutdown, as Kubernetes does both when a pod is deleted. Returns at once.
  void Shutdown(std::size_t index);

  // Shutdown, and waits until it is gone; its exit code.
  int Stop(std::size_t index);

  // A rollout's step: starts a pod, then stops this one. The new one's index.
  Result<std::size_t> Replace(std::size_t index);

  // Kills it; new connections go elsewhere from then on, and those that it had are cut.
  void Kill(std::size_t index);

  // It answers nothing any more, and stays ready until Drain.
  void Freeze(std::size_t index);
  void Thaw(std::size_t index);

 private:
  class Impl;
  explicit Service(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock::inline v0::testing
