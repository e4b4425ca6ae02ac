#include "penstock/client/detail/call_memory.h"

#include <array>
#include <new>

namespace penstock::inline v0::detail {

namespace {

constexpr std::size_t kStep = 128;
constexpr std::size_t kClasses = 32;
constexpr std::uint32_t kMostBlocks = 64;  // Of one size, of one thread.

struct Block {
  Block* next;
};

struct List {
  Block* first = nullptr;
  std::uint32_t count = 0;
};

// Trivial, so that it can be used as long as the thread runs.
struct Cache {
  std::array<List, kClasses> lists;
  bool over = false;  // The thread is ending: nothing is kept any more.
};
constinit thread_local Cache cache;

struct CacheEnd {
  ~CacheEnd() {
    cache.over = true;
    for (List& list : cache.lists) {
      while (Block* block = list.first) {
        list.first = block->next;
        ::operator delete(block);
      }
    }
  }
};

constexpr std::size_t ClassOf(std::size_t size) { return (size + kStep - 1) / kStep; }

}  // namespace

void* TakeCallMemory(std::size_t size) {
  const std::size_t index = ClassOf(size);
  if (index >= kClasses) return ::operator new(size);
  List& list = cache.lists[index];
  if (Block* block = list.first) {
    list.first = block->next;
    --list.count;
    return block;
  }
  return ::operator new(index * kStep);
}

void GiveCallMemory(void* memory, std::size_t size) noexcept {
  const std::size_t index = ClassOf(size);
  if (!kKeepsCallMemory || index >= kClasses || cache.over || cache.lists[index].count >= kMostBlocks) return ::operator delete(memory);
  static thread_local CacheEnd end;
  (void)end;
  List& list = cache.lists[index];
  list.first = new (memory) Block{list.first};
  ++list.count;
}

}  // namespace penstock::inline v0::detail
