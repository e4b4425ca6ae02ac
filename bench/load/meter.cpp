#include "meter.h"

#include <malloc.h>
#include <sched.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstdlib>

#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#define PENSTOCK_BENCH_CALLGRIND 1
#endif

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

std::int64_t HeapBytes() noexcept {
  const struct mallinfo2 heap = mallinfo2();
  return static_cast<std::int64_t>(heap.uordblks + heap.hblkhd);
}

bool CanCount() {
#ifdef PENSTOCK_BENCH_CALLGRIND
  return std::system("valgrind --version >/dev/null 2>&1") == 0;
#else
  return false;
#endif
}

void StartCounting() {
#ifdef PENSTOCK_BENCH_CALLGRIND
  CALLGRIND_START_INSTRUMENTATION;
#endif
}

void StopCounting() {
#ifdef PENSTOCK_BENCH_CALLGRIND
  CALLGRIND_STOP_INSTRUMENTATION;
#endif
}

void PinToCore(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  sched_setaffinity(0, sizeof set, &set);  // Refused in some containers: the run is as valid, only noisier.
}

}  // namespace load
