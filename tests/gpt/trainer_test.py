"""Runs train_gpt as a user would: good runs, bad input, Ctrl-C.

usage: trainer_test.py TRAIN_GPT
"""

import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

TRAIN_GPT = str(pathlib.Path(sys.argv.pop(1)).resolve())
SMALL = ["--layers", "1", "--heads", "2", "--channels", "16", "--context", "16", "--batch", "2"]
TEXT = "".join(f"line {i}: the quick brown fox jumps over the lazy dog\n" for i in range(200))


class Trainer(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.text = self.folder / "text"
        self.text.write_text(TEXT)

    def run_trainer(self, *arguments):
        text = [] if "--text" in arguments else ["--text", str(self.text)]
        return subprocess.run(
            [TRAIN_GPT, *SMALL, *text, *arguments],
            capture_output=True,
            text=True,
            errors="replace",  # a young model does not write UTF-8
            timeout=240,
            cwd=self.folder,
        )

    def compare(self, *arguments):
        path = self.folder / "result.json"
        run = self.run_trainer("--compare", "--json", str(path), *arguments)
        self.assertEqual(run.returncode, 0, run.stderr)
        return run, json.loads(path.read_text())

    def check_comparison(self, result, steps):
        self.assertIs(result["bit_identical"], True)
        names = ["replicated", "Pos", "Pos+g", "Pos+g+p"]
        self.assertEqual([s["stage"] for s in result["stages"]], names)
        for stage in result["stages"]:
            self.assertEqual(len(stage["losses"]), steps)
            self.assertEqual(stage["losses"], result["stages"][0]["losses"])
            self.assertEqual(stage["bytes_per_rank"]["planned"], stage["bytes_per_rank"]["held"])
            traffic = stage["elements_per_step"]
            self.assertEqual(traffic["predicted"], traffic["counted"])
            self.assertGreater(stage["tokens_per_s"], 0)
        states = [s["bytes_per_rank"]["held"]["state"] for s in result["stages"]]
        self.assertGreater(states[0], states[1])
        self.assertGreater(states[0], states[3])

    def test_comparison_of_all_stages_in_fp32(self):
        run, result = self.compare("--ranks", "3", "--steps", "12", "--lr", "0.01")
        self.check_comparison(result, 12)
        self.assertIn("bit-identical under all stages", run.stdout)
        losses = result["stages"][0]["losses"]
        self.assertLess(losses[-1], losses[0] - 0.5)

    def test_comparison_in_bf16_with_accumulation(self):
        _, result = self.compare(
            "--ranks", "2", "--steps", "6", "--precision", "bf16", "--accumulate", "3"
        )
        self.check_comparison(result, 6)

    def test_comparison_in_fp16_with_overflows(self):
        _, result = self.compare("--ranks", "2", "--steps", "8", "--precision", "fp16")
        self.check_comparison(result, 8)
        self.assertEqual(result["stages"][0]["precision"], "fp16")

    def test_one_stage_on_one_rank_with_a_sample(self):
        run = self.run_trainer("--ranks", "1", "--stage", "pos+g+p", "--steps", "3", "--sample", "20")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("--- sample (Pos+g+p)", run.stdout)
        self.assertIn("step 3/3", run.stderr)
        self.assertIn("grad norm", run.stderr)

    def test_seed_decides(self):
        losses = []
        for seed in ("1", "1", "2"):
            path = self.folder / "seed.json"
            run = self.run_trainer("--steps", "2", "--seed", seed, "--json", str(path))
            self.assertEqual(run.returncode, 0, run.stderr)
            losses.append(json.loads(path.read_text())["stages"][0]["losses"])
        self.assertEqual(losses[0], losses[1])
        self.assertNotEqual(losses[0], losses[2])

    def refused(self, *arguments):
        run = self.run_trainer(*arguments)
        self.assertNotEqual(run.returncode, 0)
        self.assertEqual(run.stdout, "")
        self.assertEqual(len(run.stderr.splitlines()), 1, run.stderr)
        self.assertTrue(run.stderr.startswith("train_gpt: "), run.stderr)
        return run.stderr

    def test_bad_input_gets_one_line(self):
        self.assertIn("nowhere", self.refused("--text", "nowhere"))
        empty = self.folder / "empty"
        empty.touch()
        self.assertIn("empty", self.refused("--text", str(empty)))
        short = self.folder / "short"
        short.write_text("short")
        self.assertIn("context", self.refused("--text", str(short)))
        self.assertIn("heads", self.refused("--heads", "3"))
        self.assertIn("--ranks", self.refused("--ranks", "0"))
        self.assertIn("--ranks", self.refused("--ranks", "1000000"))
        self.assertIn("--stage", self.refused("--stage", "three"))
        self.assertIn("--lr", self.refused("--lr", "-1"))
        self.assertIn("json", self.refused_late("--json", "no/such/folder/x.json", "--steps", "1"))

    def refused_late(self, *arguments):
        run = self.run_trainer(*arguments)
        self.assertNotEqual(run.returncode, 0)
        return run.stderr

    def test_no_default_text_outside_the_repository(self):
        run = subprocess.run(
            [TRAIN_GPT, "--steps", "1"], capture_output=True, text=True, timeout=60, cwd=self.folder
        )
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("--text", run.stderr)

    def test_help(self):
        run = subprocess.run([TRAIN_GPT, "--help"], capture_output=True, text=True, timeout=60)
        self.assertEqual(run.returncode, 0)
        self.assertIn("--accumulate", run.stdout)

    def test_interrupt_ends_cleanly(self):
        process = subprocess.Popen(
            [TRAIN_GPT, *SMALL, "--text", str(self.text), "--steps", "10000000", "--compare"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.assertIn("interrupted", err)
        self.assertIn("final loss", out)


if __name__ == "__main__":
    unittest.main(verbosity=2)
