#pragma once

// What penstock keeps for the whole process: one loop thread, one channel, one log.
//
// The runtime starts with the first client or server and is never torn down, so that no order of destruction can hurt it.
// Three things about it can be set.
//
//     penstock::ConfigureRuntime({.heartbeat = std::chrono::milliseconds(0)});   // no heartbeat
//     penstock::SetLogSink([](penstock::LogSeverity severity, const std::string& line) { ... });
//
// Threads: every function may be called from any thread, at any time.
// Ownership: the log sink is kept until it is replaced.
// Time: real time.
// Errors: a heartbeat out of its range is refused.

#include <chrono>
#include <functional>
#include <string>

#include "penstock/core/clock.h"
#include "penstock/core/result.h"

namespace penstock::inline v0 {

struct RuntimeSettings {
  // gRPC's callback threads sleep for 100 ms once they have seen no event for a second, and whatever arrives then waits.
  // A call into a channel that goes nowhere, once in every `heartbeat`, keeps them awake for 0.3 ms of CPU a second.
  // 0 turns it off; otherwise 50 to 900 ms.
  Duration heartbeat = std::chrono::milliseconds(450);
};

// Takes effect at once. The settings in force, or an error that says what is allowed (and nothing changes).
Result<RuntimeSettings> ConfigureRuntime(const RuntimeSettings& settings);

enum class LogSeverity { kInfo, kWarning, kError };

// Where penstock says what nobody else hears: a user's function that threw, a shutdown that had to abandon a call. A line
// without its line feed. An empty function brings the default back: standard error. The sink may be called from any
// thread, several at once; what it throws is dropped.
using LogSink = std::function<void(LogSeverity, const std::string&)>;
void SetLogSink(LogSink sink);

}  // namespace penstock::inline v0
