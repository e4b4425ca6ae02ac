#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "penstock/testing/pods.h"

extern char** environ;

namespace penstock::inline v0::testing {

namespace {

// The pod's end of a socket pair: it writes its port there, and reads until its parent is gone.
constexpr char kLifeline[] = "PENSTOCK_TESTING_POD_FD";

// How often an exit is looked for: a child's end wakes nobody who does not own its signals.
constexpr auto kPoll = std::chrono::milliseconds(1);

// It is gone, and somebody else was told how: this process ignores SIGCHLD, or waits for any child.
constexpr int kUnknownCode = 255;

class ProcessPod final : public Pod {
 public:
  ProcessPod(pid_t process, int lifeline) : process_(process), lifeline_(lifeline) {}

  ~ProcessPod() override {
    Kill();
    Wait(std::chrono::hours(1));
    close(lifeline_);
  }

  // The reason when it does not come up.
  std::string WaitForPort(Duration limit) {
    pollfd answer{.fd = lifeline_, .events = POLLIN, .revents = 0};
    const auto end = SaturatingAdd(std::chrono::steady_clock::now(), limit);
    int ready = 0;
    do {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
      ready = poll(&answer, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000'000)));
    } while (ready < 0 && errno == EINTR);
    char port[16] = {};
    if (ready <= 0) return "pod: no port was announced in time";
    if (read(lifeline_, port, sizeof port - 1) <= 0) {
      return "pod: it ended before it announced a port, with exit code " + std::to_string(Wait(limit));
    }
    port_ = static_cast<std::uint16_t>(std::strtoul(port, nullptr, 10));
    return port_ != 0 ? "" : "pod: it announced no port";
  }

  std::uint16_t port() const override { return port_; }
  void Shutdown() override { Signal(SIGTERM); }
  void Kill() override { Signal(SIGKILL); }
  bool Freeze() override {
    if (!Signal(SIGSTOP)) return false;
    // The signal arrives when it likes: only once every thread has stopped is the pod frozen. The state is left for Wait.
    siginfo_t stopped{};
    return waitid(P_PID, static_cast<id_t>(process_), &stopped, WSTOPPED | WEXITED | WNOWAIT) == 0;
  }
  bool Thaw() override { return Signal(SIGCONT); }

  int Wait(Duration limit) override {
    const auto end = SaturatingAdd(std::chrono::steady_clock::now(), limit);
    for (;;) {
      {
        std::lock_guard lock(mutex_);
        if (code_ < 0) {
          int status = 0;
          const pid_t ended = waitpid(process_, &status, WNOHANG);
          if (ended == process_) code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
          if (ended < 0 && errno == ECHILD) code_ = kUnknownCode;
        }
        if (code_ >= 0) return code_;
      }
      if (std::chrono::steady_clock::now() >= end) return -1;
      std::this_thread::sleep_for(kPoll);
    }
  }

 private:
  // Under the lock, so that no other process has got the number meanwhile.
  bool Signal(int signal) {
    std::lock_guard lock(mutex_);
    return code_ < 0 && kill(process_, signal) == 0;
  }

  const pid_t process_;
  const int lifeline_;
  std::uint16_t port_ = 0;
  std::mutex mutex_;
  int code_ = -1;  // guarded by mutex_
};

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

Result<std::unique_ptr<Pod>> StartProcessPod(ProcessPodSettings settings) {
  if (settings.command.empty()) return Error("pod: the command is empty");
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return Error(std::string("pod: no socket pair: ") + std::strerror(errno));
  }
  const std::string lifeline = std::string(kLifeline) + "=";
  for (char** variable = environ; *variable != nullptr; ++variable) {
    // Where this process is a pod itself, that is its own lifeline.
    if (!std::string_view(*variable).starts_with(lifeline)) settings.environment.emplace_back(*variable);
  }
  settings.environment.push_back(lifeline + std::to_string(ends[1]));

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  // Onto itself, which takes the close-on-exec off.
  posix_spawn_file_actions_adddup2(&actions, ends[1], ends[1]);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  pid_t process = 0;
  const int failure = posix_spawn(&process, settings.command.front().c_str(), &actions, &attributes,
                                  Pointers(settings.command).data(), Pointers(settings.environment).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (failure != 0) {
    close(ends[0]);
    return Error("pod: cannot start " + settings.command.front() + ": " + std::strerror(failure));
  }
  auto pod = std::make_unique<ProcessPod>(process, ends[0]);
  std::string problem = pod->WaitForPort(settings.start_limit);
  if (!problem.empty()) return Error(problem + " (" + settings.command.front() + ")");
  return std::unique_ptr<Pod>(std::move(pod));
}

std::vector<std::string> SelfCommand(std::vector<std::string> arguments) {
  std::string path(4096, '\0');
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  path.resize(static_cast<std::size_t>(length < 0 ? 0 : length));
  arguments.insert(arguments.begin(), std::move(path));
  return arguments;
}

void AnnouncePort(std::uint16_t port) {
  const std::string text = std::to_string(port);
  const char* number = std::getenv(kLifeline);
  if (number == nullptr) {
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
    return;
  }
  const int lifeline = std::atoi(number);
  if (send(lifeline, text.data(), text.size(), MSG_NOSIGNAL) < 0) _exit(1);
  std::thread([lifeline] {
    char nothing = 0;
    while (read(lifeline, &nothing, 1) < 0 && errno == EINTR) {
    }
    _exit(1);
  }).detach();
}

}  // namespace penstock::inline v0::testing
