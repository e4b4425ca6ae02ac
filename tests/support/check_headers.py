#!/usr/bin/env python3
"""Compiles each public header alone, twice included, and all of them together: a case each, through ccache where it is
there.

    check_headers.py --include DIR [--include DIR ...] [--without PART ...] --scratch DIR HEADER_ROOT -- COMPILER [FLAG ...]

--without: leaves out the headers whose path holds PART: those of an optional dependency that is not here.
"""
import argparse
import concurrent.futures
import os
import pathlib
import subprocess
import sys


def main():
    split = sys.argv.index("--")
    compiler = sys.argv[split + 1 :]
    parser = argparse.ArgumentParser()
    parser.add_argument("--include", action="append", default=[])
    parser.add_argument("--without", action="append", default=[])
    parser.add_argument("--scratch", type=pathlib.Path)
    parser.add_argument("root", type=pathlib.Path)
    arguments = parser.parse_args(sys.argv[1:split])
    arguments.scratch.mkdir(parents=True, exist_ok=True)

    headers = sorted(path.relative_to(arguments.root).as_posix() for path in arguments.root.glob("penstock/**/*.h"))
    headers = [header for header in headers if not any(part in header for part in arguments.without)]
    flags = [flag for directory in [str(arguments.root)] + arguments.include for flag in ("-I", directory)]

    together = "all of them together"

    def compile_alone(header):
        source = arguments.scratch / (header.replace("/", "_").replace(" ", "_") + ".cpp")
        included = headers if header == together else [header, header]
        text = "".join(f"#include <{name}>\n" for name in included)
        if not source.exists() or source.read_text() != text:
            source.write_text(text)
        command = compiler + ["-std=c++20", "-O0", "-Wall", "-Wextra", "-Werror"] + flags
        return header, subprocess.run(
            command + ["-c", str(source), "-o", str(source.with_suffix(".o"))], capture_output=True, text=True
        )

    bad = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for header, result in pool.map(compile_alone, [together] + headers):
            if result.returncode != 0:
                bad += 1
                print(f"TEST CASE:  {header} does not compile by itself\n{result.stderr}")
    print(f"{len(headers) + 1 - bad} passed, {bad} failed")
    return 1 if bad or not headers else 0


sys.exit(main())
