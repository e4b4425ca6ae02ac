#!/usr/bin/env python3
"""Fails where a file includes what its layer must not know. Part of every build (the target 'layers').

    check_layers.py ROOT [--stamp FILE --depfile FILE]

The arrows: core <- runtime <- client, server <- otel, testing <- tests, bench, docs/example. All layers share one
include directory, so the compiler alone would let anything through.
"""
import argparse
import pathlib
import re
import sys

# Each layer and the layers that it may include, itself among them.
ALLOWED = {
    "core": {"core"},
    "runtime": {"core", "runtime"},
    "client": {"core", "runtime", "client"},
    "server": {"core", "runtime", "server"},
    "otel": {"core", "runtime", "client", "server", "otel"},
    "prometheus": {"core", "runtime", "client", "server", "prometheus"},
    "testing": {"core", "runtime", "client", "server", "testing"},
}
# Headers that stand directly in include/penstock, and the sources of the same name.
TOP = {"runtime.h": "runtime", "telemetry.h": "runtime", "faults.h": "client"}
# Other projects' headers that a layer must not know: all of a layer's files, and its public headers.
FOREIGN = {"core": r"grpc|grpcpp|google|absl|uv\.h|openssl"}
FOREIGN_PUBLIC = r"uv\.h|absl|openssl"
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


def layer_of(path):
    """The layer of an include path or of a file below include/penstock or src; None: not penstock's."""
    parts = path.split("/")
    if parts[0] == "penstock":
        parts = parts[1:]
    if parts[0] in ALLOWED and len(parts) > 1:
        return parts[0]
    if len(parts) == 1:
        return TOP.get(parts[0])
    return None


def problems_of(name, layer, public, text):
    for number, line in enumerate(text.splitlines(), 1):
        found = INCLUDE.match(line)
        if not found:
            continue
        target = found.group(1)
        other = layer_of(target)
        if other is not None and other not in ALLOWED[layer]:
            yield f"{name}:{number}: {layer} must not include {other} ({target})"
        if layer in FOREIGN and re.match(f"({FOREIGN[layer]})", target):
            yield f"{name}:{number}: {layer} must do without {target}"
        elif public and layer != "testing" and re.match(f"({FOREIGN_PUBLIC})", target):
            yield f"{name}:{number}: no public header includes {target}"
        if public and other is None and not target.startswith(("grpc", "google/", "penstock/")) and "/" in target:
            if layer not in ("otel", "prometheus", "testing") and not target.startswith(("sys/", "fmt/")):
                yield f"{name}:{number}: {target} is not what users of a public header have"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--stamp", type=pathlib.Path)
    parser.add_argument("--depfile", type=pathlib.Path)
    arguments = parser.parse_args()

    problems, seen = [], []
    for base, public in ((arguments.root / "include" / "penstock", True), (arguments.root / "src", False)):
        for path in sorted(base.rglob("*")):
            if path.is_dir() or path.suffix in (".h", ".cpp"):
                seen.append(path)
            if path.suffix not in (".h", ".cpp"):
                continue
            inside = path.relative_to(base).as_posix()
            layer = layer_of(inside)
            if layer is None:
                problems.append(f"{path.relative_to(arguments.root)}: belongs to no layer")
                continue
            text = path.read_text(encoding="utf-8")
            problems += problems_of(path.relative_to(arguments.root), layer, public, text)
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        return 1
    if arguments.stamp:
        arguments.stamp.write_text("")
        # Folders too, so that a new file is looked at.
        listed = " ".join(str(path).replace(" ", "\\ ") for path in seen)
        arguments.depfile.write_text(f"{arguments.stamp}: {listed}\n")
    else:
        print(f"{len(seen)} files and folders keep to their layers")
    return 0


sys.exit(main())
