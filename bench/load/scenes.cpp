#include "scenes.h"

#include <fmt/format.h>

namespace load {
namespace {

const std::vector<Form> kUnaryForms = {{"penstock callback", ""}, {"penstock reactor", "reactor."},
                                       {"penstock callback, transparent", "transparent."}};

// By the names of their variants.
std::vector<Contender> Clients(Kind kind, const std::vector<std::string>& names) {
  std::vector<Contender> contenders;
  for (const std::string& name : names) {
    if (FindVariant(kind, name) != nullptr) contenders.push_back({name, name});
  }
  return contenders;
}

std::vector<Contender> AllUnary() {
  std::vector<Contender> contenders;
  for (const VariantEntry& entry : Variants()) {
    if (entry.kind == Kind::kUnary) contenders.push_back({entry.name, entry.name});
  }
  return contenders;
}

const std::vector<std::string> kFew = {"raw reactor", "raw reactor again", "raw function", "raw function, own object",
                                       "raw completion queue", "penstock callback", "penstock reactor"};

void AddUnary(std::vector<Scene>& scenes) {
  const auto add = [&](Scene scene) {
    scene.control = "raw reactor again";
    scene.forms = kUnaryForms;
    scenes.push_back(std::move(scene));
  };
  add({.name = "loopback_sequential", .what = "unary calls over loopback, a thread that waits for each", .waited_for = true,
       .contenders = AllUnary()});
  for (const int outstanding : {1, 8, 64, 512}) {
    const bool all = outstanding == 1 || outstanding == 64;
    add({.name = fmt::format("loopback_{}", outstanding),
         .what = fmt::format("unary calls over loopback, {} outstanding", outstanding),
         .outstanding = outstanding,
         .seconds = outstanding == 1 ? 0.3 : 0.5,
         .counted = all,
         .contenders = all ? AllUnary() : Clients(Kind::kUnary, kFew)});
  }
  for (const int outstanding : {1, 8, 64, 512}) {
    add({.name = fmt::format("loopback_{}_64k", outstanding),
         .what = fmt::format("unary calls over loopback that carry 64 KiB both ways, {} outstanding", outstanding),
         .outstanding = outstanding,
         .payload = 64 * 1024,
         .in_short = outstanding == 8,
         .contenders = Clients(Kind::kUnary, kFew)});
  }
  add({.name = "in_process_sequential", .what = "unary calls, client and server in one process, a thread that waits for each",
       .waited_for = true, .in_process = true, .contenders = Clients(Kind::kUnary, kFew)});
  add({.name = "in_process_64", .what = "unary calls, client and server in one process, 64 outstanding", .outstanding = 64,
       .in_process = true, .contenders = Clients(Kind::kUnary, kFew)});
  for (const int threads : {2, 4, 8}) {
    add({.name = fmt::format("threads_{}", threads),
         .what = fmt::format("unary calls over loopback, {} threads that wait for each", threads),
         .outstanding = threads, .waited_for = true, .in_short = false,
         .contenders = Clients(Kind::kUnary, {"raw reactor", "raw reactor again", "raw sync", "textbook wrapper",
                                              "penstock callback", "penstock reactor"})});
  }
}

void AddStreams(std::vector<Scene>& scenes) {
  const std::vector<Form> forms = {{"penstock", ""}};
  for (const int streams : {1, 64}) {
    scenes.push_back({.name = fmt::format("bidi_{}", streams),
                      .what = fmt::format("{} bidi streams, a message under way on each; a round trip", streams),
                      .kind = Kind::kBidi, .outstanding = streams, .counted = streams == 1,
                      .contenders = {{"raw", "raw"}, {"raw again", "raw"}, {"penstock", "penstock"}},
                      .control = "raw again", .forms = forms});
    scenes.push_back({.name = fmt::format("bidi_burst_{}", streams),
                      .what = fmt::format("{} bidi streams, {} messages under way on each; a round trip", streams, kWindow),
                      .kind = Kind::kBidiBurst, .outstanding = streams,
                      .contenders = {{"raw plain", "raw plain", "raw plain"}, {"raw plain again", "raw plain", "raw plain"},
                                     {"raw hints", "raw hints"}, {"penstock", "penstock"},
                                     {"penstock both ends", "penstock", "penstock"},
                                     {"penstock coalescing", "penstock coalescing", "penstock coalescing"}},
                      .control = "raw plain again",
                      .forms = {{"penstock", ""}, {"penstock both ends", "both."}, {"penstock coalescing", "coalescing."}}});
    scenes.push_back({.name = fmt::format("up_{}", streams),
                      .what = fmt::format("{} client streams; a message", streams),
                      .kind = Kind::kUp, .outstanding = streams, .counted = streams == 1,
                      .contenders = {{"raw plain", "raw plain"}, {"raw plain again", "raw plain"}, {"raw hints", "raw hints"},
                                     {"penstock plain", "penstock plain"}, {"penstock", "penstock"}},
                      .control = "raw plain again", .forms = {{"penstock", ""}, {"penstock plain", "plain."}}});
    scenes.push_back({.name = fmt::format("down_{}", streams),
                      .what = fmt::format("{} server streams, read; a message", streams),
                      .kind = Kind::kDown, .outstanding = streams, .seconds = 1.0,
                      // A server without hints: one that only ever says that more follows begins in fits and starts.
                      .contenders = {{"raw", "raw", "raw plain"}, {"raw again", "raw", "raw plain"}, {"penstock", "penstock", "raw plain"}},
                      .control = "raw again", .forms = forms});
  }
}

void AddServer(std::vector<Scene>& scenes) {
  const std::vector<Form> forms = {{"penstock", ""}, {"penstock plain", "plain."}};
  for (const int outstanding : {1, 64}) {
    scenes.push_back({.name = fmt::format("server_unary_{}", outstanding),
                      .what = fmt::format("the server of unary calls over loopback, {} outstanding", outstanding),
                      .outstanding = outstanding, .server_side = true, .seconds = 0.5, .counted = true,
                      .contenders = {{"raw", "raw function", "raw"}, {"raw again", "raw function", "raw again"},
                                     {"raw own reactor", "raw function", "raw own reactor"},
                                     {"penstock", "raw function", "penstock"},
#ifdef PENSTOCK_BENCH_OTEL
                                     {"penstock, OpenTelemetry", "raw function", "penstock, OpenTelemetry"},
#endif
                                     },
                      .control = "raw again", .forms = forms});
  }
  for (const int streams : {1, 64}) {
    const auto add = [&](Kind kind, const std::string& name, const std::string& client) {
      scenes.push_back({.name = fmt::format("server_{}_{}", name, streams),
                        .what = fmt::format("the server of {} {} streams; a message", streams, name),
                        // Of one stream 1 s, so that a message's share of what goes on beside is small.
                        .kind = kind, .outstanding = streams, .server_side = true,
                        .seconds = kind == Kind::kDown || streams == 1 ? 1.0 : 0.3,
                        .in_short = streams == 64,
                        .contenders = {{"raw plain", client, "raw plain"}, {"raw plain again", client, "raw plain"},
                                       {"raw hints", client, "raw"}, {"penstock plain", client, "penstock plain"},
                                       {"penstock", client, "penstock"}},
                        .control = "raw plain again", .forms = forms});
    };
    add(Kind::kBidi, "bidi", "raw");
    add(Kind::kUp, "up", "raw hints");
    add(Kind::kDown, "down", "raw");
  }
}

void AddMemory(std::vector<Scene>& scenes) {
  scenes.push_back({.name = "connection", .what = "a client with a connection of its own, made and used once", .clients = 40,
                    .contenders = Clients(Kind::kUnary, {"raw reactor", "raw reactor again", "penstock callback"}),
                    .control = "raw reactor again", .forms = {{"penstock callback", ""}}});
  scenes.push_back({.name = "idle_stream", .what = "a stream on which nothing comes, of 10,000 on one connection",
                    .kind = Kind::kIdle, .outstanding = 10000,
                    .contenders = {{"raw", "raw"}, {"raw again", "raw"}, {"penstock", "penstock"},
                                   {"penstock subscription", "penstock subscription"}},
                    .control = "raw again", .forms = {{"penstock", ""}, {"penstock subscription", "subscription."}}});
}

void AddIdle(std::vector<Scene>& scenes) {
  Scene scene{.name = "idle_1s", .what = "calls 1.0 to 1.2 s apart, one at a time", .spaced_ms = 1000,
              .control = "raw reactor again", .forms = kUnaryForms};
  for (const char* name : {"raw reactor", "raw reactor again", "raw function"}) scene.contenders.push_back({name, name});
  // The completion queue has no callback threads that could have fallen asleep: what it takes is the machine's.
  for (const char* name : {"raw completion queue", "penstock callback", "penstock reactor"}) {
    scene.contenders.push_back({name, name, "penstock"});
  }
  scenes.push_back(std::move(scene));
}

}  // namespace

const std::vector<Scene>& Scenes() {
  static const std::vector<Scene> scenes = [] {
    std::vector<Scene> all;
    AddUnary(all);
    AddStreams(all);
    AddServer(all);
    AddMemory(all);
    AddIdle(all);
    return all;
  }();
  return scenes;
}

const std::vector<VariantEntry>& Variants() {
  static const std::vector<VariantEntry> variants = [] {
    std::vector<VariantEntry> all;
    for (auto* part : {&RawUnaryVariants, &TextbookVariants, &PenstockUnaryVariants, &RawStreamVariants, &PenstockStreamVariants}) {
      for (VariantEntry& entry : part()) all.push_back(entry);
    }
    return all;
  }();
  return variants;
}

const VariantEntry* FindVariant(Kind kind, std::string_view name) {
  for (const VariantEntry& entry : Variants()) {
    if (entry.kind == kind && name == entry.name) return &entry;
  }
  return nullptr;
}

}  // namespace load
