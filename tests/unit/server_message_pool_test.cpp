#include "penstock/server/message_pool.h"

#include <doctest/doctest.h>
#include <google/protobuf/field_mask.pb.h>

namespace penstock {
namespace {

using google::protobuf::FieldMask;

TEST_CASE("G1: a pool of messages keeps no more memory than it says, whatever shapes its calls have one after the other") {
  constexpr std::size_t kMost = 64 * 1024;
  MessagePool<FieldMask, FieldMask> pool(4, kMost);
  for (int call = 0; call < 100; ++call) {
    auto* holder = pool.AllocateMessages();
    CHECK(holder->request()->SpaceUsedLong() <= 4 * kMost);
    CHECK(holder->request()->paths_size() == 0);
    // Small on the wire each time, and another element that is long: cleared elements keep what they once held.
    for (int i = 0; i < call; ++i) holder->request()->add_paths();
    holder->request()->add_paths(std::string(60'000, 'x'));
    holder->Release();
  }
}

TEST_CASE("G1: a pool of messages gives the same message again, and none that was too long") {
  MessagePool<FieldMask, FieldMask> pool(4, 1024);
  auto* holder = pool.AllocateMessages();
  holder->request()->add_paths("short");
  holder->Release();
  auto* again = pool.AllocateMessages();
  CHECK(again == holder);
  CHECK(again->request()->paths_size() == 0);
  again->response()->add_paths(std::string(2000, 'x'));
  again->Release();
  auto* fresh = pool.AllocateMessages();
  CHECK(fresh->response()->SpaceUsedLong() < 1024);
  fresh->Release();
}

}  // namespace
}  // namespace penstock
