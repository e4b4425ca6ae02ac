// A fixed stretch of random inputs for each parser; libFuzzer takes the same functions further (tests/fuzz/run.py).

#include <doctest/doctest.h>

#include <random>
#include <string>

#include "fuzz/targets.h"

namespace {

// Changes, copies, takes away and adds a few characters, mostly such as the seeds have.
void Mutate(std::string& text, std::mt19937_64& random, std::string_view alphabet) {
  const auto below = [&](std::size_t bound) { return static_cast<std::size_t>(random() % bound); };
  const auto character = [&] {
    return below(8) == 0 ? static_cast<char>(below(256)) : alphabet[below(alphabet.size())];
  };
  for (std::size_t i = 0, changes = 1 + below(4); i < changes; ++i) {
    const std::size_t at = text.empty() ? 0 : below(text.size());
    switch (below(5)) {
      case 0:
        text.insert(text.begin() + static_cast<std::ptrdiff_t>(at), character());
        break;
      case 1:
        if (!text.empty()) text.erase(at, 1 + below(4));
        break;
      case 2:
        if (!text.empty()) text[at] = character();
        break;
      case 3:
        text.insert(at, text.substr(below(text.size() + 1), below(12)));
        break;
      default:
        text.resize(at);
        break;
    }
  }
  if (text.size() > 10'000) text.resize(10'000);
}

}  // namespace

TEST_CASE("G6: parsers of addresses, pushback, baggage, trace context and fault scenarios hold on any input") {
  for (const auto& target : penstock::test::FuzzTargets()) {
    CAPTURE(target.name);
    std::string alphabet;
    for (const std::string_view seed : target.seeds) alphabet += seed;
    std::mt19937_64 random(1);
    for (const std::string_view seed : target.seeds) {
      target.run(seed);
      std::string text(seed);
      for (int i = 0; i < 4000; ++i) {
        Mutate(text, random, alphabet);
        target.run(text);
        if (i % 20 == 0) text = seed;
      }
    }
    for (int i = 0; i < 256; ++i) target.run(std::string(1, static_cast<char>(i)));
    target.run(std::string(100'000, alphabet[0]));
  }
  CHECK(penstock::test::FuzzTargets().size() == 5);
}
