// The messages of calls by callback, used again: what threads keep, what they hand on, and what they don't.

#include "penstock/client/detail/call_messages.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "penstock/client/detail/call_memory.h"

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

}  // namespace penstock::inline v0::detail
