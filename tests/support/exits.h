#pragma once

// Runs exit_program again and again: shared by the quick test and the long series.

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>

#include "support/pod_process.h"

namespace penstock::test {

// The exit code; 128 and the signal where one ended it, 999 when it had not ended after 30 s.
inline int RunExitProgram(const std::string& mode, const std::string& address) {
  const std::string program = BesideThisProgram("integration/exit_program");
  const pid_t process = ::fork();
  REQUIRE(process >= 0);
  if (process == 0) {
    ::execl(program.c_str(), program.c_str(), mode.c_str(), address.c_str(), nullptr);
    ::_exit(127);
  }
  for (const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);;) {
    int status = 0;
    if (::waitpid(process, &status, WNOHANG) == process) {
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    if (std::chrono::steady_clock::now() > until) {
      ::kill(process, SIGKILL);
      ::waitpid(process, nullptr, 0);
      return 999;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

inline void ExitAgainAndAgain(int times) {
  const PodProcess pod("pod");
  for (const char* mode : {"static", "leaked", "local", "callback", "thread"}) {
    for (int time = 0; time < times; ++time) {
      CAPTURE(mode);
      CAPTURE(time);
      REQUIRE(RunExitProgram(mode, pod.address()) == 7);
    }
  }
}

}  // namespace penstock::test
