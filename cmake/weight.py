#!/usr/bin/env python3
"""Weighs include/zero: lines by room, and what each header that trainers include brings along.

A room is a folder. Code is what is left of lines without blanks and comments. The second table has
the headers at the top, and those that no other header includes, but for `c`, a facade: how many files
of the library a unit has that includes one, itself among them and whatever its flags, and their code.

    python3 cmake/weight.py
    python3 cmake/weight.py --header zero/optimizer/stepper.hpp
"""

import argparse
import pathlib

import changed_lines
import check_layers


def code_lines(text):
    """How many lines have more than blanks and comments."""
    bare = changed_lines.TOKEN.sub(
        lambda token: "\n" * token[0].count("\n") if token[0][0] == "/" else token[0], text)
    return sum(1 for line in bare.splitlines() if line.strip())


def own_includes(text):
    """The library's headers that a header includes, relative to include/zero."""
    found = [match[1] or match[2] for match in map(check_layers.INCLUDE.match, text.splitlines()) if match]
    return {name.removeprefix("zero/") for name in found if name.startswith("zero/")}


def closure(header, includes):
    """A header and all that it includes, directly or not."""
    found, left = set(), [header]
    while left:
        if (one := left.pop()) not in found:
            found.add(one)
            left += includes[one]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent.parent,
                        help="the repository; the default is the one this script lies in")
    parser.add_argument("--header", action="append", metavar="zero/NAME",
                        help="the second table alone, of this header; may be given several times")
    options = parser.parse_args()
    include = options.root / "include" / "zero"
    texts = {path.relative_to(include).as_posix(): path.read_text(encoding="utf-8")
             for path in sorted(include.rglob("*")) if path.is_file()}
    code = {header: code_lines(text) for header, text in texts.items()}
    includes = {header: own_includes(text) for header, text in texts.items()}
    headers = [name.removeprefix("zero/") for name in options.header or []]
    if unknown := [name for name in headers if name not in texts]:
        parser.error(f"there is no zero/{unknown[0]}")
    if not headers:
        print(f"{'room':24} {'files':>6} {'lines':>7} {'code':>7}")
        rooms = {}
        for header in texts:
            rooms.setdefault(pathlib.PurePosixPath(header).parent.as_posix(), []).append(header)
        for room, inside in [*sorted(rooms.items()), ("all", list(texts))]:
            lines = sum(len(texts[header].splitlines()) for header in inside)
            print(f"{room:24} {len(inside):6} {lines:7} {sum(map(code.get, inside)):7}")
        print()
        included = {name for header, names in includes.items() for name in names
                    if not header.startswith("c/") or name.startswith("c/")}
        headers = [name for name in texts if "/" not in name or name not in included]
    print(f"{'header':40} {'files':>6} {'code':>7}")
    for header in headers:
        brought = closure(header, includes)
        print(f"{'zero/' + header:40} {len(brought):6} {sum(map(code.get, brought)):7}")


if __name__ == "__main__":
    main()
