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

Exits with 1 if a program fails or a goal is missed, and with 77 if there is no GPU.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import time

SMALL = 819200  # elements of one rank's share of a bucket
LARGE = 1 << 27
ROW = re.compile(r"row: (?P<what>.*): (?P<ratio>[0-9.]+) \(goal (?P<goal>[0-9.]+)\)")
STEP = re.compile(r"(?P<ranks>\d+) ranks  (?P<stage>\S+) +(?P<step>[0-9.]+) ms a step \(longest (?P<longest>[0-9.]+)\), +"
                  r"(?P<exposed>[0-9.]+) ms exposed communication, +(?P<host>[0-9.]+) ms on the host")
TABLE = re.compile(r"(?P<name>\S.*?) +(?P<us>[0-9.]+) +(?P<rate>\d+) +[0-9.]+ +[0-9.]+$")


class Table:
    """Rows as they come: printed at once, and kept."""

    def __init__(self, judges):
        self.judges, self.rows = judges, []

    def add(self, what, measured, goal, met):
        verdict = "-" if not self.judges or met is None else "met" if met else "MISSED"
        self.rows.append({"row": what, "measured": measured, "goal": goal, "verdict": verdict})
        print(f"{what:78} {measured:>24} {goal:>14}  {verdict}", flush=True)


def run(program, arguments, end, text=None):
    """What a program prints; None if there is no time for it. It may take until `end`."""
    left = end - time.monotonic()
    if left < 5:
        return None
    shown = subprocess.run([program, *arguments], stdout=subprocess.PIPE, stderr=text, text=True, check=False, timeout=left)
    if shown.returncode == 77:
        print("no GPU to measure on")
        sys.exit(77)
    if shown.returncode != 0:
        raise RuntimeError(f"{program} ended with {shown.returncode}:\n{shown.stdout}")
    return shown.stdout


def kernels(table, program, end):
    """Returns microseconds by (elements, name)."""
    shown = run(program, ["--variants"], end) or ""
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
    shown = run(program, ["--ranks", "2,4", "--min", "1K", "--max", largest, "--factor", "16", "--benchmark_repetitions=3",
                          "--benchmark_min_time=0.05", "--benchmark_format=json"], end, subprocess.DEVNULL)
    if shown is None:
        return
    for one in json.loads(shown)["benchmarks"]:
        if one.get("aggregate_name") != "median":
            continue
        name = one["run_name"].split("/")
        operation, size, ranks = name[1], *(part.split(":")[1] for part in name if part.startswith(("bytes:", "ranks:")))
        mine, copy = one["real_time"], one["real_time"] * one["vs_raw"]
        table.add(f"{operation}, {size} bytes, {ranks} ranks, over a copy", f"{mine:.1f} us, copy {copy:.1f}", "2 copies + 5 us",
                  mine <= 2 * copy + 5)


def steps(table, program, end, arguments):
    """Replicated on four ranks: one figure."""
    runs = []
    for _ in range(2):
        shown = run(program, arguments, end)
        if shown is None:
            return
        print(shown)
        runs.append({(int(one["ranks"]), one["stage"]): one for one in STEP.finditer(shown)})
    for key in runs[0]:
        if key[0] == 1:
            continue
        times = [float(one[key]["step"]) for one in runs]
        table.add(f"step of {key[1]}, {key[0]} ranks, two runs", " and ".join(f"{value:.3f}" for value in times) + " ms", "within 10 %",
                  max(times) <= 1.1 * min(times))
        for one in runs:
            host, step = float(one[key]["host"]), float(one[key]["step"])
            if host > 0.8 * step:
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
        times[f"{elements} norm fp32, torch._foreach_norm"] = timed(torch._foreach_norm, arrays)  # pylint: disable=protected-access
    print(json.dumps(times))


def beside_torch(times, end):
    """Ours and PyTorch's, where it is installed."""
    left = end - time.monotonic()
    if left < 20:
        print("no time for PyTorch")
        return
    shown = subprocess.run([sys.executable, __file__, "--torch"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                           check=False, timeout=left)
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
    missed = sum(row["verdict"] == "MISSED" for row in table.rows)
    print(f"{len(table.rows)} rows, {missed} goals missed")
    if options.save:
        options.save.write_text(json.dumps(table.rows, indent=1) + "\n")
    return 1 if missed or not table.rows else 0


if __name__ == "__main__":
    sys.exit(main())
