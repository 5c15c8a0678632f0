"""Compares the speed of two builds: what is slower now than before?

    python3 bench/speed.py BEFORE AFTER
    python3 bench/speed.py BEFORE AFTER --pairs 31 --only 'step/fp32|tokens' --json speed.json

Both are build folders of the bench preset with -DZERO_BUILD_EXAMPLES=ON. Every row is measured in
pairs, one run of each build directly behind the other, in turns as to which comes first: what changes
on the machine changes both. A row has the medians of both builds, the median of the pairs' ratios,
above 1 where the later build takes longer, and between which bounds that median lies with 95 %
confidence, by order statistics: no assumption is made of how times are distributed. A row is slower
where the lower bound is above --limit. Exits with 1 if any is. Take a machine without other work: all
of it takes hours.
"""

import argparse
import json
import math
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import run

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = ["step_bench", "collective_bench --min 64K --max 64M --factor 32", "update_bench"]
TRAINER = "examples/gpt/train_gpt"


def benchmarks(folder, program):
    """The names of what a program measures, as run.measure() takes them."""
    name, *options = program.split()
    output = subprocess.run([folder / "bench" / name, *options, "--benchmark_list_tests=true"],
                            check=True, capture_output=True, text=True).stdout
    return [re.split(r"/iterations:|/min_time:", line)[0] for line in output.splitlines()]


def train(folder, steps):
    """{row: seconds a token} of the GPT under every stage, on the same text in both builds."""
    with tempfile.TemporaryDirectory() as scratch:
        written = pathlib.Path(scratch) / "run.json"
        subprocess.run([(folder / TRAINER).resolve(), "--compare", "--steps", str(steps), "--json", written],
                       check=True, capture_output=True, cwd=ROOT)
        return {f"train_gpt {stage['stage'].lower()}, tokens/s": 1 / stage["tokens_per_s"]
                for stage in json.loads(written.read_text())["stages"]}


def runs(folders, steps):
    """(names, what measures them): it takes a folder and gives {name: time}."""
    for program in PROGRAMS:
        there = [benchmarks(folder, program) for folder in folders]
        for name in sorted(set(there[0]) ^ set(there[1])):
            print(f"{name}: not measured, only one build has it", file=sys.stderr)
        for name in filter(there[1].__contains__, there[0]):
            yield [name], lambda folder, program=program, name=name: {
                name: run.measure(folder, program, name, "real_time")}
    if all((folder / TRAINER).is_file() for folder in folders):
        stages = [f"train_gpt {stage}, tokens/s" for stage in ("replicated", "pos", "pos+g", "pos+g+p")]
        yield stages, lambda folder: train(folder, steps)
    else:
        print(f"the trainer: not measured, not both builds have {TRAINER}", file=sys.stderr)


def bounds(ratios):
    """Between which the median lies in 95 of 100 cases; None where there are too few."""
    count = len(ratios)
    below, rank = 0.0, 0
    # The median is below the k-th smallest with the chance of fewer than k heads in so many throws.
    while (below := below + math.comb(count, rank) / 2**count) <= 0.025:
        rank += 1
    return (sorted(ratios)[rank - 1], sorted(ratios)[-rank]) if rank > 0 else None


def figures(name, pairs, limit):
    """The row of one name, from (before, after) of every pair."""
    ratios = [after / before for before, after in pairs]
    found = bounds(ratios)
    before, after = (statistics.median(column) for column in zip(*pairs))
    if "tokens" in name:
        before, after = 1 / before, 1 / after
    return {"name": name, "before": before, "after": after, "ratio": statistics.median(ratios),
            "bounds": found, "slower": found is not None and found[0] > limit}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=pathlib.Path)
    parser.add_argument("after", type=pathlib.Path)
    parser.add_argument("--pairs", type=int, default=15, help="6 or more have bounds")
    parser.add_argument("--limit", type=float, default=1.02)
    parser.add_argument("--steps", type=int, default=60, help="of the trainer, under each stage")
    parser.add_argument("--only", default="", metavar="REGEX", help="rows whose names have it")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the rows here as well")
    options = parser.parse_args()
    folders = (options.before, options.after)
    rows = []
    print(f"{'':56} {'before':>10} {'after':>10} {'ratio':>6} {'bounds':>13}")
    for names, measure in runs(folders, options.steps):
        if not any(re.search(options.only, name) for name in names):
            continue
        pairs = {name: [] for name in names}
        for turn in range(options.pairs):
            order = folders if turn % 2 == 0 else folders[::-1]
            # Not a dictionary by folder: a build may be compared with itself.
            taken = [measure(folder) for folder in order][::1 if turn % 2 == 0 else -1]
            for name in names:
                pairs[name].append(tuple(one[name] for one in taken))
        for name in names:
            row = figures(name, pairs[name], options.limit)
            rows.append(row)
            between = "{:.3f}-{:.3f}".format(*row["bounds"]) if row["bounds"] else "too few"
            print(f"{name:56} {row['before']:10.4g} {row['after']:10.4g} {row['ratio']:6.3f} {between:>13}"
                  f"{'  SLOWER' if row['slower'] else ''}", flush=True)
    slower = [row["name"] for row in rows if row["slower"]]
    print(f"{len(slower)} of {len(rows)} are slower by more than {100 * (options.limit - 1):.3g} %"
          f"{': ' if slower else ''}{', '.join(slower)}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
