"""bench/cuda/rows.py with made-up programs: which rows it finds in what they print, and what it says where a goal is
missed, a program fails or is missing, or there is no GPU or no time."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROWS = pathlib.Path(__file__).resolve().parents[2] / "bench/cuda/rows.py"
KERNELS = """
819200 elements                            us       GB/s     / copy     / peak
copy fp32                                 3.9       1680      1.000      0.501
AdamW fp32, zero                         10.1       2271      1.351      0.677
row: exact norm fp32 over DeviceReduce, 819200 elements: 0.961 (goal 0.95)
row: AdamW fp32 over DeviceTransform, 819200 elements: 0.913 (goal 0.95) MISSED
"""
STEPS = """InProcessCuda           1 ranks  replicated     1.200 ms a step (longest 1.300),     0.000 ms exposed communication, \
    0.100 ms on the host
InProcessCuda           4 ranks  replicated     %s ms a step (longest 9.100),     0.700 ms exposed communication, \
    3.900 ms on the host
"""
COLLECTIVES = {"benchmarks": [
    {"aggregate_name": name, "real_time": time, "time_unit": "ns", "vs_raw": 0.5,
     "run_name": "collective/all_gather/bf16/out_of_place/bytes:4096/ranks:2/manual_time"}
    for name, time in (("mean", 9e9), ("median", 6000.0))]}
# Each prints another file the second time, if there is one.
PROGRAM = """#!/bin/sh
name=${0##*/}
[ -z "$NONE" ] || { echo "no GPU to measure on (no driver)" >&2; exit 77; }
if [ -e "$0.second" ] && [ -e "$0.called" ]; then cat "$0.second"; else cat "$0.first"; fi
: >"$0.called"
[ "$FAIL" != "$name" ] || { echo "out of memory" >&2; exit 3; }
"""


class SlowRows(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.saved = self.folder / "rows.json"
        (self.folder / "bench/cuda").mkdir(parents=True)
        for name, printed in (("update", KERNELS), ("in_process_collective", json.dumps(COLLECTIVES)),
                              ("in_process_step", STEPS % "3.800")):
            program = self.program(name)
            program.write_text(PROGRAM)
            program.chmod(0o755)
            pathlib.Path(f"{program}.first").write_text(printed)

    def program(self, name):
        return self.folder / f"bench/cuda/cuda_{name}_bench"

    def rows(self, *arguments, **environment):
        # -S: PyTorch is not looked for.
        return subprocess.run([sys.executable, "-S", ROWS, self.folder, "--save", self.saved, *arguments],
                              env={"PATH": "/usr/bin:/bin", **environment}, capture_output=True, text=True, check=False,
                              timeout=60)

    def test_a_missed_goal_is_shown_with_its_figure(self):
        done = self.rows()
        self.assertEqual((done.returncode, done.stderr), (1, ""))
        self.assertEqual(done.stdout.splitlines()[-1],
                         "4 rows, goals missed: 1; AdamW fp32 over DeviceTransform, 819200 elements (0.913, goal 0.95)")
        self.assertEqual([tuple(row.values()) for row in json.loads(self.saved.read_text())],
                         [("exact norm fp32 over DeviceReduce, 819200 elements", "0.961", "0.95", "met"),
                          ("AdamW fp32 over DeviceTransform, 819200 elements", "0.913", "0.95", "MISSED"),
                          ("all_gather, 4096 bytes, 2 ranks, over a copy", "6.0 us, copy 3.0", "2 copies + 5 us", "met"),
                          ("step of replicated, 4 ranks, two runs", "3.800 and 3.800 ms", "within 10 %", "met")])
        self.assertIn("the host took 3.900 ms to enqueue a step of 3.800 ms", done.stdout)
        self.assertIn("not beside PyTorch, which is not installed", done.stdout)
        self.assertIn(KERNELS, done.stdout)

    def test_all_goals_met(self):
        self.replace("update", KERNELS.replace("0.913", "0.950").replace(" MISSED", ""))
        done = self.rows()
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(done.stdout.splitlines()[-1], "4 rows, goals missed: 0")

    def replace(self, name, printed, which="first"):
        pathlib.Path(f"{self.program(name)}.{which}").write_text(printed)

    def test_two_runs_of_a_step_are_compared(self):
        self.replace("in_process_step", STEPS % "5.900", "second")
        done = self.rows()
        self.assertIn("step of replicated, 4 ranks, two runs (3.800 and 5.900 ms, goal within 10 %)", done.stdout)

    def test_collectives_may_take_two_copies_and_5_us(self):
        self.replace("in_process_collective", json.dumps(COLLECTIVES).replace("0.5", "0.01"))
        self.assertIn("(6.0 us, copy 0.1, goal 2 copies + 5 us)", self.rows().stdout)

    def test_a_program_that_fails_or_is_missing_hides_no_row(self):
        self.program("in_process_collective").unlink()
        done = self.rows(FAIL="cuda_update_bench")
        self.assertEqual((done.returncode, done.stderr), (1, ""))
        self.assertIn("cuda_update_bench ended with 3", done.stdout)
        self.assertIn("out of memory", done.stdout)
        self.assertIn("cuda_in_process_collective_bench has not been built", done.stdout)
        self.assertRegex(done.stdout.splitlines()[-1], "^3 rows, goals missed: 1; .*; cuda_update_bench failed$")

    def test_without_a_gpu_it_is_skipped_in_one_sentence(self):
        done = self.rows(NONE="1")
        self.assertEqual((done.returncode, done.stderr), (77, ""))
        self.assertEqual(done.stdout, "skipped: no GPU to measure on (no driver)\n")

    def test_without_time_there_is_no_row(self):
        done = self.rows("--seconds", "1")
        self.assertEqual(done.returncode, 1)
        for words in ("no time for cuda_update_bench", "not beside PyTorch, for which there is no time", "0 rows"):
            self.assertIn(words, done.stdout)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
