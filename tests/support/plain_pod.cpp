#include <csignal>
#include <string>

#include "penstock/testing/pods.h"
#include "support/echo_service.h"

namespace penstock::test {

int PlainPodMain(const std::string& name, int grace_ms) {
  // Blocked before any thread starts, so that all of them leave the signals to sigwait.
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  EchoServer server(EchoOptions{.pod = name});
  testing::AnnouncePort(server.port());
  int signal = 0;
  sigwait(&ends, &signal);
  server.Shutdown(std::chrono::milliseconds(grace_ms));
  return 0;
}

}  // namespace penstock::test
