#pragma once

// An Echo server in a process of its own.
//
//     PodProcess pod("a");
//     pod.Kill();
//
// Threads: one at a time.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace penstock::test {

// A program that was built in a folder of this one's.
inline std::string BesideThisProgram(const std::string& name) {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / name).string();
}

class PodProcess {
 public:
  explicit PodProcess(std::string name, std::string address = "127.0.0.1:0") {
    const std::string program = BesideThisProgram("integration/pod_process");
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    process_ = ::fork();
    REQUIRE(process_ >= 0);
    if (process_ == 0) {
      // Nothing but exec: this process has threads.
      ::dup2(ends[1], 1);
      ::execl(program.c_str(), program.c_str(), name.c_str(), address.c_str(), nullptr);
      ::_exit(127);
    }
    ::close(ends[1]);
    std::FILE* const output = ::fdopen(ends[0], "r");
    int port = 0;
    const int read = std::fscanf(output, "%d", &port);
    std::fclose(output);
    REQUIRE_MESSAGE(read == 1, "the pod's process did not come up");
    port_ = static_cast<std::uint16_t>(port);
  }
  ~PodProcess() { Kill(); }
  PodProcess(const PodProcess&) = delete;
  PodProcess& operator=(const PodProcess&) = delete;

  std::uint16_t port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  // SIGKILL; the process is gone when it returns.
  void Kill() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = -1;
  }

 private:
  pid_t process_ = -1;
  std::uint16_t port_ = 0;
};

}  // namespace penstock::test
