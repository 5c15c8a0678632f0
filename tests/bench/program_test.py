#!/usr/bin/env python3
"""Runs programs over zero/bench.hpp as a user does: options, output, exit status.

    program_test.py PROGRAM SCRATCH_FOLDER
"""

import json
import pathlib
import subprocess
import sys
import time
import unittest

PROGRAM, SCRATCH = None, None
QUICK = ["--benchmark_repetitions=2", "--benchmark_min_time=0.0001"]
JSON = ["--benchmark_format=json", "--benchmark_display_aggregates_only=false"]
OPS = ["reduce_scatter", "all_gather", "all_to_all", "all_reduce", "broadcast"]


def run(kind, *arguments):
    return subprocess.run([PROGRAM, kind, *arguments], capture_output=True, text=True, check=False)


def repetitions(text):
    return [row for row in json.loads(text)["benchmarks"] if row["run_type"] == "iteration"]


class Programs(unittest.TestCase):
    def test_every_case_has_a_row(self):
        file = SCRATCH / "rows.json"
        done = run("everything", *QUICK, f"--benchmark_out={file}")
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
            self.assertEqual((row.get("wrong"), row["label"]), (None, "raw: copy"))
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
        table = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("collective/")]
        self.assertEqual([line for line in table if line.endswith("_median")],
                         [name + "/manual_time_median" for name in names])
        self.assertEqual(len(table), 4 * len(names))  # statistics alone

    def test_options_of_google_benchmark(self):
        everything = json.loads(run("threads", *QUICK, *JSON).stdout)
        self.assertIn("zero", everything["context"])
        self.assertEqual({row["aggregate_name"] for row in everything["benchmarks"]
                          if row["run_type"] == "aggregate"}, {"mean", "median", "stddev", "cv"})
        chosen = run("threads", *QUICK, "--benchmark_filter=all_to_all.*4096", *JSON)
        self.assertEqual(len(repetitions(chosen.stdout)), 2)
        listed = run("threads", *QUICK, "--benchmark_list_tests=true").stdout.splitlines()
        self.assertEqual(len(listed), 10)
        default = run("threads", "--benchmark_filter=broadcast.*4096", *JSON)
        self.assertEqual(len(repetitions(default.stdout)), 10)
        self.assertIn("/min_time:0.020/", repetitions(default.stdout)[0]["name"])
        self.assertEqual(run("threads", "--benchmark_filter=nothing").returncode, 2)

    def test_a_group_that_is_there(self):
        done = run("self", *QUICK, *JSON, "--benchmark_filter=bytes:(1024|65536)/")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = repetitions(done.stdout)
        self.assertEqual(len(rows), 2 * 2 * len(OPS))
        self.assertTrue(all("ranks:1/" in row["name"] for row in rows))

    def test_wrong_results_are_counted(self):
        done = run("corrupts", *QUICK, *JSON)
        self.assertEqual(done.returncode, 1)
        self.assertEqual([row["wrong"] for row in repetitions(done.stdout)], [1] * 36)
        self.assertIn("some results are wrong", done.stderr)
        unchecked = run("unchecked", *QUICK, *JSON)
        self.assertEqual(unchecked.returncode, 0)
        self.assertNotIn("wrong", repetitions(unchecked.stdout)[0])

    def test_a_failure_ends_the_run(self):
        for kind, words in (("throws", "rank 1 is out"), ("returns", "the launcher returned"),
                            ("ends", "rank 0 is out")):
            done = run(kind, *QUICK)
            self.assertEqual((done.returncode, done.stdout), (1, ""), kind)
            self.assertIn(words, done.stderr.splitlines()[-1])

    def test_the_last_rank_is_late(self):
        begin = time.monotonic()
        done = run("late", "--benchmark_filter=broadcast.*1024", "--benchmark_repetitions=1",
                   "--benchmark_min_time=0", *JSON)
        # Once to warm up and once to measure, beside the baseline as often.
        self.assertGreater(time.monotonic() - begin, 4 * 0.05)
        self.assertEqual(done.returncode, 0)

    def test_mistakes_have_one_line(self):
        for kind, arguments, words in (
            ("threads", ["--max"], "--max"),
            ("threads", ["--benchmark_frob=2"], "--benchmark_frob"),
            ("self", ["--frob"], "--frob"),
            ("no_size", [], "no size is from smallest, 8192, to largest, 4096"),
            ("self_no_size", [], "no size"),
            ("rule", ["--elements"], "--elements"),
            ("nothing", [], "two threads need 2 parameters"),
        ):
            done = run(kind, *arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertIn(words, done.stderr)

    def test_help_returns(self):
        done = run("self_returns", "--help")
        self.assertEqual((done.returncode, done.stderr), (3, ""))
        self.assertIn("--benchmark_filter", done.stdout)

    def test_a_rule_has_a_row_per_type(self):
        done = run("rule", "--benchmark_repetitions=2", "--benchmark_min_time=0.0001", *JSON)
        rows = repetitions(done.stdout)
        self.assertEqual([row["name"].split("/manual_time")[0] for row in rows],
                         [f"rule/AdamW/{dtype}" for dtype in ("fp32", "fp64", "bf16", "fp16")
                          for _ in range(2)])
        for row in rows:
            gbs = (56 if "fp64" in row["name"] else 28) * 65536 / row["real_time"] * 1e-6
            self.assertAlmostEqual(row["GB/s"], gbs, delta=1e-3 * gbs)
            self.assertAlmostEqual(row["vs_raw"], row["GB/s"] / row["raw GB/s"], delta=1e-3)
        mixed = run("rule", "--benchmark_enable_random_interleaving=true", *JSON)
        self.assertEqual((mixed.returncode, len(repetitions(mixed.stdout))), (0, 40))
        table = run("rule", "--benchmark_filter=bf16").stdout.splitlines()
        self.assertEqual([line.split("/")[2] for line in table if line.startswith("rule")],
                         ["bf16"] * 4)


if __name__ == "__main__":
    PROGRAM, SCRATCH = sys.argv[1], pathlib.Path(sys.argv[2])
    SCRATCH.mkdir(parents=True, exist_ok=True)
    unittest.main(argv=sys.argv[:1])
