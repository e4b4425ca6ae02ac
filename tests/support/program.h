#pragma once

// A program of the test's own in a process of its own: started, read, signalled, waited for.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace penstock::test {

class Program {
 public:
  // Standard output and error come back by Wait…(). It dies with this process.
  explicit Program(std::vector<std::string> command, const std::vector<std::string>& environment = {}) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    std::vector<char*> arguments;
    for (std::string& word : command) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    std::vector<std::string> variables = environment;
    for (char** variable = environ; *variable != nullptr; ++variable) variables.emplace_back(*variable);
    std::vector<char*> pointers;
    for (std::string& variable : variables) pointers.push_back(variable.data());
    pointers.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      dup2(ends[1], STDOUT_FILENO);
      dup2(ends[1], STDERR_FILENO);
      execve(arguments[0], arguments.data(), pointers.data());
      _exit(127);
    }
    close(ends[1]);
    output_ = ends[0];
  }

  Program(Program&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), output_(std::exchange(other.output_, -1)), text_(std::move(other.text_)) {}
  Program& operator=(Program&& other) noexcept {
    std::swap(pid_, other.pid_);
    std::swap(output_, other.output_);
    std::swap(text_, other.text_);
    return *this;
  }
  ~Program() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    if (output_ >= 0) close(output_);
  }

  // The number behind `mark` in the output; nothing when it does not come in time.
  std::optional<int> WaitForNumber(const std::string& mark, std::chrono::milliseconds limit = std::chrono::seconds(30)) {
    const auto until = std::chrono::steady_clock::now() + limit;
    for (;;) {
      const std::size_t at = text_.find(mark);
      if (at != std::string::npos && text_.find('\n', at) != std::string::npos) return std::stoi(text_.substr(at + mark.size()));
      if (!ReadMore(until)) return std::nullopt;
    }
  }

  void Signal(int number) const {
    if (pid_ > 0) kill(pid_, number);
  }

  // The exit code; 128 + n for signal n; nothing when it goes on for longer.
  std::optional<int> WaitForExit(std::chrono::milliseconds limit = std::chrono::seconds(60)) {
    const auto until = std::chrono::steady_clock::now() + limit;
    while (ReadMore(until)) {
    }
    int status = 0;
    while (waitpid(pid_, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > until) return std::nullopt;
      usleep(1000);
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  const std::string& text() const { return text_; }

 private:
  // False at the end of the output, and when the time is over.
  bool ReadMore(std::chrono::steady_clock::time_point until) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    pollfd ready{output_, POLLIN, 0};
    if (left.count() <= 0 || poll(&ready, 1, static_cast<int>(left.count())) <= 0) return false;
    char buffer[4096];
    const ssize_t size = read(output_, buffer, sizeof buffer);
    if (size <= 0) return false;
    text_.append(buffer, static_cast<std::size_t>(size));
    return true;
  }

  pid_t pid_ = -1;
  int output_ = -1;
  std::string text_;
};

}  // namespace penstock::test
