#!/usr/bin/env python3
"""Ranks of an MPI job that throw, exit, die, hang or disagree: who is told what, and when.

Every run must end with a status that is not 0, well before its outer limit, and every survivor must
name a rank, the operation and the bucket within the deadline and one second. Where mpirun itself ends
the job because a process is gone, survivors may have no time to speak; they never may hang. With
--enable-recovery they always must; there mpirun's own status is not judged, since Open MPI 4.1 gives
0 after any death, even when the survivors abort.
"""

import argparse
import functools
import concurrent.futures
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time

LOUD = ["throw", "hang", "stop", "op", "count", "dtype", "bucket"]
GONE = ["kill", "exit"]
# Inside of calls of MPI's that only all ranks together return from, and how often a rank makes them.
# What returns without the others leaves the survivors in order, as MPI_Comm_free does.
INSIDE = {"MPI_Comm_idup": 2, "MPI_Comm_split_type": 1, "MPI_Comm_split": 2,
          "MPI_Win_allocate_shared": 2, "MPI_Win_free": 2, "MPI_Ibarrier": 4}
LOUD += [f"hang@{name}" for name in INSIDE]
GONE += [f"kill@{name}" for name in INSIDE]
SILENT = ["hang", "stop", "kill", "exit"]
# On a grid of 2 x 2, and what goes wrong on the axis that survivors have to name: a rank that is
# silent may be missed in another group first.
ON_GRID = ["throw", "kill", "bucket", "count", "hang"]
ON_AXIS = ["bucket", "count"]
DEADLINE = 2.0
START_AND_END = 12.0  # seconds for mpirun itself and for the survivors' farewell, generously
# Said about the culprit: calls that differ name two ranks, one of which it is.
NAMES_CULPRIT = {
    "throw": r"rank {r} failed: the disk is full",
    "hang": r"rank {r} (and \d+ more )?did not arrive|rank {r}\b.*fell silent",
    "stop": r"rank {r} (and \d+ more )?did not arrive|rank {r}\b.*fell silent",
}


def own_axis(group, rank):
    """What the rank's axis of a grid of two model axes is called."""
    return {"model": f"model axis (data {rank // 2} of 2)",
            "data": f"data axis (model {rank % 2} of 2)"}.get(group, "")


@functools.cache
def hydra(mpiexec):
    """Is it MPICH's launcher? That of 4.2 gives 0 for a quarter of the jobs of any program of which
    a rank is killed; how a process ended, a survivor's words say."""
    version = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False)
    return "HYDRA" in version.stdout


def run(arguments, kind, rank, call, route, recovery, group):
    """One job; the findings, empty if all is well."""
    ranks = 4 if group else arguments.ranks
    command = [arguments.mpiexec, *arguments.flags, *(arguments.recovery if recovery else []),
               arguments.np_flag, str(ranks), arguments.job,
               kind, str(rank), str(call), str(DEADLINE), route, *([group] if group else [])]
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           errors="replace", env=environment, start_new_session=True)
    problems = []
    try:
        text, _ = job.communicate(timeout=DEADLINE + START_AND_END)
        if job.returncode == 0 and not recovery and not (kind in GONE and hydra(arguments.mpiexec)):
            problems.append("the job succeeded")
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        text, _ = job.communicate()
        problems.append(f"hung for {DEADLINE + START_AND_END} s")
    fault = re.search(r"fault at ([\d.]+)", text)
    if fault is None:
        problems.append("the fault never happened")
        return problems, text
    said = {int(m[1]): (float(m[2]), m[3])
            for m in re.finditer(r"rank (\d+) at ([\d.]+)(?: \(origin\))?: (.*)", text)}
    for survivor in set(range(ranks)) - {rank}:
        if survivor not in said:
            if kind in LOUD or recovery:
                problems.append(f"rank {survivor} said nothing")
            continue
        when, words = said[survivor]
        late = when - float(fault[1]) - DEADLINE - 1
        if late > 0:
            problems.append(f"rank {survivor} spoke {late:.2f} s too late")
        if "@" in kind:
            if not re.search(rf"did not take part in MPI_\w+ .*rank {survivor}, in "
                             "(construction|split|close)", words) and "MPI reports" not in words:
                problems.append(f"rank {survivor} names no call: {words}")
            continue
        # MPI itself may notice a death first; then its words are passed on.
        culprit = NAMES_CULPRIT.get(kind, r"rank {r}\b").format(r=rank)
        if route == "native" and kind in SILENT:
            culprit += "|MPI does not tell which rank"
        if group and kind in SILENT and route != "window":
            # Who is seen to wait for others is not seen from another node: any may be blamed.
            culprit = r"did not arrive|fell silent"
        if not re.search(culprit, words) and "MPI reports" not in words:
            problems.append(f"rank {survivor} does not name rank {rank}: {words}")
        if not re.search(r"bucket", words) or not re.search(
                r"reduce_scatter|all_gather|all_reduce", words):
            problems.append(f"rank {survivor} names no operation or bucket: {words}")
        axis = own_axis(group, rank)
        if kind in ON_AXIS and axis and f", on the {axis}" not in words:
            problems.append(f"rank {survivor} does not name the {axis}: {words}")
    stories = {re.sub(r", rank \d+, in .*", "", words).removeprefix("zero: communication: ")
               for survivor, (_, words) in said.items() if survivor != rank}
    if group and kind in ["throw", "bucket", "count"] and len(stories) > 1:
        problems.append(f"{len(stories)} stories: {stories}")
    return problems, text


def attempt(arguments, plan):
    """As `run`, again where a busy machine did not construct four ranks' groups in time."""
    for _ in range(3):
        problems, text = run(arguments, *plan)
        too_slow = "fault at" not in text and "in construction" in text
        if not (plan[-1] and too_slow):
            break
    return problems, text


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", required=True)
    parser.add_argument("--mpiexec", required=True)
    parser.add_argument("--np-flag", default="-n")
    parser.add_argument("--flags", type=shlex.split, default=[])
    parser.add_argument("--recovery", type=shlex.split, default=[],
                        help="what makes mpiexec keep survivors running; none if it cannot")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--runs", type=int, default=1, help="of each kind and each mode")
    parser.add_argument("--jobs", type=int, default=3,
                        help="at a time: most of each is waiting for a deadline")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="*", default=LOUD + GONE)
    parser.add_argument("--inside", type=int, default=len(LOUD + GONE),
                        help="at most so many of the kinds that happen inside of MPI's calls")
    parser.add_argument("--grid", action=argparse.BooleanOptionalAction, default=True,
                        help="also goes wrong on every group of a grid")
    arguments = parser.parse_args()

    rng = random.Random(arguments.seed)
    inside = [kind for kind in arguments.kinds if "@" in kind]
    left_out = set(inside) - set(rng.sample(inside, min(arguments.inside, len(inside))))
    arguments.kinds = [kind for kind in arguments.kinds if kind not in left_out]
    plans = []
    for kind in arguments.kinds * arguments.runs:
        for recovery in [False, True] if arguments.recovery else [False]:
            rank, call = rng.randrange(arguments.ranks), rng.randrange(1, 80)
            route = rng.choice(["window", "messages", "nodes", "native"])
            if "@" in kind:
                call, route = call % INSIDE[kind.partition("@")[2]], "window"
            plans.append((kind, rank, call, route, recovery, ""))
    if "hang" in arguments.kinds:
        # What nobody but MPI waits for, whatever chance has chosen above.
        plans.append(("hang", rng.randrange(arguments.ranks), rng.randrange(1, 80), "native", False, ""))
    if arguments.grid:
        # A rank whose reason must not be lost behind what it leaves unfinished; one that must not be
        # taken for those that wait for it elsewhere.
        plans += [("throw", 0, 27, "window", False, "model"), ("hang", 0, 17, "window", False, "data")]
        plans += [(kind, rng.randrange(4), rng.randrange(3, 30),
                   rng.choice(["window", "messages", "nodes"]), False, group)
                  for group in ["world", "data", "model"] for kind in ON_GRID * arguments.runs]
    failures = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for plan, (problems, text) in zip(
                plans, pool.map(lambda plan: attempt(arguments, plan), plans)):
            if not problems:
                continue
            failures += 1
            kind, rank, call, route, recovery, group = plan
            print(f"{kind} on rank {rank} at call {call} {'of ' + group if group else ''} by {route}, "
                  f"recovery {recovery}: {'; '.join(problems)}",
                  *("  | " + line for line in text.splitlines()[-15:]), sep="\n")
    print(f"{len(plans)} runs, {failures} failures")
    return 1 if failures or not plans else 0


if __name__ == "__main__":
    sys.exit(main())
