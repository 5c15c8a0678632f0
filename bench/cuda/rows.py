#!/usr/bin/env python3
"""The figures that were slow on the first GPU, measured again within five minutes, beside their goals.

usage: rows.py BUILD_FOLDER [--seconds 300] [--emulated] [--save FILE]
       (BUILD_FOLDER is the cuda preset's: build/cuda, whose target cuda_bench has been built)

What each row says stands in README.md. Kernels are measured by `cuda_update_bench --variants`, whose
output shows the other ways to write them as well; collectives of threads that share the GPU by
`cuda_in_process_collective_bench`; steps by `cuda_in_process_step_bench`, twice, since the first two
runs disagreed. Where PyTorch is installed and sees the GPU, its fused AdamW, its AdamW through
torch._foreach and torch._foreach_norm follow, each in a CUDA graph as ours are.

With --emulated the same programs run on the emulated device of the tests, but for the kernels': the
times mean nothing then, and nothing is judged.

Exits with 1 if a program fails, a goal is missed or there was no row, and with 77 if there is no GPU.
The rows are shown whatever the status; where one could not be measured, a line says why.
"""

import argparse
import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import time

SMALL = 819200  # elements of one rank's share of a bucket
LARGE = 1 << 27
MICROSECONDS = {"ns": 1e-3, "us": 1, "ms": 1e3}
ROW = re.compile(r"row: (?P<what>.*): (?P<ratio>[0-9.]+) \(goal (?P<goal>[0-9.]+)\)")
STEP = re.compile(r"(?P<ranks>\d+) ranks  (?P<stage>\S+) +(?P<step>[0-9.]+) ms a step \(longest [0-9.]+\), +"
                  r"[0-9.]+ ms exposed communication, +(?P<host>[0-9.]+) ms on the host")
TABLE = re.compile(r"(?P<name>\S.*?) +(?P<us>[0-9.]+) +(?P<rate>\d+) +[0-9.]+ +[0-9.]+$")


class Table:
    """Rows as they come: printed at once, and kept."""

    def __init__(self, judges):
        self.judges, self.rows, self.failed = judges, [], []

    def add(self, what, measured, goal, met):
        verdict = "-" if not self.judges else "met" if met else "MISSED"
        self.rows.append({"row": what, "measured": measured, "goal": goal, "verdict": verdict})
        print(f"{what:78} {measured:>24} {goal:>16}  {verdict}", flush=True)

    def summary(self):
        missed = [row for row in self.rows if row["verdict"] == "MISSED"]
        said = [f"{row['row']} ({row['measured']}, goal {row['goal']})" for row in missed]
        said += [f"{program} failed" for program in self.failed]
        return "; ".join([f"{len(self.rows)} rows, goals missed: {len(missed)}", *said])


def run(table, program, arguments, end):
    """What a program has printed, which is shown even if it failed. It may take until `end`."""
    left = end - time.monotonic()
    try:
        if left < 5:
            raise subprocess.TimeoutExpired(program, left)
        shown = subprocess.run([program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               check=False, timeout=left)
    except FileNotFoundError:
        print(f"{program.name} has not been built")
        return ""
    except subprocess.TimeoutExpired:
        print(f"no time for {program.name}")
        return ""
    if shown.returncode == 77:
        print(f"skipped: {shown.stderr.strip()}")
        sys.exit(77)
    if shown.returncode != 0:
        print(f"{program.name} ended with {shown.returncode}:\n{shown.stdout}{shown.stderr}")
        table.failed.append(program.name)
    return shown.stdout


def kernels(table, program, end):
    """Returns microseconds by (elements, name)."""
    shown = run(table, program, ["--variants"], end)
    print(shown)
    times, elements = {}, 0
    for line in shown.splitlines():
        if heading := re.match(r"(\d+) elements ", line):
            elements = int(heading[1])
        elif row := ROW.match(line):
            ratio, goal = float(row["ratio"]), float(row["goal"])
            table.add(row["what"], f"{ratio:.3f}", f"{goal:.2f}", ratio >= goal)
        elif entry := TABLE.match(line):
            times[elements, entry["name"]] = float(entry["us"])
    return times


def collectives(table, program, end, largest):
    """Up to 4 MB, at most two copies of the larger buffer and 5 microseconds."""
    shown = run(table, program, ["--ranks", "2,4", "--min", "1K", "--max", largest, "--factor", "16",
                                 "--benchmark_repetitions=3", "--benchmark_min_time=0.05",
                                 "--benchmark_format=json"], end)
    for one in json.loads(shown)["benchmarks"] if shown.startswith("{") else []:
        if one.get("aggregate_name") != "median":
            continue
        name = one["run_name"].split("/")
        size, ranks = (part.split(":")[1] for part in name if part.startswith(("bytes:", "ranks:")))
        mine = one["real_time"] * MICROSECONDS[one["time_unit"]]
        copy = mine * one["vs_raw"]
        table.add(f"{name[1]}, {size} bytes, {ranks} ranks, over a copy", f"{mine:.1f} us, copy {copy:.1f}",
                  "2 copies + 5 us", mine <= 2 * copy + 5)


def steps(table, program, end, arguments):
    """Of several ranks under each stage, Replicated's among them: one figure."""
    runs = []
    for _ in range(2):
        shown = run(table, program, arguments, end)
        print(shown)
        runs.append({(int(one["ranks"]), one["stage"]): one for one in STEP.finditer(shown)})
    for key in runs[0]:
        if key[0] == 1 or key not in runs[1]:
            continue
        times = [float(one[key]["step"]) for one in runs]
        table.add(f"step of {key[1]}, {key[0]} ranks, two runs", "{:.3f} and {:.3f} ms".format(*times), "within 10 %",
                  max(times) <= 1.1 * min(times))
        for one in runs:
            host, step = float(one[key]["host"]), float(one[key]["step"])
            if table.judges and host > 0.8 * step:
                print(f"  the host took {host:.3f} ms to enqueue a step of {step:.3f} ms: the device has waited for it")


def torch_times():
    """Microseconds of PyTorch's own, by (elements, name); run as a program of its own."""
    import torch  # pylint: disable=import-error,import-outside-toplevel

    if not torch.cuda.is_available():
        sys.exit(77)

    def timed(work, sets):
        for one in sets:
            work(one)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        runs = max(10, len(sets))
        with torch.cuda.graph(graph):
            for i in range(runs):
                work(sets[i % len(sets)])
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        found = []
        for _ in range(15):
            graph.replay()
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            found.append(1e3 * begin.elapsed_time(end) / runs)
        return sorted(found)[len(found) // 2]

    times = {}
    for elements in (SMALL, LARGE):
        # As many sets as the cache has no room for.
        count = 1 if elements == LARGE else 4 * torch.cuda.get_device_properties(0).L2_cache_size // (2 * elements) + 1
        for name, options in (("fused", {"fused": True}), ("foreach", {"foreach": True})):
            sets = []
            for _ in range(count):
                parameter = torch.nn.Parameter(torch.randn(elements, device="cuda"))
                parameter.grad = torch.randn_like(parameter)
                sets.append(torch.optim.AdamW([parameter], capturable=True, **options))
            times[f"{elements} AdamW fp32, torch {name}"] = timed(lambda one: one.step(), sets)
            del sets
            torch.cuda.empty_cache()
        arrays = [[torch.randn(elements, device="cuda")] for _ in range(count)]
        norm = torch._foreach_norm  # pylint: disable=protected-access
        times[f"{elements} norm fp32, torch._foreach_norm"] = timed(norm, arrays)
    print(json.dumps(times))


def beside_torch(times, end):
    """Ours and PyTorch's, where it is installed."""
    left = end - time.monotonic()
    if left < 20 or importlib.util.find_spec("torch") is None:
        print("not beside PyTorch, " + ("for which there is no time" if left < 20 else "which is not installed"))
        return
    try:
        shown = subprocess.run([sys.executable, __file__, "--torch"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, check=False, timeout=left)
    except subprocess.TimeoutExpired:
        print("not beside PyTorch, for which there was no time")
        return
    if shown.returncode != 0:
        print(f"not beside PyTorch: {(shown.stderr.strip().splitlines() or ['it sees no GPU'])[-1]}")
        return
    ours = {"AdamW": "AdamW fp32, zero", "norm": "exact norm fp32"}
    print("\nbeside PyTorch, in microseconds")
    for key, theirs in json.loads(shown.stdout).items():
        elements, name = key.split(" ", 1)
        mine = times.get((int(elements), ours[name.split(" ", 1)[0]]))
        print(f"{name:38} {int(elements):>10} elements {theirs:10.1f}, ours {mine if mine is not None else '-':>10}")


def main():
    if sys.argv[1:] == ["--torch"]:
        return torch_times()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--emulated", action="store_true")
    parser.add_argument("--save", type=pathlib.Path, help="the rows as JSON")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    table = Table(judges=not options.emulated)
    if options.emulated:
        folder = options.build / "tests" / "emulated"
        collectives(table, folder / "zero_emulated_in_process_collective_bench", end, "1K")
        steps(table, folder / "zero_emulated_in_process_step_bench", end, ["2048"])
    else:
        folder = options.build / "bench" / "cuda"
        times = kernels(table, folder / "cuda_update_bench", end)
        collectives(table, folder / "cuda_in_process_collective_bench", end, "4M")
        steps(table, folder / "cuda_in_process_step_bench", end, [])
        beside_torch(times, end)
    print(table.summary())
    if options.save:
        options.save.write_text(json.dumps(table.rows, indent=1) + "\n")
    return 1 if table.failed or not table.rows or any(row["verdict"] == "MISSED" for row in table.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
