#include "bench/about.h"

#include <fmt/format.h>
#include <google/protobuf/stubs/common.h>
#include <grpcpp/grpcpp.h>
#include <sys/utsname.h>

#include <fstream>
#include <thread>

#include "bench_build.h"

namespace bench {
namespace {

std::string Processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

}  // namespace

std::string AboutJson() {
  utsname system{};
  uname(&system);
  return fmt::format(
      R"({{"processor": "{}", "cores": {}, "kernel": "{}", "compiler": "{}", "optimization": "{}", "commit": "{}", )"
      R"("grpc": "{}", "protobuf": {}}})",
      Processor(), std::thread::hardware_concurrency(), system.release, PENSTOCK_BUILD_COMPILER,
      PENSTOCK_BUILD_OPTIMIZATION, PENSTOCK_BUILD_COMMIT, grpc::Version(), GOOGLE_PROTOBUF_VERSION);
}

}  // namespace bench
