#!/usr/bin/python3
"""Runs the lab's experiments; tests/lab/run sets up what they need and calls this.

    main.py --build BUILD [--short] [--json FILE [--results FILE]] [--list] [AXIS ...]

The files keep what earlier runs saw in other axes.
Exit code 0 when everything was as expected, 1 when not, 2 for an axis that there is not, 77 when grpcio is missing.
"""
import argparse
import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True


def main():
    if importlib.util.find_spec("grpc") is None or importlib.util.find_spec("google.protobuf") is None:
        print("lab: absent: Python's grpcio (Debian packages python3-grpcio and python3-protobuf)")
        return 1 if os.environ.get("CI") == "true" else 77
    from axes import AXES
    from harness import report
    from harness.lab import Lab
    from harness.processes import Processes

    parser = argparse.ArgumentParser(prog="tests/lab/run")
    parser.add_argument("--build", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--results", type=pathlib.Path)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("axes", nargs="*", metavar="AXIS")
    options = parser.parse_args()
    names = [axis.NAME for axis in AXES]
    if options.list:
        for number, axis in enumerate(AXES, 1):
            print(f"{number}  {axis.NAME:14} {axis.TITLE}")
        return 0
    wanted = [names[int(word) - 1] if word.isdigit() and 0 < int(word) <= len(names) else word for word in options.axes]
    unknown = [word for word in wanted if word not in names]
    if unknown:
        print(f"tests/lab/run: there is no axis {', '.join(unknown)}: say one of {', '.join(names)}", file=sys.stderr)
        return 2
    chosen = [axis for axis in AXES if (axis.NAME in wanted if wanted else not options.short or getattr(axis, "SHORT", False))]

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    commit = subprocess.run(["git", "-C", HERE, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip() or "unknown"
    began = time.monotonic()
    results = {}
    with Processes(options.build / "lab/logs") as processes:
        lab = Lab(processes, options.build, options.build / "lab", options.short)
        lab.prepare()
        for number, axis in enumerate(chosen, 1):
            started = time.monotonic()
            lab.axis = axis.NAME
            lab.say(f"\n[{number}/{len(chosen)}] {axis.TITLE}")
            try:
                axis.run(lab)
            except Exception as error:  # An axis that breaks is a failed case, not the end of the others.
                lab.row("the experiment ran", "to its end", f"{type(error).__name__}: {error}"[:2000])
            lab.processes.stop(list(lab.processes.all))
            results[axis.NAME] = {"commit": commit, "seconds": round(time.monotonic() - started),
                                  "rows": [row.as_json() for row in lab.rows if row.axis == axis.NAME]}
            lab.say(f"  {results[axis.NAME]['seconds']} s")
    seconds = time.monotonic() - began

    if not lab.short:
        print(report.table(lab.rows))
    if options.json:
        data = report.merged(options.json, results, lab.absent_peers)
        options.json.write_text(report.as_json(data), encoding="utf-8")
        if options.results:
            options.results.write_text(report.markdown(data, AXES), encoding="utf-8")
    counts = {same: sum(row.same == same for row in lab.rows) for same in ("yes", "NO", "absent")}
    for row in lab.rows:
        if row.same == "NO":
            print(f"TEST CASE:  {row.axis}: {row.case}: expected {row.expected}, saw {row.seen} {row.detail}")
    print(f"\n{seconds:.0f} s, {counts['absent']} absent")
    print(f"{counts['yes']} passed, {counts['NO']} failed")
    return 1 if counts["NO"] or not counts["yes"] else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\ninterrupted: everything that was started is gone", file=sys.stderr)
        sys.exit(130)
