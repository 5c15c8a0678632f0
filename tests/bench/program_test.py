#!/usr/bin/env python3
"""Runs programs over zero/bench.hpp as a user does: options, output, exit status.

    program_test.py PROGRAM SCRATCH_FOLDER
"""

import csv
import json
import os
import pathlib
import subprocess
import sys
import unittest

PROGRAM, SCRATCH = None, None
QUICK = ["--max", "4K", "--rounds", "2", "--iters", "2"]
OPS = ["reduce_scatter", "all_gather", "all_to_all", "all_reduce", "broadcast"]
KEYS = ["op", "dtype", "ranks", "in_place", "bytes", "count", "us", "best_us", "algbw", "busbw",
        "raw_us", "raw_algbw", "vs_raw", "best_vs_raw", "wrong"]


def run(kind, *arguments, path=None):
    environment = dict(os.environ) if path is None else dict(os.environ, PATH=path)
    return subprocess.run([PROGRAM, kind, *arguments], capture_output=True, text=True,
                          env=environment, check=False)


class Programs(unittest.TestCase):
    def test_every_case_has_a_row_in_every_format(self):
        files = [str(SCRATCH / name) for name in ("rows.json", "rows.csv", "google.json")]
        done = run("threads", *QUICK, "--dtype", "all", "--place", "both", "--ranks", "1,2,3",
                   "--json", files[0], "--csv", files[1], f"--benchmark_out={files[2]}")
        self.assertEqual(done.returncode, 0, done.stderr)
        expected = [
            (op, dtype, ranks, place)
            for ranks in (1, 2, 3)
            for op in OPS
            for dtype in ("fp32", "bf16", "fp16")
            for place in (False, True)
            if not (place and op == "all_to_all")
        ]
        written = json.loads(pathlib.Path(files[0]).read_text())
        self.assertEqual(written["schema"], "zero.bench.collectives/1")
        self.assertEqual(written["raw"], "copy")
        rows = written["rows"]
        kinds = [(row["op"], row["dtype"], row["ranks"], row["in_place"]) for row in rows]
        self.assertEqual(kinds, [kind for kind in expected for _ in range(2)])
        for row in rows:
            self.assertEqual(list(row), KEYS)
            self.assertEqual(row["wrong"], 0)
            factor = {"all_reduce": 2, "broadcast": 0}.get(row["op"], 1)
            factor = factor * (row["ranks"] - 1) / row["ranks"] if factor else 1
            algbw = row["bytes"] / row["us"] * 1e-3
            self.assertAlmostEqual(row["algbw"], algbw, delta=1e-4 * algbw)
            self.assertAlmostEqual(row["busbw"], algbw * factor, delta=1e-4 * algbw)
            element = 4 if row["dtype"] == "fp32" else 2
            blocks = 1 if row["op"] in ("all_reduce", "broadcast") else row["ranks"]
            self.assertEqual(row["bytes"], row["count"] * element * blocks)
        fits = [(fit["op"], fit["dtype"], fit["ranks"], fit["in_place"]) for fit in written["fits"]]
        self.assertEqual(fits, expected)
        for fit in written["fits"]:
            self.assertEqual((fit["rows"], fit["min_bytes"] <= 1024, fit["max_bytes"] <= 4096),
                             (2, True, True))
            self.assertGreaterEqual(fit["latency_us"], 0)
        with open(files[1], newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
        self.assertEqual([line["op"] for line in lines], [row["op"] for row in rows])
        self.assertEqual([float(line["us"]) for line in lines], [row["us"] for row in rows])
        google = json.loads(pathlib.Path(files[2]).read_text())["benchmarks"]
        self.assertEqual([one["us"] for one in google], [row["us"] for row in rows])
        table = [line for line in done.stdout.splitlines() if not line.startswith("#")]
        self.assertEqual(len(table), len(rows))
        self.assertEqual([line.split()[0] for line in table], [row["op"] for row in rows])

    def test_standard_output_is_one_document(self):
        written = json.loads(run("self", *QUICK, "--json", "-").stdout)
        self.assertEqual({row["ranks"] for row in written["rows"]}, {1})
        self.assertEqual(len(run("self", *QUICK, "--csv=-").stdout.splitlines()), 11)
        google = run("threads", *QUICK, "--op", "broadcast", "--benchmark_format=json")
        names = [one["name"] for one in json.loads(google.stdout)["benchmarks"]]
        self.assertEqual(names[0].split("/iterations")[0],
                         "collective/broadcast/fp32/out_of_place/bytes:1024/ranks:2")
        chosen = run("threads", *QUICK, "--benchmark_filter=all_to_all.*4096", "--csv", "-")
        self.assertEqual(len(chosen.stdout.splitlines()), 2)
        listed = run("threads", *QUICK, "--benchmark_list_tests=true").stdout.splitlines()
        self.assertEqual(len(listed), 10)

    def test_wrong_results_are_counted(self):
        done = run("corrupts", *QUICK, "--place", "both", "--json", "-")
        self.assertEqual(done.returncode, 1)
        self.assertEqual([row["wrong"] for row in json.loads(done.stdout)["rows"]], [1] * 18)
        self.assertIn("some results are wrong", done.stderr)
        unchecked = run("corrupts", *QUICK, "--no-check", "--json", "-")
        self.assertEqual(unchecked.returncode, 0)
        self.assertIsNone(json.loads(unchecked.stdout)["rows"][0]["wrong"])

    def test_a_failure_ends_the_run(self):
        for kind, words in (("throws", "rank 1 is out"), ("returns", "the launcher returned")):
            done = run(kind, *QUICK)
            self.assertEqual(done.returncode, 1, kind)
            self.assertIn(words, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    def test_mistakes_have_one_line(self):
        for kind, arguments, words in (
            ("threads", ["--frob"], "unknown option --frob"),
            ("threads", ["--min", "3X"], "'3X' is not a number"),
            ("threads", ["--min", "4K", "--max", "1K"], "--min 4096"),
            ("threads", ["--op", "gather"], "'gather' is none of"),
            ("threads", ["--op", "all_to_all", "--place", "in"], "all_to_all has no"),
            ("threads", ["--place", "beside"], "--place is out"),
            ("threads", ["--ranks", "2,0"], "'0' is not a number"),
            ("threads", ["--plot", "x.pdf"], ".svg or .png"),
            ("threads", ["--benchmark_repetitions=2"], "--rounds"),
            ("self", ["--ranks", "2"], "unknown option --ranks"),
            ("rule", ["--max", "1K"], "unknown option --max"),
            ("rule", ["--benchmark_filter=x"], "no use for"),
        ):
            done = run(kind, *arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertIn(words, done.stderr)
        unwritable = run("self", *QUICK, "--json", "/no/such/folder/x.json")
        self.assertEqual(unwritable.returncode, 1)
        self.assertIn("cannot write /no/such/folder/x.json", unwritable.stderr)

    def test_help_lists_the_options(self):
        for kind, option in (("threads", "--ranks"), ("self", "--json"), ("rule", "--elements")):
            done = run(kind, "--help")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn(option, done.stdout)
        self.assertNotIn("--ranks", run("self", "--help").stdout)

    def test_a_triad_is_beside_each_row(self):
        done = run("threads", *QUICK, "--op=all_gather", "--triad", "--json", "-")
        for row in json.loads(done.stdout)["rows"]:
            traffic = 2 * row["ranks"] * row["bytes"] / row["best_us"] * 1e-3
            ratio = traffic / row["triad"]
            self.assertAlmostEqual(row["traffic_over_triad"], ratio, delta=1e-3 * ratio)

    def test_a_plot_is_a_script_where_gnuplot_is_not(self):
        picture = SCRATCH / "plot.svg"
        done = run("threads", *QUICK, "--op", "broadcast,all_gather", "--plot", str(picture),
                   path=str(SCRATCH))
        self.assertEqual(done.returncode, 0)
        self.assertIn("gnuplot is not installed", done.stderr)
        script = pathlib.Path(f"{picture}.gnuplot").read_text()
        self.assertIn(f"set output '{picture}'", script)
        self.assertEqual(script.count("\nEOD\n"), 2)
        self.assertEqual(script.count("with linespoints"), 2)

    def test_a_rule_has_a_row_per_type(self):
        done = run("rule", "--elements", "64K", "--rounds", "2", "--json")
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([row["dtype"] for row in rows], ["fp32", "bf16", "fp16"])
        for row in rows:
            self.assertEqual(row["rule"], "AdamW")
            gbs = 28 * 65536 / row["ms"] * 1e-6
            self.assertAlmostEqual(row["gbs"], gbs, delta=1e-3 * gbs)
            self.assertGreater(row["vs_raw"], 0)
        table = run("rule", "--elements=64K", "--rounds=1", "--dtype", "bf16").stdout.splitlines()
        self.assertEqual(len(table), 3)


if __name__ == "__main__":
    PROGRAM, SCRATCH = sys.argv[1], pathlib.Path(sys.argv[2])
    SCRATCH.mkdir(parents=True, exist_ok=True)
    unittest.main(argv=sys.argv[:1])
