// The messages of calls by callback, used again: what a thread keeps, and what it does not.

#include "penstock/client/detail/call_messages.h"

#include <doctest/doctest.h>

#include <string>
#include <thread>

namespace penstock::inline v0::detail {

namespace {

// Like a protobuf message in what is asked of it: it keeps its memory when it is cleared.
struct Text {
  void Clear() { text.clear(); }
  std::size_t ByteSizeLong() const { return text.size(); }
  std::string text;
};
using Messages = CallMessages<Text, Text>;

Messages* Used(std::size_t bytes) {
  Messages* messages = Messages::Take();
  messages->request.text.assign(bytes, 'x');
  return messages;
}

// On a thread of its own, which has kept nothing yet.
template <class Body>
void OnNewThread(const Body& body) {
  std::jthread thread(body);
}

}  // namespace

TEST_CASE("L11: a call's messages are used again, cleared, with the memory that they have" * doctest::skip(!kKeepsCallMemory)) {
  OnNewThread([] {
    Messages* const first = Used(64 * 1024);
    Messages::Give(first);
    Messages* const again = Messages::Take();
    CHECK(again == first);
    CHECK(again->request.text.empty());
    CHECK(again->request.text.capacity() >= 64 * 1024);
    Messages::Give(again);
  });
}

TEST_CASE("L11: a thread keeps 64 of a type, and 256 KiB of them" * doctest::skip(!kKeepsCallMemory)) {
  OnNewThread([] {
    Messages* large[5];
    for (Messages*& one : large) one = Used(64 * 1024);
    for (Messages* one : large) Messages::Give(one);
    for (int i = 0; i < 4; ++i) CHECK((large[i] = Messages::Take())->request.text.capacity() >= 64 * 1024);
    large[4] = Messages::Take();
    CHECK(large[4]->request.text.capacity() < 64 * 1024);  // The fifth was not kept.

    // Small now, but with the memory of their earlier uses: these four fill the room.
    for (int i = 0; i < 4; ++i) Messages::Give(large[i]);
    large[4]->request.text.assign(1, 'x');
    Messages::Give(large[4]);
    for (int i = 3; i >= 0; --i) CHECK((large[i] = Messages::Take())->request.text.capacity() >= 64 * 1024);
    for (int i = 0; i < 4; ++i) delete large[i];

    Messages* const huge = Used(256 * 1024 + 1);
    Messages::Give(huge);
    Messages* const next = Messages::Take();
    CHECK(next->request.text.capacity() < 256 * 1024);
    Messages::Give(next);
  });
}

}  // namespace penstock::inline v0::detail
