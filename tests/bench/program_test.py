#!/usr/bin/env python3
"""Runs programs over zero/bench.hpp as a user does: options, output, exit status.

    program_test.py PROGRAM SCRATCH_FOLDER
"""

import json
import pathlib
import subprocess
import sys
import unittest

PROGRAM, SCRATCH = None, None
QUICK = ["--max", "4K", "--benchmark_repetitions=2", "--benchmark_min_time=0.0001"]
JSON = "--benchmark_format=json"
OPS = ["reduce_scatter", "all_gather", "all_to_all", "all_reduce", "broadcast"]


def run(kind, *arguments):
    return subprocess.run([PROGRAM, kind, *arguments], capture_output=True, text=True, check=False)


def repetitions(text):
    return [row for row in json.loads(text)["benchmarks"] if row["run_type"] == "iteration"]


class Programs(unittest.TestCase):
    def test_every_case_has_a_row(self):
        file = SCRATCH / "rows.json"
        done = run("threads", *QUICK, "--dtype", "all", "--place", "both", "--ranks", "1,2,3",
                   f"--benchmark_out={file}")
        self.assertEqual(done.returncode, 0, done.stderr)
        expected = [
            (op, dtype, place, size, ranks)
            for ranks in (1, 2, 3)
            for op in OPS
            for dtype in ("fp32", "bf16", "fp16")
            for place in ("out_of_place", "in_place")
            for size in (1024, 4096)
            if not (place == "in_place" and op == "all_to_all")
        ]
        names = ["collective/{}/{}/{}/bytes:{}/ranks:{}".format(*case) for case in expected]
        rows = repetitions(file.read_text())
        self.assertEqual([row["name"].split("/manual_time")[0] for row in rows],
                         [name for name in names for _ in range(2)])
        for row, (op, dtype, _, size, ranks) in zip(rows[::2], expected):
            self.assertEqual((row["wrong"], row["label"]), (0, "raw: copy"))
            element = 4 if dtype == "fp32" else 2
            blocks = 1 if op in ("all_reduce", "broadcast") else ranks
            count = size // element // blocks
            self.assertEqual(row["count"], count)
            algbw = count * element * blocks / row["real_time"] * 1e-3
            factor = {"all_reduce": 2 * (ranks - 1) / ranks, "broadcast": 1}.get(op, (ranks - 1) / ranks)
            self.assertAlmostEqual(row["algbw"], algbw, delta=1e-4 * algbw)
            self.assertAlmostEqual(row["busbw"], algbw * factor, delta=1e-4 * algbw)
            self.assertAlmostEqual(row["vs_raw"], row["algbw"] / row["raw_algbw"],
                                   delta=1e-4 * row["vs_raw"])
        table = [line for line in done.stdout.splitlines() if line.startswith("collective/")]
        self.assertEqual([line.split()[0] for line in table], names)

    def test_options_of_google_benchmark(self):
        everything = json.loads(run("self", *QUICK, JSON).stdout)
        self.assertIn("zero", everything["context"])
        self.assertEqual({row["aggregate_name"] for row in everything["benchmarks"]
                          if row["run_type"] == "aggregate"}, {"mean", "median", "stddev", "cv"})
        self.assertTrue(all("ranks:1" in row["name"] for row in everything["benchmarks"]))
        chosen = run("threads", *QUICK, "--benchmark_filter=all_to_all.*4096", JSON)
        self.assertEqual(len(repetitions(chosen.stdout)), 2)
        listed = run("threads", *QUICK, "--benchmark_list_tests=true").stdout.splitlines()
        self.assertEqual(len(listed), 10)
        default = run("self", "--max", "1K", "--benchmark_filter=broadcast", JSON)
        self.assertEqual(len(repetitions(default.stdout)), 10)
        self.assertEqual(run("self", "--benchmark_filter=nothing").returncode, 2)

    def test_wrong_results_are_counted(self):
        done = run("corrupts", *QUICK, "--place", "both", JSON)
        self.assertEqual(done.returncode, 1)
        self.assertEqual([row["wrong"] for row in repetitions(done.stdout)], [1] * 36)
        self.assertIn("some results are wrong", done.stderr)
        unchecked = run("corrupts", *QUICK, "--no-check", JSON)
        self.assertEqual(unchecked.returncode, 0)
        self.assertEqual(repetitions(unchecked.stdout)[0]["wrong"], 0)

    def test_a_failure_ends_the_run(self):
        for kind, words in (("throws", "rank 1 is out"), ("returns", "the launcher returned"),
                            ("ends", "rank 0 is out")):
            done = run(kind, *QUICK)
            self.assertEqual(done.returncode, 1, kind)
            errors = [line for line in done.stdout.splitlines() if "ERROR" in line]
            self.assertEqual(len(errors), 1, done.stdout)
            self.assertIn(words, errors[0])

    def test_mistakes_have_one_line(self):
        for kind, arguments, words in (
            ("threads", ["--frob"], "unknown option --frob"),
            ("threads", ["--min", "3X"], "'3X' is not a number"),
            ("threads", ["--min", "4K", "--max", "1K"], "--min 4096"),
            ("threads", ["--place", "beside"], "--place is out"),
            ("threads", ["--dtype", "int8"], "'int8' is none of"),
            ("threads", ["--ranks", "2,0"], "'0' is not a number"),
            ("threads", ["--benchmark_frob=2"], "--benchmark_frob"),
            ("self", ["--ranks", "2"], "unknown option --ranks"),
            ("rule", ["--max", "1K"], "unknown option --max"),
        ):
            done = run(kind, *arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertIn(words, done.stderr)

    def test_help_lists_the_options(self):
        for kind, option in (("threads", "--ranks"), ("self", "--late"), ("rule", "--elements")):
            done = run(kind, "--help")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn(option, done.stdout)
        self.assertNotIn("--ranks", run("self", "--help").stdout)

    def test_a_rule_has_a_row_per_type(self):
        done = run("rule", "--elements", "64K", "--benchmark_repetitions=2", JSON)
        rows = repetitions(done.stdout)
        self.assertEqual([row["name"].split("/iterations")[0] for row in rows],
                         [f"rule/AdamW/{dtype}" for dtype in ("fp32", "bf16", "fp16")
                          for _ in range(2)])
        for row in rows:
            gbs = 28 * 65536 / row["real_time"] * 1e-6
            self.assertAlmostEqual(row["GB/s"], gbs, delta=1e-3 * gbs)
            self.assertAlmostEqual(row["vs_raw"], row["GB/s"] / row["raw GB/s"], delta=1e-3)
        mixed = run("rule", "--elements=64K", "--benchmark_enable_random_interleaving=true", JSON)
        self.assertEqual((mixed.returncode, len(repetitions(mixed.stdout))), (0, 30))
        table = run("rule", "--elements=64K", "--benchmark_filter=bf16").stdout.splitlines()
        self.assertEqual([line.split()[0] for line in table if line.startswith("rule")],
                         ["rule/AdamW/bf16"])


if __name__ == "__main__":
    PROGRAM, SCRATCH = sys.argv[1], pathlib.Path(sys.argv[2])
    SCRATCH.mkdir(parents=True, exist_ok=True)
    unittest.main(argv=sys.argv[:1])
