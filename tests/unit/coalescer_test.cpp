// What lets streams wait for each other, on hops that are made by hand.
#include <doctest/doctest.h>

#include <functional>
#include <utility>
#include <vector>

#include "penstock/runtime/detail/coalescer.h"

using namespace penstock;
using detail::Coalesced;
using detail::Coalescer;

namespace {

std::vector<std::function<void()>> posted;

void Post(std::function<void()> function) { posted.push_back(std::move(function)); }

void RunHops() {
  for (auto& hop : std::exchange(posted, {})) hop();
}

class Stream final : public Coalesced {
 public:
  Stream(std::vector<int>& order, int id, std::size_t messages = 1) : order_(order), id_(id), messages_(messages) {}
  std::size_t StartCoalesced() noexcept override {
    order_.push_back(id_);
    if (again != nullptr) std::exchange(again, nullptr)->Add(*this);
    return messages_;
  }

  Coalescer* again = nullptr;

 private:
  std::vector<int>& order_;
  const int id_;
  const std::size_t messages_;
};

}  // namespace

TEST_CASE("S9: streams that wait share one hop, and start in the order in which they came") {
  posted.clear();
  Coalescer coalescer(Post);
  std::vector<int> order;
  Stream first(order, 1, Coalescer::kWorthwhile);
  Stream second(order, 2);
  Stream third(order, 3);
  for (Stream* stream : {&first, &second, &third}) {
    CHECK(coalescer.Pays());
    coalescer.Add(*stream);
  }
  CHECK(posted.size() == 1);
  CHECK(order.empty());
  // One that waits again as it starts has a hop to come, like all who come after it.
  first.again = &coalescer;
  RunHops();
  CHECK(order == std::vector<int>{1, 2, 3});
  coalescer.Add(second);
  CHECK(posted.size() == 1);
  RunHops();
  CHECK(order == std::vector<int>{1, 2, 3, 1, 2});
  RunHops();
  CHECK(order.size() == 5);
}

TEST_CASE("S9: after a hop that had little to start, some start at once, and then it is tried again") {
  posted.clear();
  Coalescer coalescer(Post);
  std::vector<int> order;
  Stream few(order, 1, Coalescer::kWorthwhile - 1);
  Stream one(order, 2, 1);

  coalescer.Add(few);
  coalescer.Add(one);
  RunHops();
  CHECK(coalescer.Pays());  // Together they were enough.

  coalescer.Add(few);
  RunHops();
  for (int i = 0; i < Coalescer::kAtOnce; ++i) CHECK_FALSE(coalescer.Pays());
  CHECK(coalescer.Pays());
}
