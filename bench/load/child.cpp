#include "child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <algorithm>
#include <random>
#include <regex>
#include <sstream>
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
  if (callgrind) {
    command = {"valgrind", "--tool=callgrind", "--instr-atstart=no", "--callgrind-out-file=/dev/null", "--log-fd=1"};
  }
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

// Of one run: how many calls or messages failed, and how many there were.
struct Counted {
  std::int64_t failed = 0;
  std::int64_t calls = 0;
};

class Runner {
 public:
  Runner(Variant& variant, const RunOptions& options) : variant_(variant), options_(options) {}

  Counted Run(std::int64_t calls, double seconds) {
    const auto length = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    Meter meter(calls, Clock::now() + length);
    slots_.clear();
    for (int i = 0; i < options_.outstanding; ++i) slots_.emplace_back(meter, options_.waited_for);
    meter.Started(options_.outstanding);
    variant_.Run(meter, slots_);
    Counted counted{.failed = meter.failed()};
    for (const Slot& slot : slots_) {
      latencies_.Merge(slot.latencies());
      counted.calls += slot.calls();
    }
    return counted;
  }

  const Histogram& latencies() const { return latencies_; }
  void ForgetLatencies() { latencies_ = Histogram(); }

 private:
  Variant& variant_;
  const RunOptions& options_;
  std::deque<Slot> slots_;
  Histogram latencies_;
};

void Fail(const RunOptions& options, const Counted& counted) {
  fmt::print(stderr, "bench/load: {}: {} of {} calls failed\n", options.variant, counted.failed, counted.calls);
  std::_Exit(1);
}

RunResult Measure(Variant& variant, const RunOptions& options, const std::string& address) {
  Runner runner(variant, options);
  const bool idle = options.kind == Kind::kIdle;
  // Connects, and warms both sides up.
  if (!idle) {
    const Counted warm = runner.Run(std::max(20, 4 * options.outstanding), 0);
    if (warm.failed > 0) Fail(options, warm);
    runner.ForgetLatencies();
  }
  const ServerUsage server_before = AskUsage(address, options.callgrind ? "" : "start");
  const std::int64_t allocations = Allocations();
  const std::int64_t heap = HeapBytes();
  const auto cpu = CpuTime();
  const auto started = Clock::now();
  if (options.callgrind) StartCounting();
  Counted counted;
  if (options.spaced_ms > 0) {
    std::mt19937 random{7};
    for (std::int64_t i = 0; i < options.calls; ++i) {
      const int pause = options.spaced_ms + static_cast<int>(random() % static_cast<unsigned>(options.spaced_ms / 5 + 1));
      std::this_thread::sleep_for(std::chrono::milliseconds(pause));
      const Counted one = runner.Run(1, 0);
      counted.failed += one.failed;
      counted.calls += one.calls;
    }
  } else {
    counted = runner.Run(options.calls, options.seconds);
  }
  if (options.callgrind) StopCounting();
  const std::chrono::duration<double> took = Clock::now() - started;
  const auto used = CpuTime() - cpu;
  const std::int64_t allocated = Allocations() - allocations;
  const ServerUsage server_after = AskUsage(address, options.callgrind ? "" : "stop");
  if (counted.failed > 0 || counted.calls == 0 || !server_before.ok || !server_after.ok) Fail(options, counted);

  RunResult result;
  const auto count = static_cast<double>(counted.calls);
  result.metrics["calls"] = count;
  if (idle) {
    result.metrics["heap_bytes"] = static_cast<double>(HeapBytes() - heap) / count;
    result.metrics["server_heap_bytes"] = (server_after.heap_bytes - server_before.heap_bytes) / count;
    return result;
  }
  result.metrics["calls_per_second"] = count / took.count();
  result.metrics["cpu_us"] = static_cast<double>(used.count()) / count;
  // The server of server streams does more than is read by the end of a run.
  const double written = server_after.messages_written - server_before.messages_written;
  const double served = written > 0 ? written : count;
  result.metrics["server_cpu_us"] = (server_after.cpu_us - server_before.cpu_us) / served;
  if (allocations >= 0) {
    result.metrics["allocations"] = static_cast<double>(allocated) / count;
    result.metrics["server_allocations"] = (server_after.allocations - server_before.allocations) / served;
  }
  if (runner.latencies().Quantile(0.5) > 0) {
    result.metrics["p50_us"] = runner.latencies().Quantile(0.50) / 1000;
    result.metrics["p99_us"] = runner.latencies().Quantile(0.99) / 1000;
    for (const double quantile : kQuantiles) result.quantiles_us.push_back(runner.latencies().Quantile(quantile) / 1000);
  }
  return result;
}

// Clients one after the other, each a connection of its own that stays: the first call of each, and what it keeps.
RunResult MeasureClients(const VariantEntry& entry, const RunOptions& options, const std::string& address) {
  std::vector<std::unique_ptr<Variant>> variants;
  std::vector<double> first_us;
  std::int64_t heap = 0;
  ServerUsage server_before;
  for (int i = 0; i <= options.clients; ++i) {
    const auto started = Clock::now();
    const auto& variant = variants.emplace_back(entry.make({.address = address, .payload = options.payload}));
    Runner runner(*variant, options);
    const Counted counted = runner.Run(1, 0);
    if (counted.failed > 0) Fail(options, counted);
    // The first one also starts what the process needs.
    if (i > 0) first_us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - started).count());
    if (i > 0) continue;
    server_before = AskUsage(address, "");
    heap = HeapBytes();
  }
  RunResult result;
  result.metrics["heap_bytes"] = static_cast<double>(HeapBytes() - heap) / options.clients;
  result.metrics["server_heap_bytes"] = (AskUsage(address, "").heap_bytes - server_before.heap_bytes) / options.clients;
  std::sort(first_us.begin(), first_us.end());
  result.metrics["first_call_us"] = first_us[first_us.size() / 2];
  return result;
}

}  // namespace

ServerProcess::ServerProcess(const std::string& kind, int core, bool callgrind) {
  pid_ = Start({"--as-server", kind, "--core", std::to_string(core)}, callgrind, &stdin_, &stdout_);
  // Behind what callgrind says of itself.
  std::smatch found;
  for (std::string text; address_.empty();) {
    const std::string more = ReadSome(stdout_, true);
    if (more.empty()) return;
    text += more;
    if (std::regex_search(text, found, std::regex("address ([0-9.:]+)\n"))) address_ = found[1];
  }
}

ServerProcess::~ServerProcess() {
  if (pid_ > 0) (void)Instructions();
}

std::optional<double> ServerProcess::Instructions() {
  close(stdin_);
  const std::string text = ReadSome(stdout_, false);
  close(stdout_);
  WaitFor(std::exchange(pid_, -1));
  std::smatch found;
  if (!std::regex_search(text, found, std::regex("Collected : (\\d+)"))) return std::nullopt;
  return std::stod(found[1]);
}

ClientProcess::ClientProcess(const RunOptions& options) : options_(options) {
  std::vector<std::string> arguments = {"--as-client", options.variant,
                                        "--kind", std::to_string(static_cast<int>(options.kind)),
                                        "--address", options.address,
                                        "--outstanding", std::to_string(options.outstanding),
                                        "--payload", std::to_string(options.payload),
                                        "--calls", std::to_string(options.calls),
                                        "--seconds", fmt::format("{}", options.seconds),
                                        "--spaced-ms", std::to_string(options.spaced_ms),
                                        "--clients", std::to_string(options.clients),
                                        "--core", std::to_string(options.core)};
  if (options.waited_for) arguments.push_back("--waited-for");
  if (options.callgrind) arguments.push_back("--under-callgrind");
  pid_ = Start(std::move(arguments), options.callgrind, nullptr, &stdout_);
}

std::optional<RunResult> ClientProcess::Result() {
  text_ = ReadSome(stdout_, false);
  close(stdout_);
  const int exit_code = WaitFor(pid_);
  RunResult result;
  std::istringstream lines(text_);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string what, name;
    double value = 0;
    words >> what;
    if (what == "metric" && words >> name >> value) result.metrics[name] = value;
    if (what == "quantile" && words >> value) result.quantiles_us.push_back(value);
  }
  if (exit_code != 0 || result.metrics.empty()) {
    fmt::print(stderr, "bench/load: the client '{}' ended with exit code {}\n", options_.variant, exit_code);
    return std::nullopt;
  }
  return result;
}

std::optional<double> ClientProcess::Instructions() const {
  std::smatch found;
  if (!std::regex_search(text_, found, std::regex("Collected : (\\d+)"))) return std::nullopt;
  return std::stod(found[1]);
}

int ServerMain(const std::string& kind, int core) {
  if (core >= 0) PinToCore(core);
  const auto server = StartServer(kind);
  if (server == nullptr) return 1;
  fmt::print("address {}\n", server->address());
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
  const VariantEntry* entry = FindVariant(options.kind, options.variant);
  if (entry == nullptr) {
    fmt::print(stderr, "bench/load: there is no variant '{}'\n", options.variant);
    return 2;
  }
  RunResult result;
  std::unique_ptr<Variant> variant;
  if (options.clients > 0) {
    result = MeasureClients(*entry, options, address);
  } else {
    variant = entry->make({.address = address, .payload = options.payload});
    result = Measure(*variant, options, address);
  }
  for (const auto& [name, value] : result.metrics) fmt::print("metric {} {}\n", name, value);
  for (const double value : result.quantiles_us) fmt::print("quantile {}\n", value);
  std::fflush(stdout);
  std::_Exit(0);  // Tearing down is not what is measured.
}

}  // namespace load
