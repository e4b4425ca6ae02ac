#pragma once

// Where the example's programs tell what they do: spans, metrics and log records, through penstock's OpenTelemetry adapter.
//
//     const auto where = config.Text("telemetry", Telemetry::kHelp, "", Telemetry::Check);
//     ...
//     Telemetry telemetry("wallet", *where);
//     Client::Create({.address = ..., .observer = telemetry.ForClient()});
//     Server::Create({.address = ..., .observers = telemetry.ForServer()}, {&service});
//
// Threads: every member may be called from any thread; what is recorded is written by threads of OpenTelemetry's.
// Ownership: make it before the clients and servers that it observes, so that the last export has all of them.
// Time: metrics are exported once a second; the destructor exports what is left, in two seconds, and the second beyond them that
// an export which has begun may take.
// Errors: a collector that cannot be reached costs what it would have got, and nothing else.

#include <memory>
#include <string>
#include <vector>

#include "penstock/server/call.h"
#include "penstock/telemetry.h"

namespace example {

class Telemetry {
 public:
  static constexpr char kHelp[] =
      "otlp: to the collector at OTEL_EXPORTER_OTLP_ENDPOINT; a folder: to traces.txt, metrics.txt (the latest) and logs.txt there; "
      "empty: nowhere";

  // What is wrong with a value of that flag; empty when it is fine.
  static std::string Check(const std::string& where);

  Telemetry(const std::string& service, const std::string& where);
  ~Telemetry();
  Telemetry(const Telemetry&) = delete;
  Telemetry& operator=(const Telemetry&) = delete;

  // Exports what is left, as the destructor does: for a program that ends by std::_Exit.
  void Flush() const;

  // Null, and none, where nothing is recorded: then the calls pay nothing.
  std::shared_ptr<penstock::ClientObserver> ForClient() const;
  std::vector<std::shared_ptr<penstock::ServerObserver>> ForServer() const;

 private:
  struct Pipeline;
  std::unique_ptr<Pipeline> pipeline_;
};

}  // namespace example
