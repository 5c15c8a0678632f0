#!/usr/bin/env python3
"""Counts what a trainer's file changes to use the library: lines that are added or changed.

Both versions are formatted by clang-format with the project's settings, and comments and blank lines
are left out. What counts is what the later version has and the earlier one has not, as a diff says;
lines that are gone are shown, and do not count. Prints a table, and fails if one has more than its
limit, or if nothing has changed.

Two paths compare two files of your own; nothing fails then, whatever changed. To add a trainer of the
project's, give it a line in TRAINERS.
"""

import argparse
import difflib
import pathlib
import re
import shutil
import subprocess
import sys

# before, after, and the most lines that may be added or changed.
TRAINERS = [
    ("examples/c/trainer/before.c", "examples/c/trainer/after.c", 12),
    ("examples/mpi/trainer/before.cpp", "examples/mpi/trainer/after.cpp", 12),
    ("examples/frameworks/trainer/before.cpp", "examples/frameworks/trainer/after.cpp", 13),
    ("examples/libtorch/trainer/before.cpp", "examples/libtorch/trainer/after_posg.cpp", 12),
    ("examples/libtorch/trainer/before.cpp", "examples/libtorch/trainer/after_posgp.cpp", 25),
]

# A comment, or what must not be taken for one.
TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)


def code_lines(text, clang_format):
    """Lines of code as the project formats them, without comments and blank lines.

    Comments go first, so that none of them decides where a line of code ends.
    """
    bare = TOKEN.sub(lambda token: " " if token[0][0] == "/" else token[0], text)
    formatted = subprocess.run([clang_format, "--style=file", "--assume-filename=trainer.cpp"],
                               input=bare, capture_output=True, text=True, check=True,
                               cwd=pathlib.Path(__file__).resolve().parent).stdout
    return [line.strip() for line in formatted.splitlines() if line.strip()]


def difference(before, after):
    """Lines that are added or changed, and lines that are gone."""
    lines = list(difflib.unified_diff(before, after, lineterm="", n=0))[2:]
    return ([line[1:] for line in lines if line.startswith("+")],
            [line[1:] for line in lines if line.startswith("-")])


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent.parent,
                        help="the repository; the default is the one this script lies in")
    parser.add_argument("--clang-format", default=None, help="the default is what is on the path")
    parser.add_argument("--lines", action="store_true", help="show the lines that count")
    parser.add_argument("trainers", nargs="*", metavar="before after | before:after:limit",
                        help="instead of the project's: two files, or, from the repository's root, any "
                             "number of pairs with the most lines that each may add or change")
    args = parser.parse_args()
    if len(args.trainers) == 2 and not any(":" in path for path in args.trainers):
        # Relative to where the user is, not to the repository.
        trainers = [tuple(str(pathlib.Path(path).absolute()) for path in args.trainers) + (None,)]
        if missing := [path for path in args.trainers if not pathlib.Path(path).is_file()]:
            parser.error(f"no such file: {missing[0]}")
    elif wrong := [t for t in args.trainers if not re.fullmatch(r"[^:]+:[^:]+:\d+", t)]:
        parser.error(f"'{wrong[0]}' is neither one of two files nor before:after:limit")
    else:
        trainers = [(b, a, int(limit)) for b, a, limit in (t.split(":") for t in args.trainers)]
    clang_format = args.clang_format or shutil.which("clang-format-14") or shutil.which("clang-format")
    if clang_format is None:
        print("skipped: there is no clang-format, after which the lines are counted")
        return 77

    wrong = False
    print(f"{'trainer':40} {'added or changed':>16} {'at most':>8} {'gone':>6}")
    for before, after, limit in trainers or TRAINERS:
        code = [code_lines((args.root / path).read_text(encoding="utf-8"), clang_format)
                for path in (before, after)]
        added, gone = difference(*code)
        wrong |= limit is not None and not 0 < len(added) <= limit
        print(f"{after:40} {len(added):16} {'-' if limit is None else limit:>8} {len(gone):6}")
        if args.lines:
            print("".join(f"  {line}\n" for line in added), end="")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
