// One pod of a penstock server behind a router that delays, replaced again and again while it is called:
//
//     lab_rollout DELAY_MS DRAIN_MS     prints `ready PORT` and, after SIGTERM, `rollouts N abandoned N`
#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>

#include "penstock/lab/v1/lab.grpc.pb.h"
#include "penstock/server/server.h"
#include "penstock/testing/pods.h"

namespace penstock::lab {
namespace {

using std::chrono::milliseconds;

volatile sig_atomic_t stopping = 0;

class Answering final : public Service<v1::Lab> {
 public:
  explicit Answering(std::size_t pod) : name_("pod-" + std::to_string(pod)) {}

  grpc::ServerUnaryReactor* Do(grpc::CallbackServerContext* context, const v1::Work* /*request*/, v1::Answer* answer) override {
    return Handle(context, [&] {
      answer->set_server(name_);
      return grpc::Status::OK;
    });
  }

 private:
  const std::string name_;
};

int Main(milliseconds delay, milliseconds drain) {
  std::signal(SIGTERM, [](int) { stopping = 1; });
  auto service = testing::Service::Create({.make_pod =
                                               [drain](std::size_t pod) {
                                                 ServerSettings settings;
                                                 settings.plaintext = true;
                                                 settings.drain = drain;
                                                 return testing::MakeServerPod(std::move(settings), {std::make_shared<Answering>(pod)});
                                               },
                                           .pods = 1,
                                           .router = {.delay = delay}});
  if (!service.ok()) return fmt::print(stderr, "{}\n", service.error().message()), 1;
  fmt::print("ready {}\n", (*service)->router().port());
  std::fflush(stdout);
  int rollouts = 0;
  int abandoned = 0;
  while (stopping == 0) {
    std::this_thread::sleep_for(milliseconds(300));  // calls on the new pod
    const auto old = (*service)->ready().front();
    if (auto replaced = (*service)->Replace(old); !replaced.ok()) return fmt::print(stderr, "{}\n", replaced.error().message()), 1;
    ++rollouts;
    abandoned += (*service)->pod(old).Wait() != 0;
  }
  fmt::print("rollouts {} abandoned {}\n", rollouts, abandoned);
  return 0;
}

}  // namespace
}  // namespace penstock::lab

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  return penstock::lab::Main(std::chrono::milliseconds(std::atoi(argv[1])), std::chrono::milliseconds(std::atoi(argv[2])));
}
