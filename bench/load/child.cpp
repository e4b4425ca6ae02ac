#include "child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <regex>
#include <thread>

#include "servers.h"
#include "variant.h"

namespace load {
namespace {

struct Pipe {
  int read = -1;
  int write = -1;
};

Pipe MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return {};
  return {ends[0], ends[1]};
}

// Starts this program again; gives its pid and the ends of its stdin and stdout.
int Start(std::vector<std::string> arguments, bool callgrind, int* to_child, int* from_child) {
  std::vector<std::string> command;
  if (callgrind) command = {"valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--log-fd=1"};
  command.emplace_back("/proc/self/exe");
  if (callgrind) {
    char path[4096];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
    command.back().assign(path, length > 0 ? static_cast<std::size_t>(length) : 0);
  }
  command.insert(command.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& part : command) argv.push_back(part.data());
  argv.push_back(nullptr);

  const Pipe in = MakePipe();
  const Pipe out = MakePipe();
  const int pid = fork();
  if (pid == 0) {
    dup2(in.read, STDIN_FILENO);
    dup2(out.write, STDOUT_FILENO);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  close(in.read);
  close(out.write);
  if (to_child != nullptr) {
    *to_child = in.write;
  } else {
    close(in.write);
  }
  *from_child = out.read;
  return pid;
}

int WaitFor(int pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string ReadSome(int fd, bool line) {
  std::string text;
  char buffer[4096];
  while (true) {
    const ssize_t got = read(fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(buffer, static_cast<std::size_t>(got));
    if (line && text.back() == '\n') return text;
  }
}

RunResult Measure(Variant& variant, const RunOptions& options) {
  const auto run = [&](std::int64_t calls, std::chrono::duration<double> length, std::deque<Slot>& slots) {
    Meter meter(calls, Clock::now() + std::chrono::duration_cast<Clock::duration>(length));
    slots.clear();
    for (int i = 0; i < options.outstanding; ++i) slots.emplace_back(meter);
    meter.Started(options.outstanding);
    variant.Run(meter, slots);
    return meter.failed();
  };
  std::deque<Slot> slots;
  std::int64_t failed = 0;
  RunResult result;
  Histogram latencies;
  std::int64_t calls = 0;
  const auto gather = [&] {
    for (const Slot& slot : slots) {
      latencies.Merge(slot.latencies());
      calls += slot.calls();
    }
  };

  failed += run(std::max(20, 4 * options.outstanding), {}, slots);  // Connects, and warms both sides up.
  const std::int64_t allocations = Allocations();
  const auto cpu = CpuTime();
  const auto started = Clock::now();
  if (options.spaced_ms > 0) {
    std::mt19937 random{7};
    for (std::int64_t i = 0; i < options.calls; ++i) {
      const int pause = options.spaced_ms + static_cast<int>(random() % static_cast<unsigned>(options.spaced_ms / 5 + 1));
      std::this_thread::sleep_for(std::chrono::milliseconds(pause));
      failed += run(1, {}, slots);
      gather();
    }
  } else {
    failed += run(options.calls, std::chrono::duration<double>(options.seconds), slots);
    gather();
  }
  const std::chrono::duration<double> took = Clock::now() - started;
  const auto count = static_cast<double>(calls);
  result.calls_per_second = count / took.count();
  result.cpu_us = static_cast<double>((CpuTime() - cpu).count()) / count;
  result.allocations = allocations < 0 ? -1 : static_cast<double>(Allocations() - allocations) / count;
  result.p50_us = latencies.Quantile(0.50) / 1000;
  result.p99_us = latencies.Quantile(0.99) / 1000;
  if (failed > 0 || calls == 0) {
    fmt::print(stderr, "bench/load: {}: {} of {} calls failed\n", options.variant, failed, calls);
    std::_Exit(1);
  }
  return result;
}

}  // namespace

ServerProcess::ServerProcess(const std::string& kind, int core) {
  int from_child = -1;
  pid_ = Start({"--as-server", kind, "--core", std::to_string(core)}, false, &stdin_, &from_child);
  address_ = ReadSome(from_child, true);
  while (!address_.empty() && address_.back() == '\n') address_.pop_back();
  close(from_child);
}

ServerProcess::~ServerProcess() {
  close(stdin_);
  WaitFor(pid_);
}

ClientProcess::ClientProcess(const RunOptions& options) : options_(options) {
  pid_ = Start({"--as-client", options.variant, "--address", options.address, "--outstanding",
                std::to_string(options.outstanding), "--calls", std::to_string(options.calls), "--seconds",
                fmt::format("{}", options.seconds), "--spaced-ms", std::to_string(options.spaced_ms), "--core",
                std::to_string(options.core)},
               options.callgrind, nullptr, &stdout_);
}

std::string ClientProcess::ReadAll() {
  std::string text = ReadSome(stdout_, false);
  close(stdout_);
  exit_code_ = WaitFor(pid_);
  return text;
}

std::optional<RunResult> ClientProcess::Result() {
  const std::string text = ReadAll();
  RunResult result;
  if (exit_code_ != 0 || std::sscanf(text.c_str(), "%lf %lf %lf %lf %lf", &result.calls_per_second, &result.cpu_us,
                                     &result.allocations, &result.p50_us, &result.p99_us) != 5) {
    fmt::print(stderr, "bench/load: the client '{}' ended with exit code {}\n", options_.variant, exit_code_);
    return std::nullopt;
  }
  return result;
}

std::optional<double> ClientProcess::Instructions() {
  const std::string text = ReadAll();
  std::smatch found;
  if (exit_code_ != 0 || !std::regex_search(text, found, std::regex("Collected : (\\d+)"))) return std::nullopt;
  return std::stod(found[1]);
}

std::optional<RunResult> RunClient(const RunOptions& options) { return ClientProcess(options).Result(); }

int ServerMain(const std::string& kind, int core) {
  if (core >= 0) PinToCore(core);
  const auto server = StartServer(kind);
  if (server == nullptr) return 1;
  fmt::print("{}\n", server->address());
  std::fflush(stdout);
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0 || errno == EINTR) {  // The parent's end closes with the parent.
  }
  std::_Exit(0);
}

int ClientMain(const RunOptions& options) {
  if (options.core >= 0) PinToCore(options.core);
  std::unique_ptr<RunningServer> server;
  std::string address = options.address;
  if (address.empty()) {
    server = StartServer("raw");  // The same for all: the clients are compared.
    if (server == nullptr) return 1;
    address = server->address();
  }
  for (const VariantEntry& entry : Variants()) {
    if (options.variant != entry.name) continue;
    const auto variant = entry.make(address);
    const RunResult result = Measure(*variant, options);
    fmt::print("{} {} {} {} {}\n", result.calls_per_second, result.cpu_us, result.allocations, result.p50_us,
               result.p99_us);
    std::fflush(stdout);
    std::_Exit(0);  // Tearing down is not what is measured.
  }
  fmt::print(stderr, "bench/load: there is no variant '{}'\n", options.variant);
  return 2;
}

}  // namespace load
