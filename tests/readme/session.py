#!/usr/bin/env python3
"""Runs the commands of a block as a reader would, and compares all that they print.

    session.py PROGRAM BLOCK

Lines that begin with '$ ' are commands, whose first word stands for PROGRAM; a line that ends with a
backslash goes on in the next. What follows is what they print; a line '...' stands for any lines.
"""

import difflib
import pathlib
import shlex
import subprocess
import sys


def commands_of(text):
    """Pairs of a command and the lines that it is said to print."""
    commands = []
    for line in text.splitlines():
        if commands and commands[-1][0].endswith("\\"):
            commands[-1][0] = commands[-1][0][:-1] + line
        elif line.startswith("$ "):
            commands.append([line[2:], []])
        elif commands:
            commands[-1][1].append(line)
        else:
            sys.exit("the block does not begin with a command")
    return commands


def is_printed(expected, printed):
    """Is `printed` what is expected, where '...' stands for any lines?"""
    if not expected:
        return not printed
    if expected[0] == "...":
        return any(is_printed(expected[1:], printed[n:]) for n in range(len(printed) + 1))
    return bool(printed) and expected[0] == printed[0] and is_printed(expected[1:], printed[1:])


def main():
    program, block = sys.argv[1], pathlib.Path(sys.argv[2])
    commands = commands_of(block.read_text(encoding="utf-8"))
    if not commands:
        sys.exit("the block has no command")
    for command, expected in commands:
        done = subprocess.run([program, *shlex.split(command)[1:]], stdout=subprocess.PIPE,
                              text=True, check=True)
        printed = done.stdout.splitlines()
        # A line between two commands is there for the eye.
        while expected and not expected[-1]:
            expected.pop()
        if not is_printed(expected, printed):
            print(f"$ {command}", *difflib.unified_diff(expected, printed, "document", "printed",
                                                        lineterm=""), sep="\n")
            sys.exit(1)


if __name__ == "__main__":
    main()
