// A plugin that uses a breaker is unloaded while threads that used it live on.

#include <doctest/doctest.h>

#include <dlfcn.h>

#include <barrier>
#include <cstdint>
#include <thread>
#include <vector>

TEST_CASE("B10: a module with a breaker may be unloaded before the threads that used it end") {
  for (int round = 1; round <= 5; ++round) {
    void* module = dlopen(PENSTOCK_TEST_MODULE, RTLD_NOW | RTLD_LOCAL);
    REQUIRE_MESSAGE(module != nullptr, dlerror());
    const auto call = reinterpret_cast<std::uint64_t (*)()>(dlsym(module, "CallAndCount"));
    REQUIRE((call != nullptr));
    constexpr int kThreads = 8;
    std::barrier together(kThreads + 1);
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        call();
        together.arrive_and_wait();  // used
        together.arrive_and_wait();  // unloaded; now the thread's destructors run
      });
    }
    together.arrive_and_wait();
    CHECK(call() % (kThreads + 1) == 0);  // whether or not the module stayed from the last round
    CHECK(dlclose(module) == 0);
    together.arrive_and_wait();
    for (std::thread& thread : threads) thread.join();
  }
}
