// Every interleaving of starts, holds and finishes of one reactor, up to a number of preemptions.

#include <doctest/doctest.h>

#include <memory>

#include "penstock/server/detail/reactor_word.h"
#include "support/explorer.h"

namespace penstock::detail {
namespace {

// Whether the reactor of the schedule was deleted. One schedule runs at a time, on one thread.
bool gone = false;
bool touched_after = false;

// An atomic that notes when it is touched after the reactor was deleted. What follows an operation of the explorer's
// atomics, up to the next one, is one step with it.
template <class T>
class Watched {
 public:
  explicit Watched(T value) : value_(value) {}
  T load(std::memory_order order) const { return Touched(value_.load(order)); }
  T fetch_or(T operand, std::memory_order order) { return Touched(value_.fetch_or(operand, order)); }
  T fetch_and(T operand, std::memory_order order) { return Touched(value_.fetch_and(operand, order)); }
  T fetch_sub(T operand, std::memory_order order) { return Touched(value_.fetch_sub(operand, order)); }
  bool compare_exchange_weak(T& expected, T desired, std::memory_order success, std::memory_order failure) {
    return Touched(value_.compare_exchange_weak(expected, desired, success, failure));
  }

 private:
  template <class Result>
  static Result Touched(Result result) {
    touched_after = touched_after || gone;
    return result;
  }

  explorer::Atomic<T> value_;
};

using Word = BasicReactorWord<Watched>;

struct Model {
  Word word;
  int status = 0;     // whoever claimed
  int finishes = 0;
  int finished_as = 0;
  bool writing = false;
  bool started_after_finish = false;
  int writes = 0;

  // gRPC's Finish, with OnDone at the worst moment: at once.
  void MakeFinish() {
    ++finishes;
    finished_as = status;
    gone = true;
  }
  void Leave() {
    if (word.Leave()) MakeFinish();
  }
  void Finish(int who) {
    if (!word.Claim(0)) return;
    status = who;
    if (word.Settle()) MakeFinish();
  }
  // From a thread that knows the reactor to be alive, as a hold of its own says.
  void Write() {
    if (!word.Enter(Word::kWriting, Word::kWriting)) return;
    started_after_finish = started_after_finish || finishes > 0;
    ++writes;
    Leave();
  }
};

std::shared_ptr<Model> Make() {
  gone = touched_after = false;
  return std::make_shared<Model>();
}

void CheckAll(explorer::Run& run, Model& model, int finishes) {
  run.Check(!touched_after, "the word was touched after the reactor was deleted");
  run.Check(model.finishes == finishes, "finished " + std::to_string(model.finishes) + " times");
  run.Check(model.finishes == 0 || model.finished_as == model.status, "finished with another's status");
  run.Check(!model.started_after_finish, "a write started after the finish");
  // A start that is refused leaves no hold behind, and after a finish each is refused.
  run.Check(model.word.Enter(0, 0) == (finishes == 0), "a start after the finish, or none without one");
}

void Explore(const std::function<void(explorer::Run&)>& scenario) {
  const explorer::Found found = explorer::Explore({.preemptions = 3}, scenario);
  CHECK_MESSAGE(found.ok(), found.failure);
}

// The two threads of a scenario hold the reactor from its start, as a method of it that runs does (gRPC lets OnDone wait),
// so that a refused start touches a live word.
TEST_CASE("V5: a finish from each of two threads is made once, with the status of the one that claimed it") {
  Explore([](explorer::Run& run) {
    auto model = Make();
    for (const int who : {1, 2}) {
      CHECK(model->word.Enter(0, 0));
      run.Thread([=] {
        model->Finish(who);
        model->Leave();
      });
    }
    run.Finally([=, &run] { CheckAll(run, *model, 1); });
  });
}

TEST_CASE("V5: a write against a finish starts before it or not at all, and whoever leaves last makes the finish") {
  Explore([](explorer::Run& run) {
    auto model = Make();
    CHECK(model->word.Enter(0, 0));
    CHECK(model->word.Enter(0, 0));
    run.Thread([=] {
      model->Write();
      model->Leave();
    });
    run.Thread([=] {
      model->Finish(1);
      model->Leave();
    });
    run.Finally([=, &run] { CheckAll(run, *model, 1); });
  });
}

TEST_CASE("V5: two writes and a shutdown's finish: one write at a time, one finish, nothing after it") {
  Explore([](explorer::Run& run) {
    auto model = Make();
    for (int i = 0; i < 3; ++i) CHECK(model->word.Enter(0, 0));
    for (int i = 0; i < 2; ++i) {
      run.Thread([=] {
        model->Write();
        model->Leave();
      });
    }
    run.Thread([=] {
      model->Finish(1);
      model->Leave();
    });
    run.Finally([=, &run] {
      CheckAll(run, *model, 1);
      run.Check(model->writes <= 1, "two writes at once");
    });
  });
}

TEST_CASE("V5: a hold alone finishes nothing") {
  Explore([](explorer::Run& run) {
    auto model = Make();
    for (int i = 0; i < 2; ++i) {
      run.Thread([=] {
        if (model->word.Enter(0, 0)) model->Leave();
        model->Write();
      });
    }
    run.Finally([=, &run] { CheckAll(run, *model, 0); });
  });
}

}  // namespace
}  // namespace penstock::detail
