#!/usr/bin/env python3
"""Plays the sessions in documents, and fails where what comes out is not what stands there: a case for each command.

    sessions.py --programs DIR DOCUMENT...

A session is a fenced block of the kind `console`: lines that begin with `$ ` are commands, the lines below one are what it
prints, with `…` for anything. All of a document run in one bash, in an empty folder with the programs of DIR in it. A command
is asked again for a while until its output is right, if it only reads (grep, cat, ls); others run once.

`--address` is left to the environment here, so that each program takes a free port; `localhost:9090` and `localhost:9091` in
later commands stand for the ports that the ledger and the wallet printed into the file that their output went to.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

SESSION = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)
READS = re.compile(r"^(grep|cat|ls)\b")
STARTED = re.compile(r"^\./(ledger|wallet) .*>\s*(\S+) &$")
PORTS = {"ledger": "9090", "wallet": "9091"}
LIMIT = 30  # seconds


class Shell:
    def __init__(self, folder):
        environment = os.environ | {"LEDGER_ADDRESS": "127.0.0.1:0", "WALLET_ADDRESS": "127.0.0.1:0"}
        self.bash = subprocess.Popen(["bash"], cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT, text=True, start_new_session=True)
        self.folder = folder
        self.ports = {}

    def run(self, command):
        for name, port in self.ports.items():
            command = command.replace(f"localhost:{PORTS[name]}", f"localhost:{port}")
        self.bash.stdin.write(f'{command}\nstatus=$?; echo "==== done"; (exit $status)\n')
        self.bash.stdin.flush()
        lines = []
        for line in self.bash.stdout:
            if line == "==== done\n":
                started = STARTED.match(command)
                if started:
                    self.learn_port(*started.groups())
                return "".join(lines)
            lines.append(line)
        raise SystemExit(f"the shell ended in: {command}")

    def learn_port(self, name, log):
        until = time.monotonic() + LIMIT
        while time.monotonic() < until:
            text = (self.folder / log).read_text() if (self.folder / log).exists() else ""
            found = re.search(r"serving on port (\d+)\n", text)
            if found:
                self.ports[name] = found.group(1)
                self.bash.stdin.write(f"export APP_WALLET=localhost:{found.group(1)}\n" if name == "wallet" else "")
                return
            time.sleep(0.01)
        raise SystemExit(f"{name} does not serve:\n{text}")

    def close(self):
        try:
            os.killpg(self.bash.pid, 9)  # it and what it started
        except ProcessLookupError:
            pass
        self.bash.wait()


def steps(document):
    for session in SESSION.findall(document.read_text(encoding="utf-8")):
        for step in re.split(r"^\$ ", session, flags=re.M)[1:]:
            command, _, output = step.partition("\n")
            yield command, output


def fits(wanted, output):
    pattern = ".*".join(re.escape(part) for part in wanted.split("…"))
    return re.fullmatch(pattern, output, re.S) is not None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=pathlib.Path, required=True)
    parser.add_argument("documents", type=pathlib.Path, nargs="+")
    arguments = parser.parse_args()
    good = bad = 0
    for document in arguments.documents:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for program in ("ledger", "wallet", "app"):
                (folder / program).symlink_to((arguments.programs / program).resolve())
            shell = Shell(folder)
            try:
                for command, wanted in steps(document):
                    output = shell.run(command)
                    until = time.monotonic() + LIMIT
                    while not fits(wanted, output) and READS.match(command) and time.monotonic() < until:
                        time.sleep(0.1)
                        output = shell.run(command)
                    if fits(wanted, output):
                        good += 1
                    else:
                        bad += 1
                        print(f"TEST CASE:  {document.name}: {command}\n  says\n{wanted}  and not\n{output}", flush=True)
            finally:
                shell.close()
    print(f"{good} passed, {bad} failed")
    return 1 if bad or not good else 0


sys.exit(main())
