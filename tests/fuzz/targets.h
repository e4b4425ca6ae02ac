#pragma once

// What the fuzzers feed with anything at all: each parser of something that a peer or an operator writes. Each function
// aborts with a message when what must always hold does not.
//
// Run by the unit test parsers_fuzz_test (a fixed stretch of random inputs, with every sanitizer) and by libFuzzer
// (tests/fuzz/run.py).

#include <string_view>
#include <vector>

namespace penstock::test {

struct FuzzTarget {
  std::string_view name;
  void (*run)(std::string_view input);
  std::vector<std::string_view> seeds;
};

const std::vector<FuzzTarget>& FuzzTargets();

}  // namespace penstock::test
