#!/usr/bin/env python3
"""Fuzzes penstock's parsers with libFuzzer, under AddressSanitizer and UndefinedBehaviorSanitizer.

    tests/fuzz/run.py [--seconds N] [--build DIR] [--target NAME ...]

Needs clang++ with its runtime (Debian: clang, libclang-rt-dev); says so and counts nothing where they are missing. Corpora
and what breaks a parser stay in DIR (build/fuzz).
"""
import argparse
import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys

TARGETS = ("trace_context", "baggage", "faults", "pushback", "address")
SOURCES = ("src/client/faults.cpp", "src/runtime/address.cpp", "src/runtime/baggage.cpp", "src/runtime/metadata.cpp",
           "src/runtime/problems.cpp", "src/runtime/pushback.cpp", "src/runtime/trace_context.cpp", "tests/fuzz/targets.cpp")
FLAGS = ["-std=c++20", "-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]


def main():
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="for each target (60)")
    parser.add_argument("--build", type=pathlib.Path, default=root / "build" / "fuzz")
    parser.add_argument("--target", action="append", choices=TARGETS)
    arguments = parser.parse_args()
    build = arguments.build
    build.mkdir(parents=True, exist_ok=True)

    clang = shutil.which("clang++")
    probe = build / "probe.cpp"
    probe.write_text("extern \"C\" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }\n")
    usable = clang and subprocess.run([clang, "-fsanitize=fuzzer,address,undefined", str(probe), "-o", str(build / "probe")],
                                      capture_output=True).returncode == 0
    if not usable:
        print("no clang++ with libFuzzer (Debian: clang, libclang-rt-dev): the parsers were not fuzzed")
        return 77
    compiler = (["ccache"] if shutil.which("ccache") else []) + [clang]
    include = ["-I", str(root / "include"), "-I", str(root / "src"), "-I", str(root / "tests")]

    def compile_one(source, output, *flags):
        subprocess.run(compiler + FLAGS + ["-fsanitize=fuzzer-no-link"] + include + list(flags) +
                       ["-c", str(root / source), "-o", str(build / output)], check=True)
        return str(build / output)

    def run(target):
        corpus = build / f"corpus-{target}"
        corpus.mkdir(exist_ok=True)
        ran = subprocess.run([str(build / target), f"-max_total_time={arguments.seconds}", "-max_len=16384", "-verbosity=1",
                              "-print_final_stats=1", f"-artifact_prefix={build}/{target}-", str(corpus)],
                             capture_output=True, text=True)
        return target, ran

    targets = arguments.target or TARGETS
    with concurrent.futures.ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        objects = list(pool.map(lambda source: compile_one(source, source.replace("/", "_") + ".o"), SOURCES))
        for target in targets:
            entry = compile_one("tests/fuzz/libfuzzer.cpp", f"{target}.o", f'-DPENSTOCK_FUZZ_TARGET="{target}"')
            subprocess.run([clang, "-fsanitize=fuzzer,address,undefined", entry] + objects +
                           ["-o", str(build / target), "-lfmt", "-lgrpc++", "-lgpr"], check=True)
        bad = 0
        for target, ran in pool.map(run, targets):
            runs = [line.split()[-1] for line in ran.stderr.splitlines() if line.startswith("stat::number_of_executed_units")]
            if ran.returncode == 0:
                print(f"{target}: {runs[0] if runs else '?'} inputs, nothing broken")
            else:
                bad += 1
                print(f"TEST CASE:  G6: {target} holds on any input\n{ran.stderr[-4000:]}")
    print(f"{len(targets) - bad} passed, {bad} failed")
    return 1 if bad else 0


sys.exit(main())
