#!/usr/bin/env python3
"""Ranks of an MPI job that throw, exit, die, hang or disagree: who is told what, and when.

Every run must end with a status that is not 0, well before its outer limit, and every survivor must
name a rank, the operation and the bucket within the deadline and one second. Where mpirun itself ends
the job because a process is gone, survivors may have no time to speak; they never may hang. With
--enable-recovery they always must; there mpirun's own status is not judged, since Open MPI 4.1 gives
0 after any death, even when the survivors abort.
"""

import argparse
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
DEADLINE = 2.0
START_AND_END = 12.0  # seconds for mpirun itself and for the survivors' farewell, generously
# Said about the culprit: calls that differ name two ranks, one of which it is.
NAMES_CULPRIT = {
    "throw": r"rank {r} failed: the disk is full",
    "hang": r"rank {r} (and \d+ more )?did not arrive|rank {r}\b.*fell silent",
    "stop": r"rank {r} (and \d+ more )?did not arrive|rank {r}\b.*fell silent",
}


def run(arguments, kind, rank, call, route, recovery):
    """One job; the findings, empty if all is well."""
    command = [arguments.mpiexec, *arguments.flags, *(arguments.recovery if recovery else []),
               arguments.np_flag, str(arguments.ranks), arguments.job,
               kind, str(rank), str(call), str(DEADLINE), route]
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    began = time.monotonic()
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           errors="replace", env=environment, start_new_session=True)
    try:
        text, _ = job.communicate(timeout=DEADLINE + START_AND_END)
        hung = False
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        text, _ = job.communicate()
        hung = True
    problems = []
    if hung:
        problems.append(f"hung for {time.monotonic() - began:.1f} s")
    elif job.returncode == 0 and not recovery:
        problems.append("the job succeeded")
    fault = re.search(r"fault at ([\d.]+)", text)
    if fault is None:
        problems.append("the fault never happened")
        return problems, text
    said = dict(
        (int(m[1]), (float(m[2]), m[3]))
        for m in re.finditer(r"rank (\d+) at ([\d.]+)(?: \(origin\))?: (.*)", text)
    )
    survivors = [r for r in range(arguments.ranks) if r != rank]
    must_speak = kind in LOUD or recovery
    for survivor in survivors:
        if survivor not in said:
            if must_speak:
                problems.append(f"rank {survivor} said nothing")
            continue
        when, words = said[survivor]
        late = when - float(fault[1]) - DEADLINE - 1
        if late > 0:
            problems.append(f"rank {survivor} spoke {late:.2f} s too late")
        # MPI itself may notice a death first; then its words are passed on.
        culprit = NAMES_CULPRIT.get(kind, r"rank {r}\b").format(r=rank)
        if not re.search(culprit, words) and "MPI reports" not in words:
            problems.append(f"rank {survivor} does not name rank {rank}: {words}")
        if not re.search(r"bucket", words) or not re.search(
                r"reduce_scatter|all_gather|all_reduce", words):
            problems.append(f"rank {survivor} names no operation or bucket: {words}")
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
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="*", default=LOUD + GONE)
    arguments = parser.parse_args()

    rng = random.Random(arguments.seed)
    failures = count = 0
    for kind in arguments.kinds:
        for number in range(arguments.runs):
            for recovery in [False, True] if arguments.recovery and kind in GONE else [False]:
                rank = rng.randrange(arguments.ranks)
                call = rng.randrange(1, 80)
                route = rng.choice(["window", "messages", "nodes"])
                problems, text = run(arguments, kind, rank, call, route, recovery)
                count += 1
                if not problems:
                    continue
                failures += 1
                print(f"{kind} on rank {rank} at call {call} by {route}, recovery {recovery}: "
                      + "; ".join(problems))
                print("\n".join("  | " + line for line in text.splitlines()[-15:]))
    print(f"{count} runs, {failures} failures")
    return 1 if failures or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
