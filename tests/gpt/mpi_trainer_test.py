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
import time
import unittest

from trainer_programs import SMALL, TrainerTest

TRAIN_GPT = str(pathlib.Path(sys.argv[1]).resolve())
TRAIN_GPT_MPI = str(pathlib.Path(sys.argv[2]).resolve())
MPIRUN = sys.argv[3:]
DIVIDED = SMALL | {"--heads": 4}
STAGES = ("replicated", "pos", "pos+g", "pos+g+p")


class MpiTrainer(TrainerTest):
    name = "train_gpt_mpi"
    launched = True
    ranks = 2

    def program(self):
        return [*MPIRUN, "-n", self.ranks, TRAIN_GPT_MPI]

    def losses(self, path):
        stages = json.loads(path.read_text())["stages"]
        for stage in stages:
            self.assertEqual(stage["bytes_per_rank"]["planned"], stage["bytes_per_rank"]["held"])
            traffic = stage["elements_per_step"]
            self.assertEqual(traffic["predicted"], traffic["counted"])
        return {stage["stage"]: stage["losses"] for stage in stages}

    def threads(self, *arguments):
        path = self.folder / "threads.json"
        words = self.command("--json", path, *arguments)
        subprocess.run([TRAIN_GPT, *words[len(self.program()):]], check=True, capture_output=True,
                       timeout=120)
        return self.losses(path)

    def processes(self, ranks, *arguments):
        self.ranks = ranks
        path = self.folder / "processes.json"
        run = self.succeeds("--json", path, *arguments)
        return run, self.losses(path)

    def test_losses_of_threads(self):
        for precision in ("fp32", "bf16"):
            common = ("--steps", "4", "--precision", precision)
            for stage in STAGES:
                with self.subTest(stage=stage, precision=precision):
                    expected = self.threads("--ranks", "4", "--stage", stage, *common)
                    _, found = self.processes(4, "--stage", stage, *common)
                    self.assertEqual(len(next(iter(found.values()))), 4)
                    self.assertEqual(found, expected)

    def test_comparison_with_accumulation(self):
        common = ("--compare", "--steps", "3", "--precision", "fp16", "--accumulate", "2")
        run, found = self.processes(3, *common)
        self.assertEqual(found, self.threads("--ranks", "3", *common))
        self.assertEqual(run.stdout.count("bit-identical under all stages"), 1)
        self.assertEqual(run.stdout.count("final loss"), 1)
        self.assertIn("3 ranks on 1 node; shared window: yes", run.stderr)

    def ends(self, name):
        stages = json.loads((self.folder / name).read_text())["stages"]
        return [(stage["losses"], stage["grad_norms"], stage["checksum"]) for stage in stages]

    def test_model_parallel_ranks(self):
        self.model = DIVIDED
        for ranks, runs, more in (
                (2, 5, ("--compare=configurations", "--accumulate", "2")),
                (2, 1, ("--stage", "replicated")),
                (4, 1, ("--stage", "pos+g+p", "--activations", "partitioned+host",
                        "--precision", "bf16"))):
            common = ("--model-parallel", str(ranks), "--steps", "3", *more)
            run, _ = self.processes(4, *common)
            self.threads("--ranks", "4", *common)
            found = self.ends("processes.json")
            self.assertEqual(found, self.ends("threads.json"))
            self.assertEqual(len(found), runs)
            self.assertIn("shared window: yes", run.stderr)

    def test_adapters_of_threads(self):
        self.require_checkpoints(TRAIN_GPT)
        self.threads("--steps", "3", "--export", self.folder / "base")
        common = ("--steps", "3", "--base", self.folder / "base", "--lora", "4", "--compare")
        _, found = self.processes(3, *common)
        self.assertEqual(found, self.threads("--ranks", "3", *common))
        self.assertEqual(self.ends("processes.json"), self.ends("threads.json"))

    def test_errors_get_one_line_and_end_the_job(self):
        for words, *arguments in (
                ("2 heads", "--model-parallel", "3"),
                ("does not divide 2 ranks", "--heads", "4", "--model-parallel", "4"),
                ("--stage", "--stage", "three"),
                ("nowhere", "--text", "nowhere"),
                ("--ranks", "--ranks", "2"),
                ("no/such/folder", "--json", "no/such/folder/x", "--steps", "1")):
            self.assertIn(words, self.refused(*arguments), arguments)
        self.ranks = 3
        self.assertIn("vocabulary", self.refused("--heads", "3", "--channels", "6",
                                                 "--model-parallel", "3"))

    def test_an_exhausted_window_says_what_to_do(self):
        self.model = {}
        self.assertIn("raise Options::shared_bytes",
                      self.failing("--shared-mib", "1", "--steps", "1"))

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

    def running(self, mark, *arguments):
        return self.started("--steps", mark, *arguments)

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

    def test_a_run_of_threads_is_resumed(self):
        self.require_checkpoints(TRAIN_GPT)
        saved = self.folder / "run"
        common = ("--steps", "6", "--precision", "bf16", "--resume", saved)
        losses = self.threads("--ranks", "3", *common, "--save", saved, "--save-every", "3")
        shutil.rmtree(max(saved.glob("*-step-*")))
        run, found = self.processes(3, *common, "--stage", "pos+g+p")
        self.assertIn("after step 3", run.stderr)
        self.assertEqual(found["Pos+g+p"], losses["Pos+g"][3:])

    def test_a_run_of_model_parallel_threads_is_resumed(self):
        self.require_checkpoints(TRAIN_GPT)
        self.model = DIVIDED
        saved = self.folder / "run"
        common = ("--steps", "6", "--resume", saved)
        four = ("--ranks", "4", "--model-parallel", "2")
        losses = self.threads(*four, *common, "--save", saved, "--save-every", "3")
        shutil.rmtree(max(saved.glob("*-step-*")))
        models = [self.folder / name for name in ("threads", "processes", "other")]
        self.threads(*four, *common, "--export", models[0])
        again = self.folder / "again"
        run, found = self.processes(4, *four[2:], *common, "--stage", "pos+g+p", "--export",
                                    models[1], "--save", again, "--async-save")
        self.assertIn("after step 3", run.stderr)
        self.assertEqual(found["Pos+g+p"], losses["Pos+g"][3:])
        # What processes saved, on another number of them.
        run, _ = self.processes(4, "--model-parallel", "4", "--accumulate", "2", "--steps", "6",
                                "--resume", again, "--export", models[2])
        self.assertIn("has changed: model_parallel was 2\n", run.stderr)
        trained, resumed, other = (model.read_bytes() for model in models)
        self.assertEqual(resumed, trained)
        self.assertEqual(other, trained)

    def test_a_signal_to_one_rank_saves(self):
        self.require_checkpoints(TRAIN_GPT)
        saved = self.folder / "run"
        common = ("--steps", "1000", "--save", saved, "--resume", saved)
        whole = self.threads("--ranks", "2", "--steps", "1000")["Pos+g"]
        for number in (signal.SIGTERM, signal.SIGINT):
            path = self.folder / "interrupted.json"
            process = self.running("1000", *common[2:], "--async-save", "--json", path)
            os.kill(max(self.processes_of("1000")), number)
            _, err = process.communicate(timeout=30)
            self.assertEqual(process.returncode, 0, err)
            self.assertIn("\ninterrupted\n", "\n" + err)
            before = self.losses(path)["Pos+g"]
            self.assertLess(len(before), 1000)
            after = self.threads("--ranks", "2", *common)["Pos+g"]
            self.assertEqual(before + after, whole)
            shutil.rmtree(saved)

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
        for mark, ranks, *more in (("10000003", 2), ("10000004", 4, "--model-parallel", "2")):
            self.ranks = ranks
            process = self.running(mark, *more)
            os.kill(max(self.processes_of(mark)), signal.SIGKILL)
            self.ended(process, mark)


if __name__ == "__main__":
    unittest.main(verbosity=2, argv=sys.argv[:1])
