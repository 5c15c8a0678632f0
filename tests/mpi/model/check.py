#!/usr/bin/env python3
"""Checks the protocol between processes with SPIN: what holds, and that seeded faults are found.

usage: check.py [SPIN [CC]]

Prints a line for every run. Ends with 77 where there is no spin.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

# (model, macros, what must be found: nothing, or the beginning of what does not hold)
RUNS = [
    ("data", "", None),
    ("data", "WINDOW=2 CHUNKS=3", None),
    ("data", "N=3 K=1 WHOLE", None),
    ("data", "NO_COMPARE", "assertion violated ((h==k)"),
    ("data", "NO_CREDITS", "assertion violated ((q_len"),
    ("data", "NO_FLUSH", "assertion violated  !(closed["),
    ("ending", "CAUSES CRASHES=2", None),
    ("ending", "ONCE", "assertion violated 0"),
    ("ending", "NO_RELAY", "assertion violated  !(((st[lead[me]]<4)"),
    ("ending", "NO_ORDER", "assertion violated 0"),
    ("ending", "NO_TAKEOVER", "assertion violated  !(((((st[0]<4)"),
]
MODELS = pathlib.Path(__file__).resolve().parent


def run(command, folder):
    """What a command prints; ends the program if it fails."""
    done = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}:\n{done.stdout}")
    return done.stdout


def check(spin, cc, level, model, macros):
    """The states that were seen, and the first thing that does not hold or None."""
    with tempfile.TemporaryDirectory() as folder:
        defines = ["-D" + macro for macro in macros.split()]
        run([spin, *defines, "-a", MODELS / f"{model}.pml"], folder)
        run([cc, level, "-w", "-DSAFETY", "-DCOLLAPSE", "-DMEMLIM=1000", "-o", "pan", "pan.c"], folder)
        # -E: ranks that are left over are looked for by assertions.
        text = run(["./pan", "-E", "-m100000", "-w20"], folder)
    wrong = re.search(r"^pan:\d+: (.*) \(at depth", text, re.M)
    states = re.search(r"(\d+) states, stored", text)
    if states is None or "Search not completed" in text and wrong is None:
        sys.exit(f"{model} {macros}: not searched to its end\n{text}")
    return int(states[1]), wrong[1] if wrong else None


def main():
    spin = sys.argv[1] if len(sys.argv) > 1 else shutil.which("spin")
    cc = sys.argv[2] if len(sys.argv) > 2 else shutil.which("cc")
    if not spin or not cc:
        print("skipped: there is no " + ("C compiler" if spin else "spin"))
        return 77
    failures = 0
    for model, macros, expected in RUNS:
        # Faults are found at once: compiling takes longer.
        states, found = check(spin, cc, "-O1" if expected is None else "-O0", model, macros)
        good = found is None if expected is None else (found or "").startswith(expected)
        failures += not good
        what = "holds" if found is None else "found: " + found[:60]
        print(f"{'ok  ' if good else 'FAIL'} {model:6} {macros:18} {states:8} states, {what}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
