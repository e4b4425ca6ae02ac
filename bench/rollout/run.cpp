#include "run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <thread>
#include <utility>
#include <vector>

#include "penstock/testing/frame_log.h"

namespace rollout {
namespace {

using namespace std::chrono_literals;
using SteadyClock = std::chrono::steady_clock;

constexpr int kOutstanding = 64;

// Waits in short steps, so that an interruption is heard. False: it was.
bool WaitFor(std::chrono::milliseconds limit, const std::function<bool()>& interrupted,
             const std::function<bool()>& condition = [] { return false; }) {
  const auto end = SteadyClock::now() + limit;
  while (SteadyClock::now() < end && !condition()) {
    if (interrupted()) return false;
    std::this_thread::sleep_for(10ms);
  }
  return !interrupted();
}

std::string Plural(std::int64_t count, const char* one, const char* many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

// Prints a line a second until it is stopped; what is wrong stands out on a terminal.
class Ticker {
 public:
  Ticker(const Options& options, Figures& figures, const Caller& caller, std::function<std::size_t()> pods)
      : options_(options), figures_(figures), caller_(caller), pods_(std::move(pods)), thread_([this](std::stop_token stop) {
          auto next = SteadyClock::now() + 1s;
          std::mutex mutex;
          std::condition_variable_any wake;
          while (true) {
            std::unique_lock lock(mutex);
            if (wake.wait_until(lock, stop, next, [&] { return stop.stop_requested(); }) || stop.stop_requested()) return;
            next += 1s;
            Print();
          }
        }) {}

  void Doing(std::string what) {
    std::lock_guard lock(mutex_);
    doing_ = std::move(what);
  }

 private:
  static std::string Marked(std::string text, bool wrong) {
    static const bool terminal = isatty(STDOUT_FILENO) == 1;
    return wrong && terminal ? "\033[1;31m" + text + "\033[0m" : text;
  }

  void Print() {
    ++second_;
    const bench::Histogram latencies = figures_.TakeSecond();
    const std::int64_t calls = figures_.unary_calls.get();
    const std::int64_t open = figures_.streams_open.get();
    const std::int64_t reopened = std::max<std::int64_t>(0, figures_.streams_opened.get() - options_.streams);
    const std::int64_t failed = figures_.unary_failed.get();
    const std::int64_t rejected = figures_.unary_rejected.get();
    const std::string breaker = caller_.breaker_state();
    std::string doing;
    {
      std::lock_guard lock(mutex_);
      doing = doing_;
    }
    fmt::print("{:>3} s  pods {}  streams {}  reopened {:>4}  calls {:>6}/s  {}  {}  {}  p50 {:6.2f} ms  p99 {:7.2f} ms  {}\n",
               second_, pods_(), Marked(fmt::format("{:>3}/{}", open, options_.streams), open < options_.streams), reopened,
               calls - last_calls_, Marked(fmt::format("failed {}", failed), failed > 0),
               Marked(fmt::format("rejected {}", rejected), rejected > 0),
               Marked(fmt::format("breaker {}", breaker), breaker != "closed"), latencies.Quantile(0.5) / 1e6,
               latencies.Quantile(0.99) / 1e6, doing);
    std::fflush(stdout);
    last_calls_ = calls;
  }

  const Options& options_;
  Figures& figures_;
  const Caller& caller_;
  std::function<std::size_t()> pods_;
  std::mutex mutex_;
  std::string doing_;  // under mutex_
  int second_ = 0;
  std::int64_t last_calls_ = 0;
  std::jthread thread_;  // last, so that it starts after and ends before the rest
};

// Calls at a steady rate, or as many at a time as kOutstanding.
std::jthread StartLoad(const Options& options, Figures& figures, Caller& caller) {
  return std::jthread([&](std::stop_token stop) {
    const auto began = SteadyClock::now();
    for (std::uint64_t number = 0; !stop.stop_requested();) {
      const std::uint64_t due =
          options.calls > 0
              ? static_cast<std::uint64_t>(figures.unary_calls.get() + kOutstanding)
              : static_cast<std::uint64_t>(std::chrono::duration<double>(SteadyClock::now() - began).count() * options.qps);
      while (number < due) {
        figures.unary_begun.Add();
        caller.Call(++number);
      }
      std::this_thread::sleep_for(options.calls > 0 ? 100us : 1000us);
    }
  });
}

}  // namespace

Outcome Run(const Side& side, const Options& options, const std::function<bool()>& interrupted) {
  Outcome outcome;
  outcome.options = options;
  Store store;
  Figures figures;
  auto frames = std::make_shared<penstock::testing::FrameLog>();
  auto service = penstock::testing::Service::Create(
      {.make_pod = [&](std::size_t) { return side.make_pod(store, figures); },
       .pods = static_cast<std::size_t>(options.pods),
       .router = {.frame_log = frames}});
  if (!service.ok()) {
    fmt::print(stderr, "bench/run rollout: {}\n", service.error().message());
    return outcome;
  }
  const std::unique_ptr<Caller> caller = side.make_caller((*service)->address(), figures);
  if (caller == nullptr) return outcome;

  const auto all_open = [&] { return figures.streams_open.get() >= options.streams; };
  caller->Watch(options.streams);
  bool going = WaitFor(10s, interrupted, all_open);
  {
    Ticker ticker(options, figures, *caller, [&] { return (*service)->ready().size(); });
    std::jthread load = StartLoad(options, figures, *caller);
    going = going && WaitFor(options.calls > 0 ? 500ms : 2s, interrupted);
    const auto enough = [&] {
      return figures.replacements.get() >= std::max(options.pods, options.replacements) &&
             figures.unary_calls.get() >= options.calls;
    };
    while (going && !enough()) {
      const auto oldest = (*service)->ready().front();
      ticker.Doing(fmt::format("replacing pod {}", oldest + 1));
      if (auto replaced = (*service)->Replace(oldest); !replaced.ok()) {
        fmt::print(stderr, "bench/run rollout: {}\n", replaced.error().message());
        going = false;
        break;
      }
      figures.replacements.Add();
      ticker.Doing("");
      going = WaitFor(5s, interrupted, all_open) && WaitFor(500ms, interrupted);
      const auto order = frames->goaway_order();
      outcome.goaway_before_trailers += static_cast<std::int64_t>(order.goaway_first);
      outcome.connections += static_cast<std::int64_t>(order.goaway_first + order.trailers_first);
      frames->Clear();  // A million calls are many frames.
    }
    going = going && WaitFor(1s, interrupted);
  }
  // What is under way ends by itself: Stop() would cancel it.
  going = going && WaitFor(30s, interrupted, [&] { return figures.unary_calls.get() == figures.unary_begun.get(); });
  outcome.streams_lost = std::max(figures.streams_lost.get(), options.streams - figures.streams_open.get());
  caller->Stop();

  outcome.ran = going;
  outcome.interrupted = interrupted();
  outcome.replacements = figures.replacements.get();
  outcome.unary_calls = figures.unary_calls.get();
  outcome.unary_failed = figures.unary_failed.get();
  outcome.unary_rejected = figures.unary_rejected.get();
  outcome.streams_reopened = std::max<std::int64_t>(0, figures.streams_opened.get() - options.streams);
  outcome.longest_gap_ms = std::chrono::duration<double, std::milli>(figures.longest_gap()).count();
  outcome.landed_on_old = figures.landed_on_old.get();
  outcome.breaker_opened = figures.breaker_opened.get();
  const bench::Histogram whole = figures.Whole();
  outcome.p50_us = whole.Quantile(0.5) / 1000;
  outcome.p99_us = whole.Quantile(0.99) / 1000;
  return outcome;
}

std::string Outcome::Verdict() const {
  const std::string what =
      fmt::format("{} under {} and {}: ", Plural(replacements, "pod was replaced", "pods were replaced"),
                  options.calls > 0 ? Plural(unary_calls, "call", "calls") : fmt::format("{} calls a second", options.qps),
                  Plural(options.streams, "stream", "streams"));
  if (clean()) {
    return what + fmt::format("of {} calls none failed and none was rejected, no stream was lost ({} were opened again, the "
                              "slowest after {:.0f} ms, none of them on a pod that was leaving), and the breaker never opened.",
                              unary_calls, streams_reopened, longest_gap_ms);
  }
  return what + fmt::format("{} of {} calls failed and {} were rejected, {} lost, {} opened again on a pod that was leaving, "
                            "and the breaker opened {}.",
                            unary_failed, unary_calls, unary_rejected, Plural(streams_lost, "stream was", "streams were"),
                            Plural(landed_on_old, "was", "were"), Plural(breaker_opened, "time", "times"));
}

std::string Outcome::Json(const Outcome* naive) const {
  const auto figures = [](const Outcome& of, const char* indent) {
    const std::vector<std::pair<const char*, std::int64_t>> counts = {{"pods", of.options.pods},
                                                                      {"streams", of.options.streams},
                                                                      {"replacements", of.replacements},
                                                                      {"unary_calls", of.unary_calls},
                                                                      {"unary_failed", of.unary_failed},
                                                                      {"unary_rejected", of.unary_rejected},
                                                                      {"streams_lost", of.streams_lost},
                                                                      {"streams_reopened", of.streams_reopened},
                                                                      {"landed_on_old", of.landed_on_old},
                                                                      {"breaker_opened", of.breaker_opened},
                                                                      {"goaway_before_trailers", of.goaway_before_trailers},
                                                                      {"connections", of.connections}};
    std::string text;
    for (const auto& [name, value] : counts) text += fmt::format("{}\"{}\": {},\n", indent, name, value);
    text += fmt::format("{}\"longest_gap_ms\": {:.1f},\n", indent, of.longest_gap_ms);
    return text + fmt::format("{}\"p50_us\": {:.1f},\n{}\"p99_us\": {:.1f}", indent, of.p50_us, indent, of.p99_us);
  };
  std::string text = "{\n" + figures(*this, "  ");
  if (naive != nullptr) text += ",\n  \"naive\": {\n" + figures(*naive, "    ") + "\n  }";
  return text + "\n}\n";
}

}  // namespace rollout
