#!/usr/bin/env python3
"""Breaks the circuit breaker in one place at a time and expects that its model tests notice.

A proof by exploration is worth what it would have found. Each mutant is one replacement in the breaker's source; it is
compiled with the tests in TESTS, one of which must fail. A mutant that survives, or whose text is no longer in the source
exactly once, fails this test.

    mutants.py --root DIR --main LIBRARY [--only NAME] [--short] [--jobs N] -- COMPILER [ARGUMENT...]
"""
import argparse
import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SLOW = "src/core/circuit_core.h"
FAST = "include/penstock/core/detail/circuit_core.h"

# name, file, text, replacement (or several texts and their replacements)
MUTANTS = [
    # Those that the prototype was tried with.
    ("takes the index first and writes the cell afterwards", SLOW,
     """    if (!cell.compare_exchange_strong(own, View::MakeCell(view.generation, lap, view.position), std::memory_order_acq_rel,
                                      std::memory_order_acquire)) {
      continue;
    }
    failures_.compare_exchange_strong(view.failures, next, std::memory_order_acq_rel, std::memory_order_acquire);
""",
     """    if (!failures_.compare_exchange_strong(view.failures, next)) continue;
    cell.store(View::MakeCell(view.generation, lap, view.position));
"""),
    ("does not help who recorded and has not said so", SLOW,
     "if (View::CellTag(own) == (view.generation & View::kTagMask) && View::CellLap(own) == (lap & 1)) {",
     "if (false) {"),
    ("does not look again at the number of failures", SLOW,
     "    if (failures_.load(std::memory_order_acquire) != view.failures) continue;\n    if (!FinishRun",
     "    if (!FinishRun"),
    ("has one bank for all generations", FAST, "kBanks = 8;", "kBanks = 1;"),
    ("does not look again at the state after it took a slot", SLOW,
     "      if (!IsHalfOpen(generation)) return std::nullopt;\n      if (expired) {", "      if (expired) {"),
    ("sets the failures of a newer generation back", SLOW,
     "      if (word_.load(std::memory_order_acquire) != word) return;\n      failures_", "      failures_"),
    # Further ones.
    ("forgets that the cell is of another lap", SLOW, " && View::CellLap(own) == (lap & 1)) {", ") {"),
    ("never notes where a row began", SLOW, "  if (view.index == 0 || !view.LastBegins()) return true;",
     "  return true;"),
    ("never notes when a row began", SLOW,
     """    if (!run_time_.compare_exchange_strong(view.run_time, view.last_time, std::memory_order_acq_rel,
                                           std::memory_order_acquire)) {
      return false;
    }
""", ""),
    ("counts a success of an earlier state", FAST, "if (word_.load(std::memory_order_relaxed) != word) return true;", ""),
    # Two places: either check alone suffices, for a thread may always sleep right after it.
    ("records a failure of an earlier state", SLOW,
     ("  if (word_.load(std::memory_order_relaxed) != number) return;\n",
      "  for (;;) {\n    if (word_.load(std::memory_order_acquire) != word) return;\n"),
     ("  if (outcome != Outcome::kFailure && word_.load(std::memory_order_relaxed) != number) return;\n",
      "  for (;;) {\n    if (StateOf(word_.load(std::memory_order_acquire)) != CircuitState::kClosed) return;\n")),
    ("takes the failures of an earlier state for those of the present one", SLOW,
     "    if (View::IndexGeneration(view.failures) != view.generation) {", "    if (false) {"),
    ("prepares the bank of a generation that is long over", SLOW,
     "  if (GenerationOf(word_.load(std::memory_order_acquire)) != ((generation - 1) & (kGenerations - 1))) return;\n"
     "  base.compare", "  base.compare"),
    ("prepares the deadline of a generation that is long over", SLOW,
     "    if (GenerationOf(word_.load(std::memory_order_acquire)) != ((generation - 1) & (kGenerations - 1))) return;\n"
     "  } while (!cell", "    if (GenerationOf(word_.load(std::memory_order_acquire)) == generation) return;\n  } while (!cell"),
    ("takes the deadline of one who has slept for eight generations", SLOW,
     "  } while (!cell.compare_exchange_strong(seen, until, std::memory_order_acq_rel, std::memory_order_acquire));\n",
     "    cell.compare_exchange_strong(seen, until, std::memory_order_acq_rel, std::memory_order_acquire);\n  } while (false);\n"),
    ("tags the half-open counts with two bits of the version", FAST,
     "GenerationOf(word) << 18 | (version & 0x3ffff);", "GenerationOf(word) << 18 | (version / 4 & 3);"),
    ("tags the half-open counts without the version", FAST,
     "GenerationOf(word) << 18 | (version & 0x3ffff);", "GenerationOf(word) << 18;"),
    ("tries for ever to read spoiled half-open counts", SLOW, "    words = {};\n", "    return false;\n"),
    ("forgets that a transition was dropped when a newer one is", SLOW, " || IsAfter(dropped, generation);", ";"),
    ("lets a sleeper hide that a transition was dropped", SLOW, "while (IsAfter(to_generation, seen)) {", "while (true) {"),
    ("begins a generation without its base", SLOW, "  PrepareBank(generation);\n", ""),
    ("notes the base again after the generation began", SLOW,
     "  if (seen >> 48 == tag) return;  // another did", "  // another did"),
    ("settles a probe past its deadline", SLOW, "  if (circuit::Rest(until, Now()) <= 0) return;\n", ""),
    ("frees a slot that may be another's", SLOW,
     """  if (!slot.lease.compare_exchange_strong(expected, circuit::MakeLease(generation, circuit::LeaseNumber(lease), false),
                                          std::memory_order_acq_rel, std::memory_order_acquire)) {
    return;
  }
""", """  slot.lease.store(circuit::MakeLease(generation, circuit::LeaseNumber(expected), false));
"""),
    ("does not notice a time-out", SLOW, "      if (expired) {\n", "      if (false) {\n"),
    ("gives every lease the same number", SLOW, "number = circuit::LeaseNumber(lease) + 1;",
     "number = circuit::LeaseNumber(lease);"),
    ("takes a slot from a newer generation", SLOW, "      } else if (!IsHalfOpen(generation)) {", "      } else if (false) {"),
    ("ends a lease a whole probe_timeout early", SLOW, "circuit::Until(now, settings_.probe_timeout)", "now"),
    ("does not publish the half-open counts", SLOW, "    PublishTally(word, counts, seen);\n", ""),
    ("takes half-open counts of another version", SLOW, "words[i] >> kTallyBits == TallyTag(word, which)", "true"),
    ("opens without a deadline", SLOW, "  if (to == CircuitState::kOpen) PrepareDeadline(generation);\n", ""),
    ("tidies away what a newer generation wrote", SLOW,
     "if (seen >> of == tag || GenerationOf(word_.load(std::memory_order_acquire)) != generation) return;",
     "if (seen >> of == tag) return;"),
    ("does not look again after it has reported", SLOW,
     "    reporter_.store(generation << 1, std::memory_order_seq_cst);\n",
     "    reporter_.store(generation << 1, std::memory_order_seq_cst);\n    return;\n"),
    ("reports beside who reports already", SLOW, "    if ((reporter & 1) != 0) return;\n", ""),
    ("adds to the shared line as if it were its own", SLOW, "  if (line == Atomics::kLines - 1) {", "  if (false) {"),
    ("counts the result of a change that another made", SLOW,
     "  if (!word_.compare_exchange_strong(from, word, std::memory_order_acq_rel, std::memory_order_acquire)) return false;",
     "  word_.compare_exchange_strong(from, word, std::memory_order_acq_rel, std::memory_order_acquire);"),
]

# Each is tried if those before it notice nothing.
TESTS = ["tests/model/circuit_breaker_stalls_test.cpp", "tests/model/circuit_breaker_interleavings_test.cpp"]

# Those that the first test notices within a second.
SHORT = ["prepares the bank of a generation that is long over", "forgets that a transition was dropped when a newer one is"]


def run(mutant, options, compiler):
    name, file, old, new = mutant
    root = pathlib.Path(options.root)
    source = (root / file).read_text()
    for text, replacement in [(old, new)] if isinstance(old, str) else zip(old, new):
        if source.count(text) != 1:
            return name, f"its text is {source.count(text)} times in {file}: the list in mutants.py is out of date"
        source = source.replace(text, replacement)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        shutil.copytree(root / "include", scratch / "include")
        shutil.copytree(root / "src" / "core", scratch / "src" / "core")
        (scratch / file).write_text(source)
        for test in TESTS:
            program = scratch / "test"
            command = compiler + ["-std=c++20", "-O1", "-w", f"-I{scratch}/include", f"-I{scratch}/src", f"-I{root}/tests",
                                  str(root / test), str(root / "src/core/clock.cpp"), options.main, "-lpthread", "-o", str(program)]
            built = subprocess.run(command, capture_output=True, text=True)
            if built.returncode != 0:
                return name, "it does not compile:\n" + built.stderr[-2000:]
            try:
                ran = subprocess.run([str(program), "--abort-after=1"], capture_output=True, timeout=300)
            except subprocess.TimeoutExpired:
                return name, None  # it hangs: noticed
            if ran.returncode != 0:
                return name, None
    return name, "it survives"


def main():
    split = sys.argv.index("--")
    compiler = sys.argv[split + 1:]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True)
    parser.add_argument("--main", required=True, help="the library with doctest's main")
    parser.add_argument("--only", help="mutants with this in their name")
    parser.add_argument("--short", action="store_true", help="only a few, which are noticed at once")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(sys.argv[1:split])
    if os.environ.get("PENSTOCK_TEST_FILTER"):
        print("no mutants: these need all cases, and a filter leaves some out")
        return 77
    mutants = [mutant for mutant in MUTANTS if (not options.only or options.only in mutant[0]) and (not options.short or mutant[0] in SHORT)]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for name, problem in pool.map(lambda mutant: run(mutant, options, compiler), mutants):
            print(f"{'caught  ' if problem is None else 'PROBLEM '} a breaker that {name}" +
                  (f": {problem}" if problem else ""), flush=True)
            failed += problem is not None
    print(f"{len(mutants) - failed} of {len(mutants)} mutants are caught")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
