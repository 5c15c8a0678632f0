#!/usr/bin/env python3
"""Prints why tests were skipped, after a run of ctest, which only says that they were.

usage: skipped.py BUILD_FOLDER

ctest calls it at the end of a run, because CMakeLists.txt here tells it to. A test that is skipped prints
one line, "skipped: " and the reason.
"""

import pathlib
import re
import sys


def main():
    # The log of a run has this name until ctest ends.
    log = pathlib.Path(sys.argv[1], "Testing", "Temporary", "LastTest.log.tmp")
    if not log.exists():
        return
    tests = re.split(r"^\d+/\d+ Test: ", log.read_text(encoding="utf-8", errors="replace"), flags=re.MULTILINE)
    found = [(test.split("\n", 1)[0], why[1]) for test in tests[1:]
             if (why := re.search(r"^skipped: (.*)", test, re.MULTILINE))]
    if found:
        print("\nThese tests were skipped because")
    for name, why in found:
        print(f"  {name}: {why}")


if __name__ == "__main__":
    main()
