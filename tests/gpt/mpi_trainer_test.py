"""Runs train_gpt_mpi under mpirun as a user would, and holds its losses to those of threads.

usage: mpi_trainer_test.py TRAIN_GPT TRAIN_GPT_MPI MPIEXEC [FLAG...]
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

TRAIN_GPT = str(pathlib.Path(sys.argv[1]).resolve())
TRAIN_GPT_MPI = str(pathlib.Path(sys.argv[2]).resolve())
MPIRUN = sys.argv[3:]
SMALL = ["--layers", "1", "--heads", "2", "--channels", "16", "--context", "16", "--batch", "2"]
TEXT = "".join(f"line {i}: the quick brown fox jumps over the lazy dog\n" for i in range(200))
DIVIDED = ["--layers", "1", "--heads", "4", *SMALL[4:]]
STAGES = ("none", "pos", "pos+g", "pos+g+p")


class MpiTrainer(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.text = self.folder / "text"
        self.text.write_text(TEXT)
        self.model = SMALL

    def command(self, ranks, *arguments):
        text = [] if "--text" in arguments else ["--text", str(self.text)]
        return [*MPIRUN, "-n", str(ranks), TRAIN_GPT_MPI, *self.model, *text, *arguments]

    def job(self, ranks, *arguments):
        return subprocess.run(self.command(ranks, *arguments), capture_output=True, text=True,
                              errors="replace", timeout=120, cwd=self.folder)

    def losses(self, path):
        stages = json.loads(path.read_text())["stages"]
        for stage in stages:
            self.assertEqual(stage["bytes_per_rank"]["planned"], stage["bytes_per_rank"]["held"])
            traffic = stage["elements_per_step"]
            self.assertEqual(traffic["predicted"], traffic["counted"])
        return {stage["stage"]: stage["losses"] for stage in stages}

    def threads(self, *arguments):
        path = self.folder / "threads.json"
        subprocess.run([TRAIN_GPT, *self.model, "--text", str(self.text), "--json", str(path),
                        *arguments], check=True, capture_output=True, timeout=120)
        return self.losses(path)

    def processes(self, ranks, *arguments):
        path = self.folder / "processes.json"
        run = self.job(ranks, "--json", str(path), *arguments)
        self.assertEqual(run.returncode, 0, run.stderr)
        return run, self.losses(path)

    def same_losses(self, precision):
        common = ("--steps", "4", "--precision", precision)
        for stage in STAGES:
            with self.subTest(stage=stage):
                expected = self.threads("--ranks", "4", "--stage", stage, *common)
                _, found = self.processes(4, "--stage", stage, *common)
                self.assertEqual(len(next(iter(found.values()))), 4)
                self.assertEqual(found, expected)

    def test_losses_of_threads_in_fp32(self):
        self.same_losses("fp32")

    def test_losses_of_threads_in_bf16(self):
        self.same_losses("bf16")

    def test_comparison_with_accumulation(self):
        common = ("--compare", "--steps", "3", "--precision", "fp16", "--accumulate", "2")
        run, found = self.processes(3, *common)
        self.assertEqual(found, self.threads("--ranks", "3", *common))
        self.assertEqual(run.stdout.count("bit-identical under all stages"), 1)
        self.assertEqual(run.stdout.count("final loss"), 1)
        self.assertIn("3 ranks on 1 nodes; shared window: yes", run.stderr)

    def ends(self, name):
        stages = json.loads((self.folder / name).read_text())["stages"]
        return [(stage["losses"], stage["grad_norms"], stage["checksum"]) for stage in stages]

    def test_model_parallel_ranks(self):
        self.model = DIVIDED
        for ranks, runs, more in (
                (2, 5, ("--compare=configurations", "--accumulate", "2")),
                (2, 1, ("--stage", "none")),
                (4, 1, ("--stage", "pos+g+p", "--activations", "partitioned+host",
                        "--precision", "bf16"))):
            common = ("--model-parallel", str(ranks), "--steps", "3", *more)
            run, _ = self.processes(4, *common)
            self.threads("--ranks", "4", *common)
            found = self.ends("processes.json")
            self.assertEqual(found, self.ends("threads.json"))
            self.assertEqual(len(found), runs)
            self.assertIn("shared window: yes", run.stderr)

    def test_grids_that_cannot_be_are_refused(self):
        self.assertIn("2 heads", self.refused("--model-parallel", "3"))
        self.model = DIVIDED
        self.assertIn("does not divide 2 ranks", self.refused("--model-parallel", "4"))
        self.model = ["--heads", "3", "--channels", "6"]
        self.assertIn("vocabulary", self.refused("--model-parallel", "3", ranks=3))

    def refused(self, *arguments, ranks=2):
        run = self.job(ranks, *arguments)
        self.assertNotEqual(run.returncode, 0)
        said = [line for line in run.stderr.splitlines() if line.startswith("train_gpt_mpi: ")]
        self.assertEqual(len(said), 1, run.stderr)
        return said[0]

    def test_errors_get_one_line_and_end_the_job(self):
        self.assertIn("--stage", self.refused("--stage", "three"))
        self.assertIn("nowhere", self.refused("--text", "nowhere"))
        self.assertIn("--ranks", self.refused("--ranks", "2"))
        self.assertIn("no/such/folder", self.refused("--json", "no/such/folder/x", "--steps", "1"))

    def test_an_exhausted_window_says_what_to_do(self):
        # Later options count.
        run = subprocess.run([*MPIRUN, "-n", "2", TRAIN_GPT_MPI, "--text", str(self.text),
                              "--shared-mib", "1", "--steps", "1"],
                             capture_output=True, text=True, timeout=120)
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("raise Options::shared_bytes", run.stderr)

    def processes_of(self, mark):
        found = []
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0] == TRAIN_GPT_MPI.encode() and mark.encode() in words:
                found.append(int(entry.name))
        return found

    def running(self, mark, *arguments, ranks=2):
        process = subprocess.Popen(self.command(ranks, "--steps", mark, *arguments),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   start_new_session=True)
        self.addCleanup(process.kill)
        for line in process.stderr:
            if " step 1/" in line:
                break
        return process

    def ended(self, process, mark, interrupted=False):
        out, err = process.communicate(timeout=30)
        # MPICH's launcher now and then returns 0 after it was interrupted itself, although every
        # rank returned another status; what rank 0 said stands for it then.
        if not (interrupted and "\ninterrupted\n" in "\n" + err):
            self.assertNotEqual(process.returncode, 0)
        end = time.monotonic() + 5
        while self.processes_of(mark) and time.monotonic() < end:
            time.sleep(0.05)
        self.assertEqual(self.processes_of(mark), [])
        return out + err

    def require_checkpoints(self):
        run = subprocess.run([TRAIN_GPT, "--resume", "nowhere", "--text", str(self.text)],
                             capture_output=True, text=True, timeout=60)
        if "built without checkpoints" in run.stderr:
            self.skipTest(run.stderr.strip())

    def test_a_run_of_threads_is_resumed(self):
        self.require_checkpoints()
        saved = self.folder / "run"
        common = ("--steps", "6", "--precision", "bf16", "--resume", str(saved))
        losses = self.threads("--ranks", "3", *common, "--save", str(saved), "--save-every", "3")
        shutil.rmtree(max(saved.glob("*-step-*")))
        run, found = self.processes(3, *common, "--stage", "pos+g+p")
        self.assertIn("after step 3", run.stderr)
        self.assertEqual(found["Pos+g+p"], losses["Pos+g"][3:])

    def test_a_run_of_model_parallel_threads_is_resumed(self):
        self.require_checkpoints()
        self.model = DIVIDED
        saved = self.folder / "run"
        common = ("--steps", "6", "--resume", str(saved))
        four = ("--ranks", "4", "--model-parallel", "2")
        losses = self.threads(*four, *common, "--save", str(saved), "--save-every", "3")
        shutil.rmtree(max(saved.glob("*-step-*")))
        models = [self.folder / name for name in ("threads", "processes", "other")]
        self.threads(*four, *common, "--export", str(models[0]))
        again = self.folder / "again"
        run, found = self.processes(4, *four[2:], *common, "--stage", "pos+g+p", "--export",
                                    str(models[1]), "--save", str(again), "--async-save")
        self.assertIn("after step 3", run.stderr)
        self.assertEqual(found["Pos+g+p"], losses["Pos+g"][3:])
        # What processes saved, on another number of them.
        run, _ = self.processes(4, "--model-parallel", "4", "--accumulate", "2", "--steps", "6",
                                "--resume", str(again), "--export", str(models[2]))
        self.assertIn("has changed: model_parallel was 2\n", run.stderr)
        trained, resumed, other = (model.read_bytes() for model in models)
        self.assertEqual(resumed, trained)
        self.assertEqual(other, trained)

    def test_a_signal_to_one_rank_saves(self):
        self.require_checkpoints()
        common = ("--steps", "1000", "--save", str(self.folder / "run"), "--resume",
                  str(self.folder / "run"))
        whole = self.threads("--ranks", "2", "--steps", "1000")["Pos+g"]
        for number in (signal.SIGTERM, signal.SIGINT):
            path = self.folder / "interrupted.json"
            process = self.running("1000", *common[2:], "--async-save", "--json", str(path))
            os.kill(max(self.processes_of("1000")), number)
            _, err = process.communicate(timeout=30)
            self.assertEqual(process.returncode, 0, err)
            self.assertIn("\ninterrupted\n", "\n" + err)
            before = self.losses(path)["Pos+g"]
            self.assertLess(len(before), 1000)
            after = self.threads("--ranks", "2", *common)["Pos+g"]
            self.assertEqual(before + after, whole)
            shutil.rmtree(self.folder / "run")

    def test_interrupt_ends_all(self):
        process = self.running("10000001")
        self.assertEqual(len(self.processes_of("10000001")), 2)
        process.send_signal(signal.SIGINT)
        self.ended(process, "10000001", interrupted=True)

    def test_interrupt_of_one_rank_is_agreed_on(self):
        process = self.running("10000002")
        os.kill(max(self.processes_of("10000002")), signal.SIGINT)
        self.assertIn("interrupted", self.ended(process, "10000002"))

    def test_a_killed_rank_ends_all(self):
        process = self.running("10000003")
        os.kill(max(self.processes_of("10000003")), signal.SIGKILL)
        self.ended(process, "10000003")

    def test_a_killed_rank_of_a_model_ends_all(self):
        process = self.running("10000004", "--model-parallel", "2", ranks=4)
        os.kill(max(self.processes_of("10000004")), signal.SIGKILL)
        self.ended(process, "10000004")


if __name__ == "__main__":
    unittest.main(verbosity=2, argv=sys.argv[:1])
