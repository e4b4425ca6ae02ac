#include "penstock/client/detail/call_memory.h"

#include <array>
#include <limits>
#include <new>

#include "penstock/client/detail/kept.h"

namespace penstock::inline v0::detail {

namespace {

constexpr std::size_t kStep = 128;
constexpr std::size_t kClasses = 32;
constexpr std::size_t kAnyBytes = std::numeric_limits<std::size_t>::max();  // Blocks of one size are bounded by their number.

constinit std::array<KeptShelf, kClasses> shelves{};
constinit thread_local std::array<KeptList, kClasses> lists{};

struct ListsEnd {
  ~ListsEnd() {
    for (KeptList& list : lists) list.End([](KeptNode* node) { ::operator delete(node); });
  }
};

void EndWithThread() noexcept {
  static thread_local ListsEnd end;
  (void)end;
}

constexpr std::size_t ClassOf(std::size_t size) { return (size + kStep - 1) / kStep; }

}  // namespace

void* TakeCallMemory(std::size_t size) {
  const std::size_t index = ClassOf(size);
  if (index >= kClasses) return ::operator new(size);
  if (KeptNode* node = lists[index].Take(shelves[index], EndWithThread)) return node;
  return ::operator new(index * kStep);
}

void GiveCallMemory(void* memory, std::size_t size) noexcept {
  const std::size_t index = ClassOf(size);
  if (!kKeepsCallMemory || index >= kClasses) return ::operator delete(memory);
  EndWithThread();
  if (!lists[index].Give(new (memory) KeptNode, shelves[index], kAnyBytes)) ::operator delete(memory);
}

}  // namespace penstock::inline v0::detail
