"""The lab's results: the table on the terminal, JSON, and docs/lab-results.md."""
import json
import os
import pathlib
import platform
import subprocess
import textwrap


def versions():
    """What ran, by its own account."""
    found = {}
    for name, command in {"gRPC C++ and Python": ["dpkg-query", "-W", "-f", "${Version}", "libgrpc++1.51"],
                          "nginx": ["dpkg-query", "-W", "-f", "${Version}", "nginx"],
                          "haproxy": ["dpkg-query", "-W", "-f", "${Version}", "haproxy"],
                          "grpc-go": ["dpkg-query", "-W", "-f", "${Version}", "golang-google-grpc-dev"],
                          "grpc-java": ["dpkg-query", "-W", "-f", "${Version}", "libgrpc-java"],
                          "grpc-gateway": ["dpkg-query", "-W", "-f", "${Version}", "golang-grpc-gateway"],
                          "Node": ["node", "--version"]}.items():
        try:
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode == 0:
                found[name] = done.stdout.strip()
        except OSError:
            pass
    peer = pathlib.Path(__file__).resolve().parent.parent / "peers/node/package.json"
    found["grpc-js"] = json.loads(peer.read_text(encoding="utf-8"))["dependencies"]["@grpc/grpc-js"]
    return found | {"kernel": platform.release().split("-")[0], "processors": str(len(os.sched_getaffinity(0)))}


def table(rows):
    """For a terminal: one block a row where the columns would not fit."""
    lines = ["", f"{'axis':14} {'case':64} {'expected':44} {'seen':44} same?"]
    for row in rows:
        cells = [textwrap.wrap(text, width) or [""] for text, width in
                 ((row.axis, 14), (row.case, 64), (row.expected, 44), (row.seen if row.seen is not None else "absent: " + row.detail, 44))]
        for i in range(max(map(len, cells))):
            parts = [cell[i] if i < len(cell) else "" for cell in cells]
            lines.append(f"{parts[0]:14} {parts[1]:64} {parts[2]:44} {parts[3]:44} {row.same if i == 0 else ''}".rstrip())
    return "\n".join(lines)


def merged(file, axes, absent):
    """What `file` knows of earlier runs, with these axes' results instead of their old ones. axes: {name: {commit, seconds, rows}}."""
    data = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"axes": {}}
    return {"versions": versions(), "absent": absent, "axes": data.get("axes", {}) | axes}


def as_json(data):
    return json.dumps(data, indent=1) + "\n"


def markdown(data, axes):
    """docs/lab-results.md."""
    there = [(axis, data["axes"][axis.NAME]) for axis in axes if axis.NAME in data["axes"]]
    rows = [row for _, result in there for row in result["rows"]]
    counts = {same: sum(row["same"] == same for row in rows) for same in ("yes", "NO", "absent")}
    lines = ["# The lab's results", "",
             "Written by `tests/lab/run`; [lab.md](lab.md) says what the experiments are and why some of this is not what others saw.", "",
             f"{counts['yes']} cases as expected, {counts['NO']} different, {counts['absent']} absent, in {sum(result['seconds'] for _, result in there)} s.", "",
             ", ".join(f"{name} {version}" for name, version in data["versions"].items()) + ".", ""]
    for name, why in data["absent"].items():
        lines += [f"Absent: {name}: {why.splitlines()[0]}", ""]
    for axis, result in there:
        lines += [f"## {axis.TITLE}", "", f"`{axis.NAME}`, {result['seconds']} s.", "",
                  "| case | expected | seen | same? |", "| --- | --- | --- | --- |"]
        for row in result["rows"]:
            seen = row["seen"] if row["seen"] is not None else "absent"
            seen += f" ({row['detail']})" if row["detail"] else ""
            lines.append("| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in (row["case"], row["expected"], seen, row["same"])) + " |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"
