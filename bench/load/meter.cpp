#include "meter.h"

#include <sched.h>
#include <sys/resource.h>

#include <bit>
#include <cerrno>
#include <cstdlib>

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define PENSTOCK_COUNTS_ALLOCATIONS 1

// Every allocation of the process passes here, those of libgrpc too. A counter a thread, so that counting adds no
// contended line to what is measured.
extern "C" {
void* __libc_malloc(std::size_t) noexcept;
void* __libc_calloc(std::size_t, std::size_t) noexcept;
void* __libc_realloc(void*, std::size_t) noexcept;
void* __libc_memalign(std::size_t, std::size_t) noexcept;
}

namespace {
constexpr int kCounters = 64;
struct alignas(64) Counter {
  std::atomic<std::int64_t> value{0};
};
Counter counters[kCounters];
std::atomic<int> next_thread{0};

void Count() noexcept {
  thread_local int mine = -1;
  if (mine < 0) mine = next_thread.fetch_add(1, std::memory_order_relaxed) % kCounters;
  counters[mine].value.fetch_add(1, std::memory_order_relaxed);
}
}  // namespace

extern "C" {
void* malloc(std::size_t size) noexcept {
  Count();
  return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) noexcept {
  Count();
  return __libc_calloc(count, size);
}
void* realloc(void* old, std::size_t size) noexcept {
  Count();
  return __libc_realloc(old, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) noexcept {
  Count();
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** result, std::size_t alignment, std::size_t size) noexcept {
  Count();
  *result = __libc_memalign(alignment, size);
  return *result == nullptr ? ENOMEM : 0;
}
}
#endif

namespace load {

std::size_t Histogram::Index(std::uint64_t value) noexcept {
  if (value < kSteps) return value;
  const int exponent = std::bit_width(value) - 6;  // value >> exponent lies in [32, 64)
  return static_cast<std::size_t>(exponent + 1) * kSteps + ((value >> exponent) - kSteps);
}

void Histogram::Merge(const Histogram& other) noexcept {
  for (std::size_t i = 0; i < buckets_.size(); ++i) buckets_[i] += other.buckets_[i];
}

double Histogram::Quantile(double q) const noexcept {
  std::uint64_t total = 0;
  for (const auto count : buckets_) total += count;
  if (total == 0) return 0;
  const auto wanted = static_cast<std::uint64_t>(q * static_cast<double>(total - 1)) + 1;
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    seen += buckets_[i];
    if (seen < wanted) continue;
    if (i < kSteps) return static_cast<double>(i);
    const auto exponent = i / kSteps - 1;
    return (static_cast<double>(i % kSteps + kSteps) + 0.5) * static_cast<double>(std::uint64_t{1} << exponent);
  }
  return 0;
}

void Meter::Finished() {
  std::lock_guard lock(mutex_);
  if (--running_ == 0) idle_.notify_all();
}

void Meter::Wait() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return running_ == 0; });
}

std::int64_t Allocations() noexcept {
#ifdef PENSTOCK_COUNTS_ALLOCATIONS
  std::int64_t sum = 0;
  for (const auto& counter : counters) sum += counter.value.load(std::memory_order_relaxed);
  return sum;
#else
  return -1;
#endif
}

std::chrono::microseconds CpuTime() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto micros = [](const timeval& time) {
    return std::chrono::seconds(time.tv_sec) + std::chrono::microseconds(time.tv_usec);
  };
  return micros(usage.ru_utime) + micros(usage.ru_stime);
}

void PinToCore(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  sched_setaffinity(0, sizeof set, &set);  // Refused in some containers: the run is as valid, only noisier.
}

}  // namespace load
