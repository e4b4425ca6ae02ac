// The readiness race of a post-mortem: eight clients start while two of six pods are ready, and the other four become ready a
// moment later. Who serves the calls then, and what do the metrics of both sides say?
//
//     lab_readiness_race BALANCING HEADLESS CONNECTION_AGE_MS TICKS TICK_MS
//
// BALANCING is pick_first or round_robin; HEADLESS 1 resolves the name to the ready pods, 0 is one address whose connections go
// to a ready pod each. Every tick prints a line for each series that a scrape would read, `TICK NAME{LABELS} VALUE`; at the end
// there is `failed N`. The lab (tests/lab/axes/balancing.py) gives the series to promtool.

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "penstock/client/client.h"
#include "penstock/lab/v1/lab.grpc.pb.h"
#include "penstock/prometheus/exporter.h"
#include "penstock/testing/pods.h"

namespace {

using namespace std::chrono_literals;
using namespace penstock;
using penstock::lab::v1::Answer;
using penstock::lab::v1::Lab;
using penstock::lab::v1::Work;

constexpr std::size_t kPods = 6;
constexpr std::size_t kReadyAtFirst = 2;
constexpr std::size_t kClients = 8;

class PodService final : public Service<Lab> {
  grpc::ServerUnaryReactor* Do(grpc::CallbackServerContext* context, const Work* /*work*/, Answer* /*answer*/) override {
    return Handle(context, [] { return grpc::Status::OK; });
  }
};

// What a scrape of one process reads, of the two metrics that tell who serves.
void Print(int tick, const std::string& labels, const penstock::prometheus::Exporter& exporter) {
  for (const auto& family : exporter.Collect()) {
    const bool served = family.name == "rpc_server_call_duration_seconds";
    if (!served && family.name != "penstock_client_connections") continue;
    for (const auto& metric : family.metric) {
      std::string all = labels;
      for (const auto& label : metric.label) all += fmt::format(",{}=\"{}\"", label.name, label.value);
      fmt::print("{} {}{{{}}} {}\n", tick, served ? family.name + "_count" : family.name, all,
                 served ? static_cast<double>(metric.histogram.sample_count) : metric.gauge.value);
    }
  }
}

struct Race {
  Balancing balancing;
  bool headless;
  int connection_age_ms;
  int ticks;
  std::chrono::milliseconds tick;

  int Run() const {
    std::vector<std::shared_ptr<penstock::prometheus::Exporter>> of_pods;
    for (std::size_t i = 0; i < kPods; ++i) of_pods.push_back(penstock::prometheus::Exporter::Create());
    const auto of_clients = penstock::prometheus::Exporter::Create();
    auto service = testing::Service::Create({.make_pod = [&](std::size_t index) {
                                               ServerSettings settings;
                                               settings.plaintext = true;
                                               settings.observers = {of_pods.at(index)->ForServer()};
                                               if (connection_age_ms > 0) settings.max_connection_age = std::chrono::milliseconds(connection_age_ms);
                                               return testing::MakeServerPod(std::move(settings), {std::make_shared<PodService>()});
                                             },
                                             .pods = kPods,
                                             .headless = headless});
    if (!service.ok()) return std::fprintf(stderr, "%s\n", service.error().message().c_str()), 1;
    for (std::size_t i = kReadyAtFirst; i < kPods; ++i) (*service)->Drain(i);

    std::atomic<bool> over{false};
    std::atomic<int> failed{0};
    std::vector<std::thread> callers;
    for (std::size_t i = 0; i < kClients; ++i) {
      ClientSettings settings{.address = (*service)->address(), .plaintext = true};
      settings.connection.balancing = balancing;
      settings.connection.name_server = (*service)->name_server();
      settings.observer = of_clients->ForClient();
      auto made = Client::Create(std::move(settings));
      if (!made.ok()) return std::fprintf(stderr, "%s\n", made.error().message().c_str()), 1;
      callers.emplace_back([&over, &failed, client = std::make_shared<Client>(*std::move(made))] {
        while (!over.load(std::memory_order_relaxed)) {
          if (!client->CallAndWait(PENSTOCK_METHOD(Lab, Do), {}).ok()) failed.fetch_add(1, std::memory_order_relaxed);
          std::this_thread::sleep_for(10ms);
        }
      });
    }

    for (int i = 0; i < ticks; ++i) {
      // As in the report: half a minute after the clients.
      if (i == 1) {
        for (std::size_t pod = kReadyAtFirst; pod < kPods; ++pod) (*service)->Ready(pod);
      }
      std::this_thread::sleep_for(tick);
      for (std::size_t pod = 0; pod < kPods; ++pod) Print(i, fmt::format("job=\"pricing\",instance=\"pod-{}\"", pod), *of_pods[pod]);
      Print(i, "job=\"checkout\",instance=\"clients\"", *of_clients);
    }
    over = true;
    for (std::thread& caller : callers) caller.join();
    fmt::print("failed {}\n", failed.load());
    return 0;
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return std::fprintf(stderr, "lab_readiness_race BALANCING HEADLESS CONNECTION_AGE_MS TICKS TICK_MS\n"), 2;
  return Race{.balancing = std::string_view(argv[1]) == "round_robin" ? Balancing::kRoundRobin : Balancing::kPickFirst,
              .headless = std::atoi(argv[2]) != 0,
              .connection_age_ms = std::atoi(argv[3]),
              .ticks = std::atoi(argv[4]),
              .tick = std::chrono::milliseconds(std::atoi(argv[5]))}
      .Run();
}
