#pragma once

// grpc.health.v1, served by reactors that a shutdown can end (gRPC's own health service holds a shutdown to its deadline).

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "penstock/runtime/readiness.h"
#include "penstock/runtime/time_source.h"
#include "penstock/server/service.h"

namespace penstock::inline v0::detail {

class HealthWatcher;

// Which names are healthy: "" and "readiness" (the server's readiness), "liveness" (always, until the process ends), and
// each service's. Computed from what the program says, the monitors, and whether the server drains.
class HealthState : public std::enable_shared_from_this<HealthState> {
 public:
  HealthState(std::shared_ptr<TimeSource> time, std::vector<std::string> services,
              std::vector<std::shared_ptr<ReadinessMonitor>> readiness,
              std::map<std::string, std::vector<std::shared_ptr<ReadinessMonitor>>> service_readiness);

  // Has the monitors find out, again and again until they are ready.
  void Start();

  // "" and "readiness" are one.
  bool SetServing(const std::string& service, bool serving);
  // Everything but liveness is NOT_SERVING from now on.
  void Drain();
  // No more checks of monitors.
  void Stop() noexcept;

  // Nothing for a name that is not known.
  std::optional<bool> Serving(const std::string& service) const;

  void Add(HealthWatcher& watcher);
  void Remove(HealthWatcher& watcher);

 private:
  class Retry;

  void Check(const std::shared_ptr<ReadinessMonitor>& monitor);
  void OnChecked(const std::shared_ptr<ReadinessMonitor>& monitor, bool ready);
  void NotifyAll();

  const std::shared_ptr<TimeSource> time_;
  const std::set<std::string> services_;
  const std::vector<std::shared_ptr<ReadinessMonitor>> readiness_;
  const std::map<std::string, std::vector<std::shared_ptr<ReadinessMonitor>>> service_readiness_;

  mutable std::mutex mutex_;
  bool draining_ = false;
  bool stopped_ = false;
  std::set<std::string> not_serving_;  // services, and "" for the whole server
  std::set<HealthWatcher*> watchers_;
  std::set<Retry*> retries_;
};

// One for each gRPC server: a service object cannot be registered twice.
std::unique_ptr<AnyService> MakeHealthService(std::shared_ptr<HealthState> state);

inline constexpr std::string_view kHealthPrefix = "/grpc.health.v1.Health/";

}  // namespace penstock::inline v0::detail
