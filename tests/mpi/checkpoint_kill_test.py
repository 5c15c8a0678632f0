"""Kills a job that saves all the time, and starts it again: it has to go on from its last checkpoint.

Processes are killed all at once or one of them, at random moments and around the commit.
"""

import argparse
import contextlib
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time

PATIENCE = 60.0
AROUND_COMMIT = ["create", "rename", "renamed"]


class Job:
    """One life of the job. Collects what it says."""

    def __init__(self, arguments, directory, mode, kill_at):
        command = [arguments.mpiexec, *arguments.flags, arguments.np_flag, str(arguments.ranks),
                   arguments.job, directory, mode, kill_at]
        environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1",
                           OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        self.lines = []
        self.changed = threading.Condition()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True, errors="replace", env=environment,
                                        start_new_session=True)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line.rstrip())
                self.changed.notify_all()

    def numbers(self, what):
        return [int(match[1]) for line in list(self.lines)
                for match in re.finditer(rf"{what} (\d+)", line)]

    def wait(self, ready):
        """Until `ready()`, which is asked whenever something is said; False if that never comes."""
        end = time.monotonic() + PATIENCE
        with self.changed:
            while not ready():
                left = end - time.monotonic()
                if left < 0 or not self.reader.is_alive():
                    return ready()
                self.changed.wait(min(left, 0.2))
        return True

    def end(self):
        """SIGKILL for what is left of it; returns when nothing is."""
        processes = self.numbers("process")
        for process in [*processes, self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.wait()
        end = time.monotonic() + PATIENCE
        while any(map(lives, processes)) and time.monotonic() < end:
            time.sleep(0.001)
        self.reader.join()


def lives(process):
    with contextlib.suppress(OSError):
        with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", required=True)
    parser.add_argument("--mpiexec", required=True)
    parser.add_argument("--np-flag", default="-n")
    parser.add_argument("--flags", type=shlex.split, default=[])
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()

    rng = random.Random(arguments.seed)
    failures = saves = 0
    resumed = []
    with tempfile.TemporaryDirectory() as directory:
        last = 0
        # One life more than kills: the last one shows that the last kill did no harm.
        for life in range(arguments.kills + 1):
            mode = rng.choice(["save", "save_async"])
            around = life % 5 == 4
            kill_at = rng.choice(AROUND_COMMIT) if around else "never"
            job = Job(arguments, directory + "/run", mode, kill_at)
            problems = []
            if not job.wait(lambda: len(job.numbers("process")) == arguments.ranks
                            and job.numbers("resumed")):
                problems.append("it did not come up")
            elif job.numbers("resumed")[0] < last:
                problems.append(f"it went back to step {job.numbers('resumed')[0]} from {last}")
            else:
                resumed += job.numbers("resumed")
            if not problems:
                # A process of the job kills itself; or we do, at any moment of a few saves.
                if around:
                    job.wait(lambda: not job.reader.is_alive())
                else:
                    count = rng.randrange(0, 4)
                    if not job.wait(lambda: len(job.numbers("saved")) >= count):
                        problems.append("it stopped saving")
                    time.sleep(rng.random() * 0.05)
                    if rng.random() < 0.3:
                        os.kill(rng.choice(job.numbers("process")), signal.SIGKILL)
                        time.sleep(rng.random() * 0.02)
            job.end()
            problems += [line for line in job.lines if "another state is loaded" in line]
            saved = job.numbers("saved")
            saves += len(saved)
            last = max([last, *saved])
            if problems:
                failures += 1
                print(f"life {life}, {mode}, {kill_at}: " + "; ".join(problems))
                print("\n".join("  | " + line for line in job.lines[-15:]))
    print(f"{arguments.kills} kills, {saves} saves, resumed at steps up to {max(resumed, default=0)}, "
          f"{failures} failures")
    return 1 if failures or not resumed else 0


if __name__ == "__main__":
    sys.exit(main())
