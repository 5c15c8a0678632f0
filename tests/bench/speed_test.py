"""speed.py says which rows are slower, of builds whose programs say what they are told.

usage: speed_test.py SPEED_PY
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(SCRIPT.parent))
import speed  # noqa: E402

# Every call takes a little longer or shorter than the one before, the same in both builds.
PROGRAM = """#!{python} -SE
import json, pathlib, re, sys
TIMES = {times}
if "--benchmark_list_tests=true" in sys.argv:
    print("".join(name + "/iterations:15/manual_time\\n" for name in TIMES), end="")
    sys.exit()
calls = pathlib.Path(__file__ + ".calls")
call = int(calls.read_text()) if calls.exists() else 0
calls.write_text(str(call + 1))
def time(name):
    return TIMES[name] * (1 + call % 5 / 100)
if "--json" in sys.argv:
    stages = [dict(stage=name, tokens_per_s=1 / time(name)) for name in TIMES]
    pathlib.Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps(dict(stages=stages)))
else:
    wanted = re.compile([a for a in sys.argv if "filter" in a][0].split("=", 1)[1])
    rows = [dict(name=name, real_time=time(name)) for name in TIMES if wanted.search(name)]
    print(json.dumps(dict(benchmarks=rows)))
"""
STAGES = ["Replicated", "Pos", "Pos+g", "Pos+g+p"]


class Speed(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = pathlib.Path(scratch.name)

    def build(self, name, trainer=True, **times):
        programs = {f"bench/{program}": times.get(program, {})
                    for program in ("step_bench", "collective_bench", "update_bench")}
        if trainer:
            programs["examples/gpt/train_gpt"] = times.get("train_gpt", dict.fromkeys(STAGES, 1.0))
        for program, of in programs.items():
            path = self.root / name / program
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(PROGRAM.format(python=sys.executable, times=of))
            path.chmod(0o755)
        return self.root / name

    def compare(self, before, after, *arguments):
        written = self.root / "rows.json"
        done = subprocess.run([sys.executable, SCRIPT, before, after, "--json", written, *arguments],
                              capture_output=True, text=True)
        self.assertNotIn("Traceback", done.stderr)
        return done, {row["name"]: row for row in json.loads(written.read_text())}

    def test_what_is_slower(self):
        before = self.build("before", step_bench={"a+g": 10.0, "a+g+p": 20.0, "gone": 1.0})
        after = self.build("after", step_bench={"a+g": 10.5, "a+g+p": 20.2, "new": 1.0},
                           train_gpt=dict.fromkeys(STAGES, 1.0) | {"Pos+g": 1.25})
        done, rows = self.compare(before, after, "--pairs", "7")
        self.assertEqual(done.returncode, 1)
        self.assertEqual([name for name, row in rows.items() if row["slower"]],
                         ["a+g", "train_gpt pos+g, tokens/s"])
        self.assertIn("2 of 6 are slower by more than 2 %: a+g, train_gpt pos+g", done.stdout)
        self.assertAlmostEqual(rows["a+g+p"]["ratio"], 1.01)
        self.assertAlmostEqual(rows["train_gpt pos+g, tokens/s"]["ratio"], 1.25)
        self.assertAlmostEqual(rows["train_gpt pos+g, tokens/s"]["before"], 1 / 1.02, places=1)
        for name in ("gone", "new"):
            self.assertIn(f"{name}: not measured, only one build has it", done.stderr)

    def test_the_same_build_twice(self):
        build = self.build("build", trainer=False, update_bench={"row": 1.0, "other": 1.0})
        done, rows = self.compare(build, build, "--pairs", "8", "--only", "row")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("the trainer: not measured", done.stderr)
        self.assertEqual(list(rows), ["row"])

    def test_too_few_pairs_judge_nothing(self):
        done, rows = self.compare(self.build("before", trainer=False, step_bench={"row": 1.0}),
                                  self.build("after", trainer=False, step_bench={"row": 2.0}),
                                  "--pairs", "5")
        self.assertEqual((done.returncode, rows["row"]["bounds"]), (0, None))
        self.assertIn("too few", done.stdout)

    def test_bounds(self):
        # From tables of the sign test: at least 95 of 100.
        for count, (low, high) in {6: (1, 6), 8: (1, 8), 9: (2, 8), 15: (4, 12), 30: (10, 21)}.items():
            self.assertEqual(speed.bounds(list(range(count, 0, -1))), (low, high))
        self.assertIsNone(speed.bounds([1.0] * 5))


if __name__ == "__main__":
    unittest.main()
