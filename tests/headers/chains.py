#!/usr/bin/env python3
"""Distributes headers over few translation units, so that each still has to compile by itself.

What a header includes anyway may come before it without lending it anything. So a chain of headers,
each of which includes the one before, directly or not, is one translation unit. Only includes above
all code and outside of conditions count: those are there whatever the flags.

Writes one file for each chain, named after its last header, and prints the files' names.
"""

import argparse
import functools
import pathlib
import re

INCLUDE = re.compile(r'#include [<"](zero/[^>"]+)[>"]')


def includes(text):
    """The project's headers that a text includes in any case."""
    depth = 0
    for line in text.splitlines():
        if line.startswith("namespace"):
            return
        if re.match(r"\s*#\s*if", line):
            depth += 1
        elif re.match(r"\s*#\s*endif", line):
            depth -= 1
        elif depth == 0 and (found := INCLUDE.match(line)):
            yield found[1]


def chains(headers, text_of):
    """Lists of headers, each after those that it includes; every header is in one."""

    @functools.cache
    def below(header):
        direct = set(includes(text_of(header)))
        return direct.union(*map(below, direct))

    left = set(headers)
    while left:
        # From the header with the most below it, always to the one with the most below that.
        chain, candidates = [], left
        while candidates:
            chain.append(max(candidates, key=lambda header: (len(below(header)), header)))
            left = left - {chain[-1]}
            candidates = left & below(chain[-1])
        yield chain[::-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--include", type=pathlib.Path, required=True, help="where headers are found")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="where files are written")
    parser.add_argument("headers", nargs="+")
    args = parser.parse_args()
    for chain in chains(args.headers, lambda header: (args.include / header).read_text()):
        # Twice: a header may be included again.
        text = "".join(f"#include <{header}>\n" * 2 for header in chain)
        path = (args.out / chain[-1]).with_suffix(".cpp")
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
        print(path)


if __name__ == "__main__":
    main()
