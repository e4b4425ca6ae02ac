// For a build without opentelemetry-cpp: nothing is recorded, and whoever asks for it is told so.
#include "common/telemetry.h"

namespace example {

struct Telemetry::Pipeline {};

std::string Telemetry::Check(const std::string& where) {
  return where.empty() ? "" : "is \"" + where + "\": this program was built without OpenTelemetry";
}

Telemetry::Telemetry(const std::string&, const std::string&) {}
Telemetry::~Telemetry() = default;
void Telemetry::Flush() const {}
std::shared_ptr<penstock::ClientObserver> Telemetry::ForClient() const { return nullptr; }
std::vector<std::shared_ptr<penstock::ServerObserver>> Telemetry::ForServer() const { return {}; }

}  // namespace example
