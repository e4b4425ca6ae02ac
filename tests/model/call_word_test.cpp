// Every interleaving of a call's answer, its cancelling, its deadline, its wait and its destruction, on the shipping CallWord. What
// stands around the word here does what CallCore does around it: a context that must not go while it is being cancelled,
// timers that hold references, one completion.

#include "penstock/client/detail/call_word.h"

#include <doctest/doctest.h>

#include <memory>
#include <string>

#include "support/explorer.h"

#if !defined(__SANITIZE_THREAD__)

namespace penstock::inline v0::detail {
namespace {

using Word = CallWord<explorer::Atomic>;

struct Model {
  Model(explorer::Run& of_run, int attempts) : run(of_run), attempts_wanted(attempts) {}

  explorer::Run& run;
  const int attempts_wanted;

  Word word;
  explorer::Atomic<int> context{0};     // 1: alive
  explorer::Atomic<int> deadline{0};    // 1: armed
  explorer::Atomic<int> wait{0};        // 1: armed
  explorer::Atomic<int> running{0};     // 1: an attempt that has not ended
  explorer::Atomic<int> references{0};
  int cancelling = 0;
  int drivers = 0;
  int completions = 0;
  int attempts = 0;
  bool destroyed = false;

  void Check(bool holds, const char* what) { run.Check(holds, what); }
  void Touch() { Check(!destroyed, "a call was touched after its end"); }

  void Release() {
    Touch();
    if (references.fetch_sub(1) == 1) {
      Check(completions == 1, "a call was destroyed without its completion");
      Check(cancelling == 0, "a call was destroyed under its canceller");
      destroyed = true;
    }
  }

  // `holders`: references beside the call's own and its deadline's.
  void Begin(int holders) {
    word.Reset();
    references.store(2 + holders);
    deadline.store(1);
    drivers = 1;
    Admit();
  }

  void Take() {
    Touch();
    Check(drivers == 0, "two parties drive");
    ++drivers;
  }

  void Admit() {
    if (word.reason() != CancelReason::kNone) return Finish();
    Check(cancelling == 0, "a context was replaced while it was being cancelled");
    context.store(1);
    if (!word.BeginAttempt()) return Finish();
    ++attempts;
    --drivers;
    running.store(1);  // From here on the attempt may end.
  }

  void AttemptEnds() {
    if (running.exchange(0) != 1) return;
    Touch();
    if (!word.EndAttempt()) return;
    Take();
    AfterAttempt();
  }

  void AfterAttempt() {
    if (word.reason() != CancelReason::kNone || attempts == attempts_wanted) return Finish();
    references.fetch_add(1);
    wait.store(1);
    --drivers;  // Whoever ends the wait drives, as soon as it has begun.
    if (word.BeginWait()) return;
    ++drivers;
    if (wait.exchange(0) == 1) Release();
    Admit();
  }

  void WaitTimerFires() {
    if (wait.exchange(0) != 1) return;
    Touch();
    const bool drives = word.EndWait();
    if (drives) {
      Take();
      Admit();
    }
    Release();
  }

  void DeadlineFires() {
    if (deadline.exchange(0) != 1) return;
    Cancel(CancelReason::kDeadline);
    Release();
  }

  void Cancel(CancelReason reason) {
    Touch();
    switch (word.Cancel(reason)) {
      case Word::Canceller::kNothing:
        return;
      case Word::Canceller::kTryCancel:
        ++cancelling;
        Check(context.load() == 1, "a context that does not live was cancelled");
        Check(context.load() == 1, "a context went while it was being cancelled");
        --cancelling;
        if (!word.LetGo()) return;
        Take();
        AfterAttempt();
        return;
      case Word::Canceller::kDrive:
        Take();
        if (wait.exchange(0) == 1) Release();
        Finish();
        return;
    }
  }

  void Finish() {
    word.Finish();
    if (deadline.exchange(0) == 1) Release();
    Check(cancelling == 0, "a call completed while its context was being cancelled");
    context.store(0);
    ++completions;
    Check(completions == 1, "a call completed twice");
    --drivers;
    Release();
  }

  // What is still under way ends: the network answers, the timers fire.
  void Settle() {
    for (int i = 0; i < 10 && completions == 0; ++i) {
      AttemptEnds();
      WaitTimerFires();
    }
    Check(completions == 1, "a call never completed");
    DeadlineFires();
    Check(destroyed, "a call leaked");
    Check(drivers == 0, "somebody still drives");
  }
};

std::shared_ptr<Model> Make(explorer::Run& run, int attempts) { return std::make_shared<Model>(run, attempts); }

// The caller's cancel: it holds a reference until it is done.
void CancelByHolder(Model& model, CancelReason reason) {
  model.Cancel(reason);
  model.Release();
}

void Explore(int preemptions, const std::function<void(explorer::Run&)>& scenario) {
  const explorer::Found found = explorer::Explore({.preemptions = preemptions}, scenario);
  CHECK_MESSAGE(found.ok(), found.failure);
  CHECK(found.schedules > 5);
}

}  // namespace

TEST_CASE("L8, L9: answer, cancel and deadline at once: one completion, no use after the end") {
  Explore(4, [](explorer::Run& run) {
    auto model = Make(run, 1);
    run.Thread([model] { model->Begin(1); });
    run.Thread([model] { model->AttemptEnds(); });
    run.Thread([model] {
      if (model->references.load() != 0) model->DeadlineFires();
    });
    run.Finally([model] {
      CancelByHolder(*model, CancelReason::kCaller);
      model->Settle();
    });
  });
}

TEST_CASE("L8: two cancels, the deadline and the answer of a running attempt") {
  Explore(3, [](explorer::Run& run) {
    auto model = Make(run, 1);
    model->Begin(2);
    run.Thread([model] { CancelByHolder(*model, CancelReason::kCaller); });
    run.Thread([model] { CancelByHolder(*model, CancelReason::kParent); });
    run.Thread([model] { model->DeadlineFires(); });
    run.Thread([model] { model->AttemptEnds(); });
    run.Finally([model] { model->Settle(); });
  });
}

TEST_CASE("L8: a cancel, the deadline and the wait's timer between two attempts") {
  Explore(3, [](explorer::Run& run) {
    auto model = Make(run, 2);
    model->Begin(1);
    run.Thread([model] {
      model->AttemptEnds();
      model->AttemptEnds();
    });
    run.Thread([model] { model->WaitTimerFires(); });
    run.Thread([model] { CancelByHolder(*model, CancelReason::kCaller); });
    run.Thread([model] { model->DeadlineFires(); });
    run.Finally([model] { model->Settle(); });
  });
}

TEST_CASE("L5: a wait whose timer fires before it has begun is over") {
  Explore(3, [](explorer::Run& run) {
    auto model = Make(run, 2);
    model->Begin(0);
    run.Thread([model] { model->AttemptEnds(); });
    run.Thread([model] { model->WaitTimerFires(); });
    run.Finally([model] { model->Settle(); });
  });
}

TEST_CASE("L9: the client's closing and a cancel from inside another's, over three attempts") {
  Explore(3, [](explorer::Run& run) {
    auto model = Make(run, 3);
    model->Begin(1);
    run.Thread([model] {
      for (int i = 0; i < 3; ++i) {
        model->AttemptEnds();
        model->WaitTimerFires();
      }
    });
    run.Thread([model] { CancelByHolder(*model, CancelReason::kClosed); });
    run.Finally([model] { model->Settle(); });
  });
}

TEST_CASE("L8: after a cancel no further attempt begins") {
  Explore(3, [](explorer::Run& run) {
    auto model = Make(run, 5);
    model->Begin(1);
    auto attempts_at_cancel = std::make_shared<int>(-1);
    run.Thread([model] {
      for (int i = 0; i < 2; ++i) {
        model->AttemptEnds();
        model->WaitTimerFires();
      }
    });
    run.Thread([model, attempts_at_cancel] {
      model->Cancel(CancelReason::kCaller);
      *attempts_at_cancel = model->attempts;
      model->Release();
    });
    run.Finally([model, attempts_at_cancel, &run] {
      model->Settle();
      run.Check(model->attempts == *attempts_at_cancel, "an attempt began after the cancel had returned");
    });
  });
}

}  // namespace penstock::inline v0::detail

#endif
