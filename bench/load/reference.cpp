#include <fmt/format.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "report.h"

namespace load {
namespace {

// How much worse a cell may be than its reference. Instructions vary with how often the threads find nothing to do, and with what
// the compiler makes of penstock's own part: of a message, of which there are several to a wake-up, more than of a call. Allocations
// hardly vary.
double Tolerated(const std::string& name) {
  if (!name.ends_with("instructions")) return 0.02;
  if (name.starts_with("loopback")) return 0.05;
  return name.starts_with("server_unary") ? 0.08 : 0.2;
}
// Absolute, so that 0 can be compared: an eighth of an allocation a call is noise of what is made once.
double Slack(const std::string& name) { return name.ends_with("allocations") ? 0.13 : 0; }

}  // namespace

std::string ReferenceJson(const std::vector<Cell>& cells) {
  std::string text = "{";
  const char* separator = "\n";
  for (const Cell& cell : cells) {
    text += fmt::format("{}  \"{}\": {{\"raw\": {:.2f}, \"penstock\": {:.2f}, \"ratio\": {:.4f}}}", separator, cell.name, cell.raw,
                        cell.penstock, cell.ratio);
    separator = ",\n";
  }
  return text + "\n}\n";
}

bool WithinReference(const std::vector<Cell>& cells, const std::string& reference_file) {
  std::ifstream file(reference_file);
  std::stringstream text;
  text << file.rdbuf();
  google::protobuf::Struct reference;
  if (!file || !google::protobuf::util::JsonStringToMessage(text.str(), &reference).ok()) {
    fmt::print(stderr, "bench/run load: '{}' cannot be read as a reference\n", reference_file);
    return false;
  }
  bool within = true;
  std::size_t compared = 0;
  fmt::print("{:<38} {:>12} {:>12} {:>8} {:>10} {:>8}\n", "", "raw", "penstock", "ratio", "reference", "ratio");
  for (const Cell& cell : cells) {
    const auto found = reference.fields().find(cell.name);
    if (found == reference.fields().end()) continue;
    ++compared;
    const auto& fields = found->second.struct_value().fields();
    const double penstock = fields.at("penstock").number_value();
    const double ratio = fields.at("ratio").number_value();
    const double tolerated = 1 + Tolerated(cell.name);
    // Both: a change in gRPC's own part is no fault of penstock's, and shows in the raw figure too.
    const bool worse = cell.penstock > penstock * tolerated + Slack(cell.name) &&
                       (cell.raw <= 0 || cell.ratio > ratio * tolerated + Slack(cell.name) / cell.raw);
    within = within && !worse;
    fmt::print("{:<38} {:>12.2f} {:>12.2f} {:>8.3f} {:>10.2f} {:>8.3f}{}\n", cell.name, cell.raw, cell.penstock, cell.ratio,
               penstock, ratio, worse ? "  WORSE" : "");
  }
  for (const auto& [name, value] : reference.fields()) {
    bool measured = false;
    for (const Cell& cell : cells) measured = measured || cell.name == name;
    if (measured) continue;
    fmt::print("{:<38} was not measured\n", name);
    within = false;
  }
  if (compared == 0) within = false;
  if (!within) {
    fmt::print("Worse than the reference. If it is meant: bench/run load --write-reference bench/results/reference.json\n");
  }
  return within;
}

}  // namespace load
