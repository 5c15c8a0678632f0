"""Runs the benchmarks that have a goal and flags every ratio that misses it.

Ratios only: machines are shared, and an absolute figure means nothing. README.md says which ratios
have no goal, because what they are compared with depends on the machine. A ratio that misses its goal
is measured again up to --tries times and its best value counts, because another tenant can only
make it worse. With --compare FILE the ratios are compared with an earlier run as well; --save FILE
keeps this one. Exits with 1 if a goal is missed or a ratio fell by more than --tolerance.

usage: run.py BUILD_FOLDER [--tries 3] [--save FILE] [--compare FILE] [--tolerance 0.1]
       (BUILD_FOLDER is the bench preset's: build/bench)
"""

import argparse
import json
import pathlib
import subprocess
import sys

RS = "collective/reduce_scatter/fp32/out_of_place/bytes:"
AG = "collective/all_gather/fp32/out_of_place/bytes:"
LARGE = "collective_bench --benchmark_repetitions=20"
# program and its options, benchmark, counter, goal; "min": at least, "max": at most
GOALS = [
    ("update_bench", "update/adamw/fp32", "vs_same_traffic", "min", 0.93),
    ("update_bench", "update/adamw/fp64", "vs_same_traffic", "min", 0.93),
    ("update_bench", "update/adamw/bf16", "vs_same_traffic", "min", 0.93),
    ("update_bench", "update/adamw/bf16-rest16", "vs_same_traffic", "min", 0.9),
    ("update_bench", "update/adamw/bf16-rest8", "vs_same_traffic", "min", 0.9),
    ("update_bench", "update/adamw/bf16-stochastic", "vs_same_traffic", "min", 0.9),
    ("update_bench", "update/adamw8bit/fp32", "vs_fp32", "max", 1.5),
    ("update_bench", "small_tensors/adamw/fp32/elements:1024", "cost_of_tensors", "max", 1.10),
    ("update_bench", "small_tensors/adamw/bf16/elements:1024", "cost_of_tensors", "max", 1.10),
    ("update_bench", "placement/adamw/fp32", "worst_over_best", "max", 1.05),
    ("update_bench", "sizes/adamw/fp32", "worst_over_best", "max", 1.05),
    (LARGE, f"{RS}67108864/ranks:2", "vs_raw", "min", 1.0),
    (LARGE, f"{AG}67108864/ranks:2", "vs_raw", "min", 1.0),
    ("step_bench", "step/fp32/pos+g", "vs_replicated", "max", 0.55),
    ("step_bench", "step/fp32/pos+g+p", "vs_replicated", "max", 0.70),
    ("step_bench", "gathers/fp32/ranks:2", "vs_pos+g", "max", 1.15),
    ("step_bench", "step/bf16/pos+g", "vs_replicated", "max", 0.60),
    ("step_bench", "step/bf16/pos+g+p", "vs_replicated", "max", 0.80),
    ("checkpoint/checkpoint_bench", "checkpoint/fp32/ranks:1", "save_vs_raw", "min", 0.85),
    ("checkpoint/checkpoint_bench", "checkpoint/fp32/ranks:1", "load_vs_raw", "min", 0.85),
    ("checkpoint/checkpoint_bench", "checkpoint/fp32/ranks:1", "stall_over_copy", "max", 1.2),
    ("checkpoint/checkpoint_bench", "checkpoint/fp32/ranks:1", "keep_over_all", "max", 1.1),
]


def measure(folder, program, benchmark, counter):
    """The counter of the one benchmark whose name begins so."""
    pattern = "^" + benchmark.replace("+", "[+]") + "(/|$)"
    name, *options = program.split()
    output = subprocess.run(
        [
            folder / "bench" / name,
            *options,
            "--benchmark_format=json",
            f"--benchmark_filter={pattern}",
        ],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ).stdout
    runs = json.loads(output)["benchmarks"] if output else []
    if not runs:
        sys.exit(f"{program} has no benchmark {benchmark}")
    medians = [run for run in runs if run.get("aggregate_name") == "median"]
    return (medians or runs)[0][counter]


def meets(kind, value, goal):
    return value >= goal if kind == "min" else value <= goal


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--save", type=pathlib.Path)
    parser.add_argument("--compare", type=pathlib.Path)
    parser.add_argument("--tolerance", type=float, default=0.1)
    options = parser.parse_args()
    before = json.loads(options.compare.read_text()) if options.compare else {}
    results = {}
    failed = False
    for program, benchmark, counter, kind, goal in GOALS:
        better = max if kind == "min" else min
        value = None
        for _ in range(options.tries):
            now = measure(options.folder, program, benchmark, counter)
            value = now if value is None else better(value, now)
            if meets(kind, value, goal):
                break
        verdict = "ok" if meets(kind, value, goal) else "MISSED"
        old = before.get(benchmark)
        if old is not None:
            loss = 1 - value / old if kind == "min" else value / old - 1
            if loss > options.tolerance:
                verdict += f", REGRESSED from {old:.3f}"
        failed = failed or verdict != "ok"
        results[benchmark] = value
        sign = ">=" if kind == "min" else "<="
        print(f"{benchmark:68} {counter:20} {value:6.3f}  {sign} {goal:.2f}  {verdict}", flush=True)
    if options.save:
        options.save.write_text(json.dumps(results, indent=2) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
