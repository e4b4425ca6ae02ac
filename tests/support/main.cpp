#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

// doctest's own main, and the filter of `tests/run --filter TEXT`.
int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  if (const char* filter = std::getenv("PENSTOCK_TEST_FILTER"); filter != nullptr && *filter != '\0') {
    context.addFilter("test-case", ("*" + std::string(filter) + "*").c_str());
  }
  return context.run();
}
