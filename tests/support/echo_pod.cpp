#include "support/echo_pod.h"

#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/server_fixture.h"

namespace penstock::test {

// In plain_pod.cpp: the two headers of Echo services do not go together.
int PlainPodMain(const std::string& name, int grace_ms);

namespace {

std::string NameOf(std::size_t index) { return "pod-" + std::to_string(index); }

ServerSettings PodSettings(int drain_ms, int grace_ms) {
  ServerSettings settings = LocalSettings();
  settings.drain = std::chrono::milliseconds(drain_ms);
  settings.grace = std::chrono::milliseconds(grace_ms);
  return settings;
}

}  // namespace

std::function<Result<std::unique_ptr<testing::Pod>>(std::size_t)> EchoPods(EchoPodOptions options) {
  return [options](std::size_t index) -> Result<std::unique_ptr<testing::Pod>> {
    if (!options.own_process) {
      return testing::MakeServerPod(PodSettings(options.drain_ms, options.grace_ms),
                                    {std::make_shared<GuardedEcho>(NameOf(index))});
    }
    return testing::StartProcessPod({.command = testing::SelfCommand(
                                         {"--pod", NameOf(index), options.plain ? "plain" : "penstock",
                                          std::to_string(options.drain_ms), std::to_string(options.grace_ms)})});
  };
}

int PodMain(int argc, char** argv) {
  if (argc != 6) return 2;
  const std::string name = argv[2];
  const int grace_ms = std::atoi(argv[5]);
  if (std::string_view(argv[3]) == "plain") return PlainPodMain(name, grace_ms);
  GuardedEcho echo(name);
  auto server = Server::Create(PodSettings(std::atoi(argv[4]), grace_ms), {&echo});
  if (!server.ok()) return 2;
  testing::AnnouncePort(static_cast<std::uint16_t>((*server)->port()));
  const int code = (*server)->Run();
  if (code != 0) std::_Exit(code);  // a handler may still run: destroy nothing under it
  return code;
}

}  // namespace penstock::test
