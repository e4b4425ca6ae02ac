#!/usr/bin/env python3
"""Counts the test cases in meson's testlog.json, shows what failed, and closes with 'N passed, N failed'.

A doctest program counts the cases of its own summary; a check that is no doctest program closes with a line
'N passed, N failed' of its own, or counts as one case. A program that crashed or ran into its time limit counts at
least one failure, whatever it printed.
"""
import json
import re
import sys

DOCTEST = re.compile(r"\[doctest\] test cases:\s*\d+\s*\|\s*(\d+) passed\s*\|\s*(\d+) failed")
CHECK = re.compile(r"^(\d+) passed, (\d+) failed$", re.M)
CASE = re.compile(r"^TEST CASE:\s+(.*)$", re.M)
SHOWN = 12_000  # characters of a failed program's output: its end, where the reason stands


def main():
    passed = failed = 0
    names = []
    with open(sys.argv[1], encoding="utf-8", errors="replace") as log:
        programs = [json.loads(line) for line in log]
    for program in programs:
        output = program.get("stdout") or ""
        name = program["name"].split(" / ")[-1]
        good = program["result"] in ("OK", "EXPECTEDFAIL")
        if program["result"] == "SKIP":
            continue
        counted = DOCTEST.findall(output) or CHECK.findall(output)
        ok, bad = (int(counted[-1][0]), int(counted[-1][1])) if counted else (int(good), 0)
        if not good:
            bad = max(bad, 1)
        passed += ok
        failed += bad
        if bad:
            print(f"\n---- {name}: {program['result']} (exit code {program['returncode']}, {program['duration']:.1f} s)")
            for stream in (output, program.get("stderr") or ""):
                if stream.strip():
                    print(stream[-SHOWN:].rstrip())
            cases = list(dict.fromkeys(CASE.findall(output)))
            names += [f"{name}: {case}" for case in cases] or [f"{name}: {program['result']}"]
    if names:
        print("\nFailed:")
        for name in names:
            print(f"  {name}")
    if passed + failed == 0:
        print("No test case ran: does --filter name one?")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or passed == 0 else 0


sys.exit(main())
