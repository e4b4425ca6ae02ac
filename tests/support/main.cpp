#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

namespace penstock::test {
// In support/echo_pod.cpp, where a test program links it.
__attribute__((weak)) int PodMain(int argc, char** argv);
}  // namespace penstock::test

// A pod where the program was started as one (support/echo_pod.h); else doctest's own main, and the filter of `tests/run --filter TEXT`.
int main(int argc, char** argv) {
  if (penstock::test::PodMain != nullptr && argc > 1 && std::string(argv[1]) == "--pod") {
    return penstock::test::PodMain(argc, argv);
  }
  doctest::Context context(argc, argv);
  if (const char* filter = std::getenv("PENSTOCK_TEST_FILTER"); filter != nullptr && *filter != '\0') {
    context.addFilter("test-case", ("*" + std::string(filter) + "*").c_str());
  }
  return context.run();
}
