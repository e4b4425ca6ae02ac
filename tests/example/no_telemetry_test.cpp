// What the example's programs are built with where opentelemetry-cpp is not there: every build makes it here.

#include <doctest/doctest.h>

#include "common/telemetry.h"

namespace example {

TEST_CASE("O6: without OpenTelemetry the example's programs record nothing, and say so to whoever asks for it") {
  CHECK(Telemetry::Check("").empty());
  CHECK(Telemetry::Check("otlp") == "is \"otlp\": this program was built without OpenTelemetry");
  const Telemetry telemetry("wallet", "");
  CHECK(telemetry.ForClient() == nullptr);
  CHECK(telemetry.ForServer().empty());
  telemetry.Flush();
}

}  // namespace example
