#!/usr/bin/env python3
"""Ranks of an MPI job that throw, leave, exit, die, hang or disagree: who is told what, and when.

Every run must end with a status that is not 0, well before its outer limit. All survivors must say one
sentence, which names a culprit and nobody else, and the operation, within the deadline, two windows and
0.2 s; at once where there are words or calls that differ. Where mpirun itself ends the job because a
process is gone, survivors may have no time to speak; they never may hang. With --enable-recovery they
always must; there mpirun's own status is not judged, since Open MPI 4.1 gives 0 after any death, even
when the survivors abort.
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

LOUD = ["throw", "leave", "hang", "stop", "op", "count", "dtype", "bucket"]
GONE = ["kill", "exit"]
# Inside of calls of MPI's that only all ranks together complete, and how often a rank makes them. A
# barrier is in front of what blocks.
INSIDE = {"MPI_Comm_idup": 4, "MPI_Ibarrier": 8, "MPI_Iallgather": 12}
LOUD += [f"hang@{name}" for name in INSIDE]
GONE += [f"kill@{name}" for name in INSIDE]
SILENT = ["hang", "stop", "kill", "exit"]
# On a grid of 2 x 2, and what goes wrong on the axis that survivors have to name: a rank that is
# silent may be missed in another group first.
ON_GRID = ["throw", "kill", "bucket", "count", "hang"]
ON_AXIS = ["bucket", "count"]
# What goes wrong in random runs, once or twice: between calls, or between two messages.
ANYWHERE = ["kill", "stop", "hang", "exit", "throw", "leave", "stop@MPI_Isend", "kill@MPI_Isend"]
DEADLINE = 2.0
WINDOW = max(0.1, DEADLINE / 20)  # of the rank that collects reports
START_AND_END = 12.0  # seconds for mpirun itself and for the survivors' farewell, generously
# What all survivors say, of one of the culprits.
SAYS = {
    "throw": r"rank {r} failed: the disk is full",
    "leave": r"rank {r} left after \d+ collectives|rank {r} abandoned \[",
    "differs": r"rank {r} called \[.*\] where rank \d+ called",
    "silent": r"(one of )?ranks? [\d, ]*\b{r}\b[\d, ]* fell silent|rank {r} (and \d+ more )?did not arrive",
}


def own_axis(group, rank):
    """What the rank's axis of a grid of two model axes is called."""
    return {"model": f"model axis (data {rank // 2} of 2)",
            "data": f"data axis (model {rank % 2} of 2)"}.get(group, "")


def story(kind):
    """Which of the sentences a fault ends in."""
    kind = kind.partition("@")[0]
    return kind if kind in ("throw", "leave") else "silent" if kind in SILENT else "differs"


@functools.cache
def hydra(mpiexec):
    """Is it MPICH's launcher? That of 4.2 gives 0 for a quarter of the jobs of any program of which
    a rank is killed; how a process ended, a survivor's words say."""
    version = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False)
    return "HYDRA" in version.stdout


def named(words):
    """The ranks that a sentence blames."""
    blamed = re.sub(r"\[[^]]*\]|where rank \d+ called|rank \d+: MPI reports", "", words)
    return {int(number) for match in re.findall(r"\branks? (\d+(?:, \d+)*)", blamed)
            for number in match.split(", ")}


def judge(plan, said, fault_at, recovery, slack):
    """What is wrong with what the survivors have said, by rank: (when, words)."""
    faults, route, ranks, group = plan
    culprits = {rank for _, rank, _ in faults}
    problems = []
    loud = recovery or all(kind not in GONE and not kind.startswith("kill@") for kind, _, _ in faults)
    # A collector that dies is given up after two windows; the next one takes one more.
    limit = DEADLINE + 2 * WINDOW + 0.2 + 3 * WINDOW * (len(faults) - 1)
    if any(story(kind) != "silent" for kind, _, _ in faults) and len(faults) == 1:
        limit = max(limit - DEADLINE, 1)
    for survivor in set(range(ranks)) - culprits:
        if survivor not in said:
            if loud:
                problems.append(f"rank {survivor} said nothing")
            continue
        when, words = said[survivor]
        late = when - fault_at - limit - slack
        if late > 0:
            problems.append(f"rank {survivor} spoke {late:.2f} s too late")
        if "MPI reports" in words:
            continue  # MPI itself may notice a death first; then its words are passed on.
        # Where as many have called one as the other, the lowest rank is right: both are named.
        words = re.sub(r"rank (\d+) called (\[.*?\]) where rank (\d+) called",
                       lambda m: f"rank {m[3]} called {m[2]} where rank {m[1]} called"
                       if int(m[3]) in culprits else m[0], words)
        expected = "|".join(SAYS[story(kind)].format(r=rank) for kind, rank, _ in faults)
        if not re.search(expected, words):
            problems.append(f"rank {survivor} does not name {culprits}: {words}")
        if named(words) - culprits:
            problems.append(f"rank {survivor} blames {named(words) - culprits}: {words}")
        if "failed: " not in words and not re.search(
                r"reduce_scatter|all_gather|all_reduce|broadcast", words):
            problems.append(f"rank {survivor} names no operation: {words}")
        axis = own_axis(group, faults[0][1])
        if faults[0][0] in ON_AXIS and axis and f", on the {axis}" not in words:
            problems.append(f"rank {survivor} does not name the {axis}: {words}")
    stories = {words for survivor, (_, words) in said.items() if survivor not in culprits}
    if len(stories) > 1:
        problems.append(f"{len(stories)} stories: {stories}")
    return problems


def run(arguments, plan, recovery):
    """One job; the findings, empty if all is well."""
    faults, route, ranks, group = plan
    kind, rank, _ = faults[0]
    command = [arguments.mpiexec, *arguments.flags, *(arguments.recovery if recovery else []),
               arguments.np_flag, str(ranks), arguments.job, str(DEADLINE), route, group or "none",
               *(str(word) for fault in faults for word in fault)]
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           errors="replace", env=environment, start_new_session=True)
    problems = []
    gone = any(kind in GONE or kind.startswith("kill@") for kind, _, _ in faults)
    try:
        text, _ = job.communicate(timeout=DEADLINE + START_AND_END)
        if job.returncode == 0 and not recovery and not (gone and hydra(arguments.mpiexec)):
            problems.append("the job succeeded")
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        text, _ = job.communicate()
        problems.append(f"hung for {DEADLINE + START_AND_END} s")
    times = [float(time) for time in re.findall(r"fault at ([\d.]+)", text)]
    said = {int(m[1]): (float(m[2]), m[3])
            for m in re.finditer(r"rank (\d+) at ([\d.]+)(?: \(origin\))?: (.*)", text)}
    if not times:
        problems.append("the fault never happened")
        return problems, text
    if arguments.launcher_may_hang and set(range(ranks)) - {fault[1] for fault in faults} <= set(said):
        problems.clear()
    if route != "live":
        # Before its own words an error has the call that threw.
        words = {survivor: (when, re.sub(r", rank \d+, in .*", "", said_).removeprefix("zero: communication: "))
                 for survivor, (when, said_) in said.items()}
        problems += judge(plan, words, max(times), recovery, arguments.slack)
        return problems, text
    for survivor in set(range(ranks)) - {rank}:
        if survivor not in said:
            if kind in LOUD or recovery:
                problems.append(f"rank {survivor} said nothing")
            continue
        when, words = said[survivor]
        late = when - times[0] - DEADLINE - 1
        if late > 0:
            problems.append(f"rank {survivor} spoke {late:.2f} s too late")
        if not re.search(rf": rank {rank} did not take part in MPI_\w+ .*rank {survivor}, in "
                         "(construction|split|close)", words) and "MPI reports" not in words:
            problems.append(f"rank {survivor} does not name {rank}, or no call: {words}")
    return problems, text


def attempt(arguments, plan, recovery):
    """As `run`, again where a busy machine did not construct the ranks' groups in time."""
    for _ in range(3):
        problems, text = run(arguments, plan, recovery)
        too_slow = "fault at" not in text and "in construction" in text and plan[1] != "live"
        if not too_slow:
            break
    return problems, text


def random_plan(rng, ranks):
    """One or two faults anywhere."""
    size = rng.choice(ranks)
    route = rng.choice(["nodes", "each", "messages", "window"])
    # Within a node nothing is sent.
    kinds = [kind for kind in ANYWHERE if route != "window" or "@" not in kind]
    culprits = rng.sample(range(size), rng.choice([1, 1, 2]))
    faults = []
    for rank in culprits:
        kind = rng.choice(kinds)
        faults.append((kind, rank, rng.randrange(20, 300) if "@" in kind else rng.randrange(1, 80)))
    return faults, route, size, ""


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
    parser.add_argument("--random", type=int, default=0, help="so many runs with one or two faults anywhere")
    parser.add_argument("--launcher-may-hang", action="store_true",
                        help="it need not end when all survivors have spoken: Open MPI's does not always, over "
                             "several machines, once a process of one is gone or stopped")
    parser.add_argument("--slack", type=float, default=0.,
                        help="seconds that survivors may take beyond what is promised, on a busy machine")
    parser.add_argument("--grid", action=argparse.BooleanOptionalAction, default=True,
                        help="also goes wrong on every group of a grid")
    arguments = parser.parse_args()

    rng = random.Random(arguments.seed)
    inside = [kind for kind in arguments.kinds if "@" in kind]
    left_out = set(inside) - set(rng.sample(inside, min(arguments.inside, len(inside))))
    arguments.kinds = [kind for kind in arguments.kinds if kind not in left_out]
    plans = []  # with whether survivors are kept running
    for kind in arguments.kinds * arguments.runs:
        for recovery in [False, True] if arguments.recovery else [False]:
            rank, call = rng.randrange(arguments.ranks), rng.randrange(1, 80)
            route = rng.choice(["window", "messages", "nodes"])
            if "@" in kind:
                call, route = call % INSIDE[kind.partition("@")[2]], "live"
            plans.append((([(kind, rank, call)], route, arguments.ranks, ""), recovery))
    if arguments.grid:
        # A rank whose reason must not be lost behind what it leaves unfinished; one that must not be
        # taken for those that wait for it elsewhere.
        plans += [(([("throw", 0, 27)], "window", 4, "model"), False),
                  (([("hang", 0, 17)], "window", 4, "data"), False)]
        plans += [(([(kind, rng.randrange(4), rng.randrange(3, 30))],
                    rng.choice(["window", "messages", "nodes"]), 4, group), False)
                  for group in ["world", "data", "model"] for kind in ON_GRID * arguments.runs]
    if arguments.random:
        # Two ranks silent at once; one that collects reports and dies while it tells what it has found.
        plans.append((([("hang", 1, 30), ("stop", 2, 30)], "each", 4, ""), False))
        plans.append((([("hang", 3, 30), ("stop@MPI_Issend", 0, 1)], "each", 4, ""), False))
        plans += [(random_plan(rng, [3, 4]), bool(arguments.recovery))
                  for _ in range(arguments.random)]
    failures = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for (plan, recovery), (problems, text) in zip(
                plans, pool.map(lambda one: attempt(arguments, *one), plans)):
            if not problems:
                continue
            failures += 1
            faults, route, ranks, group = plan
            what = ", ".join(f"{kind} on rank {rank} at call {call}" for kind, rank, call in faults)
            print(f"{what} {'of ' + group if group else ''} by {route}, {ranks} ranks, recovery "
                  f"{recovery}: {'; '.join(problems)}",
                  *("  | " + line for line in text.splitlines()[-15:]), sep="\n")
    print(f"{len(plans)} runs, {failures} failures")
    return 1 if failures or not plans else 0


if __name__ == "__main__":
    sys.exit(main())
