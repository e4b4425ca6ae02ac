// The explorer itself: it must find what is there to be found, or every proof made with it is worth nothing.

#include "support/explorer.h"

#include <doctest/doctest.h>

#include <memory>
#include <set>
#include <string>

#if !defined(__SANITIZE_THREAD__)

TEST_CASE("explorer: a lost update is found with one preemption and not with none") {
  const auto scenario = [](explorer::Run& run) {
    auto word = std::make_shared<explorer::Atomic<int>>(0);
    for (int i = 0; i < 2; ++i) run.Thread([word] { word->store(word->load() + 1); });
    run.Finally([word, &run] { run.Check(word->load() == 2, "an update was lost"); });
  };
  CHECK(explorer::Explore({.preemptions = 0}, scenario).ok());
  const auto found = explorer::Explore({.preemptions = 1}, scenario);
  CHECK_FALSE(found.ok());
  CHECK(found.failure.find("an update was lost") == 0);
  CHECK(found.failure.find("T0*1 T1*2 T0*1") != std::string::npos);
}

TEST_CASE("explorer: an atomic addition loses nothing in any schedule") {
  const auto found = explorer::Explore({.preemptions = 3}, [](explorer::Run& run) {
    auto word = std::make_shared<explorer::Atomic<int>>(0);
    for (int i = 0; i < 3; ++i) {
      run.Thread([word] {
        word->fetch_add(1);
        int seen = word->load();
        while (!word->compare_exchange_weak(seen, seen + 1)) {
        }
      });
    }
    run.Finally([word, &run] { run.Check(word->load() == 6, "lost"); });
  });
  CHECK_MESSAGE(found.ok(), found.failure);
  CHECK(found.schedules > 100);
}

TEST_CASE("explorer: two threads of two steps have their six interleavings, all of them tried") {
  std::set<std::string> orders;
  const auto found = explorer::Explore({.preemptions = 3}, [&](explorer::Run& run) {
    auto word = std::make_shared<explorer::Atomic<int>>(0);
    auto order = std::make_shared<std::string>();
    for (char name : {'a', 'b'}) {
      run.Thread([=] {
        for (int step = 0; step < 2; ++step) {
          word->load();
          *order += name;
        }
      });
    }
    run.Finally([&orders, order] { orders.insert(*order); });
  });
  CHECK(found.ok());
  for (const char* order : {"aabb", "abab", "abba", "baab", "baba", "bbaa"}) CHECK(orders.count(order) == 1);
  CHECK(orders.size() == 6);
}

TEST_CASE("explorer: in a cascade each thread stalls at each point while the next ones run, and they end in every order") {
  std::set<std::string> orders;
  const auto found = explorer::Explore({.preemptions = 2, .cascade = true}, [&](explorer::Run& run) {
    auto word = std::make_shared<explorer::Atomic<int>>(0);
    auto order = std::make_shared<std::string>();
    for (char name : {'a', 'b', 'c'}) {
      run.Thread([=] {
        for (int step = 0; step < 2; ++step) {
          word->load();
          *order += name;
        }
      });
    }
    run.Finally([&orders, order] { orders.insert(*order); });
  });
  CHECK(found.ok());
  CHECK(orders == std::set<std::string>{"aabbcc", "aabccb", "abbcca", "abccab", "abccba"});
}

TEST_CASE("explorer: a thread that never ends is reported") {
  const auto found = explorer::Explore({.preemptions = 0}, [](explorer::Run& run) {
    auto word = std::make_shared<explorer::Atomic<int>>(0);
    run.Thread([word] {
      while (word->load() == 0) {
      }
    });
    run.Thread([word] { word->store(1); });
  });
  CHECK_FALSE(found.ok());
  CHECK(found.failure.find("never ends") != std::string::npos);
}

#endif
