#pragma once

// What the micro benchmarks measure: each workload does one kind of operation so many times.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace bench {

struct Workload {
  std::string name;
  std::string what;                        // one operation
  std::function<void(std::uint64_t)> run;  // does so many operations; several threads call it at once
};

// All of them, each with its breaker or budget ready, in the order of the table.
std::vector<Workload> Workloads();

}  // namespace bench
