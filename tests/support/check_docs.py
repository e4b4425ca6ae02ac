#!/usr/bin/env python3
"""Fails where an example in the docs is not the code that the tests compile.

    check_docs.py ROOT

A block of C++ in README.md or docs/**/*.md whose first line names a file of the tree (`// tests/integration/x_test.cpp`)
must stand in that file, word for word.
"""
import pathlib
import re
import sys

BLOCK = re.compile(r"^```cpp\n// (\S+\.(?:cpp|h))\n(.*?)^```$", re.M | re.S)


def main():
    root = pathlib.Path(sys.argv[1])
    good = bad = 0
    for document in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        if not document.exists():
            continue
        for name, code in BLOCK.findall(document.read_text(encoding="utf-8")):
            source = root / name
            if source.exists() and code.strip() in source.read_text(encoding="utf-8"):
                good += 1
                continue
            bad += 1
            print(f"TEST CASE:  {document.relative_to(root)}: an example is not what {name} has")
    print(f"{good} passed, {bad} failed")
    return 1 if bad or not good else 0


sys.exit(main())
