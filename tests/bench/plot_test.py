#!/usr/bin/env python3
"""Holds bench/plot.py against JSON as programs write it.

    plot_test.py PLOT_PY SCRATCH_FOLDER
"""

import importlib.util
import json
import pathlib
import subprocess
import sys
import unittest

CAN_DRAW = importlib.util.find_spec("matplotlib") is not None
PLOT, SCRATCH = None, None


def run_of(op, size, us, ranks=2, **more):
    busbw = size / us * 1e-3 * (ranks - 1) / ranks
    return {"name": f"collective/{op}/fp32/out_of_place/bytes:{size}/ranks:{ranks}/manual_time",
            "run_type": "iteration", "real_time": us, "algbw": size / us * 1e-3, "busbw": busbw,
            "raw_algbw": 1.0, **more}


def plot(document, *arguments):
    path = SCRATCH / "document.json"
    path.write_text(json.dumps(document))
    return subprocess.run([sys.executable, PLOT, path, *arguments], capture_output=True, text=True,
                          check=False)


class Plot(unittest.TestCase):
    def test_a_line_is_found(self):
        # 5 us and 2 GB/s; of three repetitions the median counts, and no statistics of the file.
        runs = [run_of("all_gather", size, 5 + size / 2000 + off)
                for size in (1024, 65536, 1048576) for off in (0, -4, 40)]
        runs += [run_of("broadcast", 1024, 7, ranks=3)]
        runs += [run_of("all_gather", 1024, 1, run_type="aggregate")]
        done = plot({"benchmarks": runs}, "--fit")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [" ".join(line.split()) for line in done.stdout.splitlines()[1:]]
        self.assertEqual(lines[0],
                         "all_gather fp32, 2 ranks 5.00 us + bytes / 2 GB/s, error 0.00")
        self.assertEqual(lines[1], "broadcast fp32, 3 ranks 7.00 us + bytes / - GB/s, error 0.00")

    def test_a_table_has_medians_beside_the_baseline(self):
        runs = [run_of("all_gather", size, size / 2000 + off, label="raw: NCCL")
                for size in (2000, 4000000) for off in (0, -0.5, 40)]
        done = plot({"benchmarks": runs}, "--table")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
        self.assertEqual(lines, ["medians; busbw in GB/s; baseline: NCCL", "bytes us busbw baseline ratio",
                                 "all_gather fp32, 2 ranks 2,000 1.0 1.00 0.50 2.00",
                                 "all_gather fp32, 2 ranks 4,000,000 2000.0 1.00 0.50 2.00",
                                 "speed over the baseline's: from 2.00 (all_gather of 2,000 bytes) "
                                 "to 2.00 (all_gather of 4,000,000 bytes)"])

    @unittest.skipUnless(CAN_DRAW, "no matplotlib")
    def test_pictures(self):
        stage = {"configuration": "", "first_step": 0, "losses": [3.0, 2.0], "tokens_per_s": 10.0,
                 "bytes_per_rank": {"held": {"state": 4, "nothing": 0}}}
        stages = [dict(stage, stage=name) for name in ("Pos", "Pos+g")]
        chart = {"title": "a title", "y_label": "GB", "x_label": "", "log_x": False, "log_y": True,
                 "bars": [], "series": [{"title": "a curve", "points": [[1, 2], [2, 30]]}]}
        bars = dict(chart, title="bars", bars=list("abcdef"),
                    series=[{"title": "a layer", "points": [[0, i] for i in range(6)]}])
        for document, shown, hidden in (
            ({"benchmarks": [run_of("all_gather", size, 5) for size in (1024, 4096)]},
             ["all_gather fp32, 2 ranks", "busbw, GB/s"], []),
            ({"stages": stages, "bit_identical": True}, ["Pos+g", "state", "tokens/s"], ["nothing"]),
            ({"schema": "zero.plan/1", "charts": [chart, bars]},
             ["a title", "a curve", "a layer", "GB"], []),
        ):
            picture = SCRATCH / "picture.svg"
            picture.unlink(missing_ok=True)
            done = plot(document, picture)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            drawn = picture.read_text()
            for words in shown:
                self.assertIn(f">{words}<", drawn)
            for words in hidden:
                self.assertNotIn(words, drawn)

    def test_mistakes_have_words(self):
        for document, arguments, words in (
            ({}, [], "a PICTURE, --table or --fit"),
            ({}, ["x.svg", "--fit"], "a PICTURE, --table or --fit"),
            ({}, ["--table", "--fit"], "a PICTURE, --table or --fit"),
            ({}, ["x.gif"], ".svg, .png or .pdf"),
            ({}, ["x.svg"], "nothing to draw"),
            ([], ["x.svg"], "nothing to draw"),
            ({"benchmarks": [{"name": "update/adamw"}]}, ["--fit"], "no benchmark of a collective"),
            ({"benchmarks": [{"name": "update/adamw"}]}, ["--table"], "no benchmark of a collective"),
        ):
            done = plot(document, *arguments)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(words, done.stderr)
        missing = subprocess.run([sys.executable, PLOT, SCRATCH / "none", "--fit"],
                                 capture_output=True, text=True, check=False)
        self.assertIn("No such file", missing.stderr)
        self.assertEqual(len(missing.stderr.splitlines()), 1)


if __name__ == "__main__":
    PLOT, SCRATCH = sys.argv[1], pathlib.Path(sys.argv[2])
    SCRATCH.mkdir(parents=True, exist_ok=True)
    unittest.main(argv=sys.argv[:1])
