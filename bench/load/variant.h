#pragma once

// A way to make calls or to move messages, to be measured beside the others of its kind.
//
// Each is what its user would write: the same request, a fresh ClientContext a call, an answer that is looked at. Most use
// their messages again; where a name says so, and in penstock's callback form, each call has messages of its own.
//
//     auto variant = FindVariant(Kind::kUnary, "raw reactor")->make({.address = address});
//     variant->Run(meter, slots);
//
// Threads: one Run at a time.
// Ownership: a variant owns its channel.
// Time: none of its own.
// Errors: failed calls are told to the meter.

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "meter.h"

namespace load {

enum class Kind {
  kUnary,      // A slot makes call after call.
  kBidi,       // A slot is a stream with one message under way: a round trip counts.
  kBidiBurst,  // A slot is a stream with kWindow messages under way.
  kUp,         // A slot is a client stream that writes without end: a message that was taken counts.
  kDown,       // A slot is a server stream that is read without end: a message counts.
  kIdle,       // A slot is a server stream on which nothing comes; what it costs is memory.
};

inline constexpr int kWindow = 16;

class Variant {
 public:
  virtual ~Variant() = default;
  // Keeps all slots going until the meter ends the run.
  virtual void Run(Meter& meter, std::deque<Slot>& slots) = 0;
};

struct VariantOptions {
  std::string address;
  int payload = 64;
};

struct VariantEntry {
  Kind kind;
  const char* name;
  const char* what;
  std::unique_ptr<Variant> (*make)(const VariantOptions& options);
};

// All that were built in, of all kinds.
const std::vector<VariantEntry>& Variants();
// Null where there is none.
const VariantEntry* FindVariant(Kind kind, std::string_view name);

// The parts of Variants(), a source file each.
std::vector<VariantEntry> RawUnaryVariants();
std::vector<VariantEntry> PenstockUnaryVariants();
std::vector<VariantEntry> TextbookVariants();
std::vector<VariantEntry> RawStreamVariants();
std::vector<VariantEntry> PenstockStreamVariants();

// Sets the callers going, one a slot, and waits for the end of the run. A caller's Call() starts a call, whose completion
// asks Slot::EndAndContinue() whether to start the next.
template <class Callers>
void RunCallers(Callers& callers, Meter& meter, std::deque<Slot>& slots) {
  if (slots.front().waited_for()) return RunWaiting(callers, slots);
  auto slot = slots.begin();
  for (auto& caller : callers) {
    if ((slot++)->Begin()) caller.Call();
  }
  meter.Wait();
}

}  // namespace load
