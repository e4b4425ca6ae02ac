#pragma once

// One rollout under load: pods behind one address, a caller, a line a second, and what came of it.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "side.h"

namespace rollout {

struct Options {
  int pods = 3;
  int streams = 64;
  int qps = 1000;
  // Instead of a steady rate: this many calls, 64 at a time, through at least so many replacements.
  std::int64_t calls = 0;
  int replacements = 0;
};

struct Side {
  const char* name;
  std::function<penstock::Result<std::unique_ptr<penstock::testing::Pod>>(Store&, Figures&)> make_pod;
  std::function<std::unique_ptr<Caller>(const std::string& address, Figures&)> make_caller;
};

struct Outcome {
  bool ran = false;  // false: it could not start, or was interrupted
  bool interrupted = false;
  Options options;
  std::int64_t replacements = 0;
  std::int64_t unary_calls = 0;
  std::int64_t unary_failed = 0;
  std::int64_t unary_rejected = 0;
  std::int64_t streams_lost = 0;
  std::int64_t streams_reopened = 0;
  double longest_gap_ms = 0;  // between a stream's end and the opening of its successor
  std::int64_t landed_on_old = 0;
  std::int64_t breaker_opened = 0;
  std::int64_t goaway_before_trailers = 0;  // of `connections`
  std::int64_t connections = 0;             // on which a pod ended a stream
  double p50_us = 0;
  double p99_us = 0;

  bool clean() const {
    return ran && unary_failed == 0 && unary_rejected == 0 && streams_lost == 0 && landed_on_old == 0 &&
           breaker_opened == 0;
  }
  std::string Verdict() const;
  // With the figures of the other side, where it ran too, under "naive".
  std::string Json(const Outcome* naive) const;
};

// `interrupted` is asked often; when it says so, the run ends early and in order.
Outcome Run(const Side& side, const Options& options, const std::function<bool()>& interrupted);

}  // namespace rollout
