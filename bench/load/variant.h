#pragma once

// A way to make unary calls, to be measured beside the others.
//
// Each is what its user would write: the same request, a fresh ClientContext a call, an answer that is looked at. Most use
// their messages again; where a name says so, and in penstock's callback form, each call has messages of its own.
//
//     auto variant = MakeRawReactor(address);
//     variant->Run(64, meter, slots);
//
// Threads: one Run at a time.
// Ownership: a variant owns its channel.
// Time: none of its own.
// Errors: failed calls are told to the meter.

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "meter.h"

namespace load {

class Variant {
 public:
  virtual ~Variant() = default;
  // Keeps as many calls going as there are slots until the meter ends the run.
  virtual void Run(Meter& meter, std::deque<Slot>& slots) = 0;
};

struct VariantEntry {
  const char* name;
  const char* what;
  std::unique_ptr<Variant> (*make)(const std::string& address);
};

// The first is the one that all others are compared with.
const std::vector<VariantEntry>& Variants();

std::unique_ptr<Variant> MakeRawReactor(const std::string& address);
std::unique_ptr<Variant> MakeRawFunction(const std::string& address);
std::unique_ptr<Variant> MakeRawFunctionObject(const std::string& address);
std::unique_ptr<Variant> MakeRawCompletionQueue(const std::string& address);
std::unique_ptr<Variant> MakeRawSync(const std::string& address);
std::unique_ptr<Variant> MakeRetryPolicy(const std::string& address);
std::unique_ptr<Variant> MakeInterceptor(const std::string& address);
std::unique_ptr<Variant> MakeTextbook(const std::string& address);
std::unique_ptr<Variant> MakePenstockCallback(const std::string& address);
std::unique_ptr<Variant> MakePenstockReactor(const std::string& address);
// The callback form with transparent_retries = true.
std::unique_ptr<Variant> MakePenstockTransparent(const std::string& address);
// The callback form with telemetry; only where the build has the libraries (PENSTOCK_BENCH_OTEL, PENSTOCK_BENCH_PROMETHEUS).
std::unique_ptr<Variant> MakePenstockOtel(const std::string& address);
std::unique_ptr<Variant> MakePenstockPrometheus(const std::string& address);

// What every call sends.
inline constexpr int kPayloadBytes = 64;

}  // namespace load
