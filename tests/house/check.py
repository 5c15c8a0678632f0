"""Holds the map of the house in CONTRIBUTING.md against what a step does.

usage: check.py STEP CONTRIBUTING INCLUDE

STEP prints the functions that it enters. Those of the map must be among those of its first rank, for
the first time in the map's order; the map must be no longer than the way of a gradient may be; and
every function must stand in the file that the map names.
"""

import pathlib
import re
import sys

import walk

MOST_FUNCTIONS = 12
MOST_FILES = 8


def main():
    walk.require_tools()
    step, contributing, include = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    text = contributing.read_text().partition("\n## A map of the house\n")[2]
    rows = re.findall(r"^\| `([\w:]+)` \| `([\w/.]+)` \|", text, re.MULTILINE)
    wanted = [function for function, _ in rows]
    files = {file for _, file in rows}
    problems = []
    if not rows:
        problems.append("the map has no rows")
    if len(wanted) > MOST_FUNCTIONS or len(files) > MOST_FILES:
        problems.append(f"{len(wanted)} functions in {len(files)} files")
    for function, file in rows:
        path = include / file
        if not path.is_file() or not re.search(rf"\b{function.split('::')[-1]}\(", path.read_text()):
            problems.append(f"{function} does not stand in {file}")
    named = {address: walk.without_templates(name) for address, (_, name) in walk.symbols(step).items()}
    entered = [named[address] for address in walk.entered(step)["step"][0] if address in named]
    seen = list(dict.fromkeys(name for name in entered if name in wanted))
    if seen != wanted:
        problems.append(f"a step enters\n  {seen}\nand the map says\n  {wanted}")
    for problem in problems:
        print(problem)
    print(f"{len(wanted)} functions in {len(files)} files, {len(entered)} calls in a step")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
