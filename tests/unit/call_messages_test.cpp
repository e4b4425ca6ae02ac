// The messages of calls by callback, used again: what threads keep, what they hand on, and what they don't.

#include "penstock/client/detail/call_messages.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "penstock/client/detail/call_memory.h"

// Of the whole program, counted.
static std::atomic<long> blocks_alive{0};
void* operator new(std::size_t size) {
  void* const block = std::malloc(size);
  if (block == nullptr) throw std::bad_alloc();
  ++blocks_alive;
  return block;
}
void operator delete(void* block) noexcept {
  if (block != nullptr) --blocks_alive;
  std::free(block);
}
void operator delete(void* block, std::size_t) noexcept { ::operator delete(block); }

namespace penstock::inline v0::detail {

namespace {

// Like a protobuf message in what is asked of it: it keeps its memory when it is cleared. Each test has one of its own, with
// nothing kept yet.
template <int kTest>
struct Text {
  Text() { ++alive; }
  ~Text() { --alive; }
  Text(const Text&) = delete;
  Text& operator=(const Text&) = delete;
  void Clear() { text.clear(); }
  std::size_t ByteSizeLong() const { return text.size(); }

  std::string text;
  static inline int alive = 0;
};

template <int kTest>
using Messages = CallMessages<Text<kTest>, Text<kTest>>;

template <int kTest>
std::vector<Messages<kTest>*> Used(int count, std::size_t bytes) {
  std::vector<Messages<kTest>*> all;
  for (int i = 0; i < count; ++i) all.emplace_back(Messages<kTest>::Take())->request.text.assign(bytes, 'x');
  return all;
}

template <int kTest>
void GiveAll(const std::vector<Messages<kTest>*>& all) {
  for (auto* one : all) Messages<kTest>::Give(one);
}

template <class Body>
void OnNewThread(const Body& body) {
  std::jthread thread(body);
}

}  // namespace

TEST_CASE("L11: a call's messages are used again, cleared, with the memory that they have" * doctest::skip(!kKeepsCallMemory)) {
  auto* const first = Used<1>(1, 64 * 1024).front();
  Messages<1>::Give(first);
  auto* const again = Messages<1>::Take();
  CHECK(again == first);
  CHECK(again->request.text.empty());
  CHECK(again->request.text.capacity() >= 64 * 1024);
  Messages<1>::Give(again);
}

TEST_CASE("L11: what is too much for a thread is there for the others" * doctest::skip(!kKeepsCallMemory)) {
  OnNewThread([] { GiveAll<2>(Used<2>(65, 10)); });  // 64 to the shelf; the last one goes with its thread.
  CHECK(Text<2>::alive == 2 * 64);
  const auto taken = Used<2>(64, 10);
  CHECK(Text<2>::alive == 2 * 64);
  const auto made = Used<2>(1, 10);
  CHECK(Text<2>::alive == 2 * 65);
  GiveAll<2>(taken);
  GiveAll<2>(made);
}

TEST_CASE("L11: five lists of 64 are the most that is kept" * doctest::skip(!kKeepsCallMemory)) {
  GiveAll<3>(Used<3>(400, 10));
  CHECK(Text<3>::alive == 2 * 5 * 64);
}

TEST_CASE("L11: a list holds 256 KiB at the most, counting what its messages held earlier" * doctest::skip(!kKeepsCallMemory)) {
  const auto large = Used<4>(4 * 5, 64 * 1024);
  GiveAll<4>(large);
  CHECK(Text<4>::alive == 2 * 4 * 5);
  GiveAll<4>(Used<4>(4 * 5, 1));  // Small now, but with the memory of their earlier uses.
  auto* const one_more = new Messages<4>;
  Messages<4>::Give(one_more);
  CHECK(Text<4>::alive == 2 * (4 * 5 + 1));  // It takes no room.
  auto* const too_much = new Messages<4>;
  too_much->request.text.assign(1, 'x');
  Messages<4>::Give(too_much);
  CHECK(Text<4>::alive == 2 * (4 * 5 + 1));

  auto* const huge = new Messages<5>;
  huge->request.text.assign(256 * 1024 + 1, 'x');
  Messages<5>::Give(huge);
  CHECK(Text<5>::alive == 0);
}

TEST_CASE("L11: memory that one thread takes and another gives goes round" * doctest::skip(!kKeepsCallMemory)) {
  constexpr std::size_t kSize = 3'000;
  std::vector<void*> blocks;
  for (int i = 0; i < 64; ++i) blocks.push_back(TakeCallMemory(kSize));
  std::vector<void*> again;
  OnNewThread([&] {
    for (void* block : blocks) GiveCallMemory(block, kSize);
    GiveCallMemory(::operator new(kSize + 128), kSize);  // The 65th sends the others to the shelf.
  });
  for (int i = 0; i < 64; ++i) again.push_back(TakeCallMemory(kSize));
  std::sort(blocks.begin(), blocks.end());
  std::sort(again.begin(), again.end());
  CHECK(again == blocks);
  for (void* block : again) GiveCallMemory(block, kSize);
}

TEST_CASE("L11: a thread that only takes leaves nothing behind as it ends" * doctest::skip(!kKeepsCallMemory)) {
  OnNewThread([] { GiveAll<6>(Used<6>(65, 10)); });
  REQUIRE(Text<6>::alive == 2 * 64);  // On the shelf.
  Messages<6>* taken = nullptr;
  OnNewThread([&] { taken = Messages<6>::Take(); });
  CHECK(Text<6>::alive == 2);  // What came with the one that it took has gone with it.
  Messages<6>::Give(taken);

  constexpr std::size_t kSize = 2'000;
  const long before = blocks_alive;
  OnNewThread([] {
    std::vector<void*> blocks;
    for (int i = 0; i < 65; ++i) blocks.push_back(TakeCallMemory(kSize));
    for (void* block : blocks) GiveCallMemory(block, kSize);
  });
  const long shelved = blocks_alive;
  void* block = nullptr;
  OnNewThread([&] { block = TakeCallMemory(kSize); });
  const long after = blocks_alive;
  CHECK(shelved - before == 64);
  CHECK(after - before == 1);
  GiveCallMemory(block, kSize);
}

TEST_CASE("L11: what is taken by a thread's last destructors leaves the others' as it is" * doctest::skip(!kKeepsCallMemory)) {
  OnNewThread([] { GiveAll<7>(Used<7>(129, 10)); });
  REQUIRE(Text<7>::alive == 2 * 128);  // On the shelf.
  Messages<7>* taken = nullptr;
  OnNewThread([&] {
    // Made before what ends the thread's list, so destroyed after it.
    static thread_local struct Last {
      ~Last() { *into = Messages<7>::Take(); }
      Messages<7>** into = nullptr;
    } last;
    last.into = &taken;
    GiveAll<7>(Used<7>(1, 10));
  });
  Messages<7>::Give(taken);
  const int alive = Text<7>::alive;
  const auto all = Used<7>(64, 10);
  CHECK(Text<7>::alive <= alive + 2);  // They were there for this thread.
  GiveAll<7>(all);
}

}  // namespace penstock::inline v0::detail
