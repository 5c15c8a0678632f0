#!/usr/bin/env python3
"""Writes zero.hpp and all it includes as one header: what needs the standard library only.

usage: amalgamate.py [-o FILE] [--header zero/zero.hpp]

For trainers of a single file: `cmake/amalgamate.py -o zero.hpp`, then `#include "zero.hpp"`. The
symbols are those of the headers; do not include both in one translation unit.
"""

import argparse
import pathlib
import re
import sys

INCLUDE = pathlib.Path(__file__).resolve().parent.parent / "include"
OWN = re.compile(r'\s*#\s*include\s+"(zero/[^"]+)"')


def own_includes(header):
    """The library's headers that a header includes, and whether under a condition."""
    depth = 0
    for line in (INCLUDE / header).read_text(encoding="utf-8").splitlines():
        if re.match(r"\s*#\s*if", line):
            depth += 1
        elif re.match(r"\s*#\s*endif", line):
            depth -= 1
        elif match := OWN.match(line):
            yield match[1], depth > 0


class Writer:
    def __init__(self):
        self.written = set()
        self.lines = []

    def write(self, header):
        """Adds a header behind everything it needs, once."""
        if header in self.written:
            return
        self.written.add(header)
        self.write_needs(header)
        self.write_body(header)

    def write_needs(self, header):
        for needed, conditional in own_includes(header):
            if conditional:
                # It has to stay under its condition; what it needs may be needed by others as well.
                self.write_needs(needed)
            else:
                self.write(needed)

    def write_body(self, header):
        self.lines.append(f"// {header}")
        conditional = {name for name, under in own_includes(header) if under}
        for line in (INCLUDE / header).read_text(encoding="utf-8").splitlines():
            match = OWN.match(line)
            if match and match[1] in conditional:
                self.written.add(match[1])
                self.write_body(match[1])
            elif not match and line != "#pragma once":
                self.lines.append(line)


def version():
    text = (INCLUDE / "zero/base/version.hpp").read_text(encoding="utf-8")
    return ".".join(re.findall(r"#define ZERO_VERSION_\w+ (\d+)", text))


def amalgamated(header):
    writer = Writer()
    writer.write(header)
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(writer.lines))
    return (
        f"// zero {version()}: {header} and all it includes, written by cmake/amalgamate.py.\n"
        "#pragma once\n"
        "// Warnings are for those who change the headers, not for those who use them.\n"
        "#if defined(__GNUC__)\n#pragma GCC system_header\n#endif\n\n" + text + "\n"
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS
    )
    parser.add_argument("-o", metavar="FILE", help="default: standard output")
    parser.add_argument("--header", default="zero/zero.hpp", help="another public header")
    arguments = parser.parse_args()
    if not (INCLUDE / arguments.header).is_file():
        parser.error(f"there is no {arguments.header} in {INCLUDE}")
    text = amalgamated(arguments.header)
    if arguments.o is None:
        sys.stdout.write(text)
    else:
        pathlib.Path(arguments.o).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
