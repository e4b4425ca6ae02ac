#!/usr/bin/env python3
"""Checks docs/observability: the alert rules with promtool, their unit tests, and that rules, dashboard and the names that
penstock exports agree. A case each.

    check_alerts.py ROOT

promtool comes from $PENSTOCK_PROMTOOL (tests/run sets it) or the path. Without one its cases are left out, but fail where
CI=true is in the environment.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

METRIC = re.compile(r"\b((?:penstock|rpc)_[a-z_]+)\b(?=\s*[{\[)]|$)")


def main():
    root = pathlib.Path(sys.argv[1])
    place = root / "docs" / "observability"
    passed, problems = 0, []

    def case(name, problem):
        nonlocal passed
        if problem:
            problems.append(f"TEST CASE:  {name}\n{problem}")
        else:
            passed += 1

    source = "".join(path.read_text(encoding="utf-8") for path in sorted((root / "src" / "prometheus").glob("*.cpp")))
    exported = set(re.findall(r'MetricFamily \w+\{\s*"([a-z_]+)"', source))
    exported |= {name + suffix for name in exported if name.endswith("_seconds") for suffix in ("_bucket", "_count", "_sum")}
    labels = set(re.findall(r'"((?:penstock|rpc|server|network)_[a-z_]+)"', source))

    def unknown(expression):
        return sorted(name for name in METRIC.findall(expression) if name not in exported and name not in labels)

    rules = (place / "alerts.yml").read_text(encoding="utf-8")
    expressions = re.sub(r"\n\s+", " ", "\n".join(re.findall(r"expr: (.*(?:\n {10,}.*)*)", rules)))
    case("O4: the alert rules ask for metrics that penstock exports", ", ".join(unknown(expressions)))
    case("O4: the alert rules have been found", "" if len(METRIC.findall(expressions)) >= 5 else "no expressions in alerts.yml")

    dashboard = json.loads((place / "dashboard.json").read_text(encoding="utf-8"))
    targets = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = {name for expression in targets for name in METRIC.findall(expression)}
    case("O4: the dashboard asks for metrics that penstock exports", ", ".join(unknown("\n".join(targets))))
    families = {"penstock_circuit_state", "penstock_circuit_transitions_total", "penstock_circuit_calls_total",
                "penstock_retry_decisions_total", "penstock_client_connections"}
    case("O4: the dashboard shows each of penstock's own metrics", ", ".join(sorted(families - asked)))

    guide = (root / "docs" / "observability.md").read_text(encoding="utf-8")
    wanted = {name for name in exported if not name.endswith(("_bucket", "_count", "_sum"))}
    case("O4: docs/observability.md names every metric", ", ".join(sorted(name for name in wanted if name not in guide)))

    promtool = os.environ.get("PENSTOCK_PROMTOOL") or shutil.which("promtool")
    if promtool and os.access(promtool, os.X_OK):
        for name, arguments in (("O4: promtool finds no fault in the alert rules", ["check", "rules", "alerts.yml"]),
                                ("O4: the alert rules fire when they should, and only then", ["test", "rules", "alerts_test.yml"])):
            run = subprocess.run([promtool] + arguments, cwd=place, capture_output=True, text=True)
            case(name, run.stdout + run.stderr if run.returncode != 0 else "")
    elif os.environ.get("CI") == "true":
        case("O4: promtool is there", "CI without promtool: the alert rules were not checked")
    else:
        print("no promtool: the alert rules were not unit-tested")

    for problem in problems:
        print(problem)
    print(f"{passed} passed, {len(problems)} failed")
    return 1 if problems else 0


sys.exit(main())
