// libFuzzer's entry point; PENSTOCK_FUZZ_TARGET says which parser.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto run = [] {
    for (const auto& target : penstock::test::FuzzTargets()) {
      if (target.name == PENSTOCK_FUZZ_TARGET) return target.run;
    }
    __builtin_trap();
  }();
  run(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
