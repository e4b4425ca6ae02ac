#!/usr/bin/env python3
"""Fails where a listing in the docs is not the code that the tests compile, or a link leads nowhere: a case each.

    check_docs.py ROOT

In README.md and docs/**/*.md, a code block that names a file of the tree must stand in that file word for word, but for
its indentation. It names it in its first line (`// tests/integration/x_test.cpp`), or in a line before the block
(`<!-- listing: tests/consumer/core/meson.build -->`) where the name is not to be seen.
"""
import pathlib
import re
import sys
import textwrap

NAMED_INSIDE = re.compile(r"^```cpp\n// (\S+\.(?:cpp|h))\n(.*?)^```$", re.M | re.S)
NAMED_BEFORE = re.compile(r"^<!-- listing: (\S+) -->\n```\w*\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")


def squeezed(text):
    return [line.rstrip() for line in textwrap.dedent(text).strip("\n").splitlines()]


def stands_in(code, source):
    wanted = squeezed(code)
    lines = source.read_text(encoding="utf-8").splitlines()
    starts = (i for i in range(len(lines)) if lines[i].strip() == wanted[0].strip())
    return any(squeezed("\n".join(lines[i : i + len(wanted)])) == wanted for i in starts)


def main():
    root = pathlib.Path(sys.argv[1])
    good = 0
    bad = []
    for document in [*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))]:
        name = document.relative_to(root)
        text = document.read_text(encoding="utf-8")
        for source, code in NAMED_INSIDE.findall(text) + NAMED_BEFORE.findall(text):
            if (root / source).is_file() and stands_in(code, root / source):
                good += 1
            else:
                bad.append(f"{name}: a listing is not what {source} has:\n{code}")
        for comment in re.findall(r"<!--\s*listing.*", text):
            if not re.fullmatch(r"<!-- listing: \S+ -->", comment):
                bad.append(f"{name}: {comment} names no file, so that its listing is not looked at")
        for target in LINK.findall(re.sub(r"(?ms)```.*?```|`[^`\n]*`|^    .*?$", "", text)):
            if (document.parent / target).exists():
                good += 1
            else:
                bad.append(f"{name}: the link to {target} leads nowhere")
    for problem in bad:
        print(f"TEST CASE:  {problem}")
    print(f"{good} passed, {len(bad)} failed")
    return 1 if bad or not good else 0


sys.exit(main())
