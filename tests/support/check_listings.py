#!/usr/bin/env python3
"""Checks that the listings of the docs are what the compiled sources say.

A listing in a Markdown file is a comment that names a source and a snippet, and the fenced block below it:

    <!-- listing: docs/example/wallet/service.cpp pay -->
    ```cpp
    ...
    ```

The snippet stands in the source between lines that hold `[snippet:pay]` and `[/snippet]`. --fix writes the listings anew.
Prints each listing that differs; exit code 1 when there is one. The last line counts the listings.
"""
import argparse
import pathlib
import re
import sys
import textwrap

LISTING = re.compile(r"<!-- listing: (\S+) (\S+) -->\n```(\w*)\n(.*?)```\n", re.S)


def snippet(root, path, name):
    """The text between the marks, without its common indentation."""
    source = (root / path).read_text()
    found = re.search(rf"^[^\n]*\[snippet:{re.escape(name)}\][^\n]*\n(.*?)^[^\n]*\[/snippet\]", source, re.S | re.M)
    return textwrap.dedent(found.group(1)) if found else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--fix", action="store_true", help="write the listings anew")
    arguments = parser.parse_args()
    good, bad = 0, []
    for document in [arguments.root / "README.md", *sorted((arguments.root / "docs").rglob("*.md"))]:
        if not document.exists():
            continue

        def check(match):
            nonlocal good
            path, name, language, text = match.groups()
            where = f"{document.relative_to(arguments.root)}: {path} {name}"
            try:
                wanted = snippet(arguments.root, path, name)
            except OSError as error:
                bad.append(f"{where}: {error}")
                return match.group(0)
            if wanted is None:
                bad.append(f"{where}: no [snippet:{name}] in {path}")
            elif wanted != text and not arguments.fix:
                bad.append(f"{where}: differs from the source (check_listings.py --fix writes it anew)")
            else:
                good += 1
                return f"<!-- listing: {path} {name} -->\n```{language}\n{wanted}```\n"
            return match.group(0)

        text = document.read_text()
        changed = LISTING.sub(check, text)
        if arguments.fix and changed != text:
            document.write_text(changed)
    for line in bad:
        print(line)
    print(f"{good} listings as compiled, {len(bad)} not")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
