"""Runs train_gpt_cuda as a user would, and holds it against train_gpt.

usage: cuda_trainer_test.py TRAIN_GPT TRAIN_GPT_CUDA
"""

import pathlib
import signal
import sys
import unittest

from trainer_programs import SMALL, TrainerTest

TRAIN_GPT, TRAIN_GPT_CUDA = (str(pathlib.Path(program).resolve()) for program in (sys.argv.pop(1), sys.argv.pop(1)))
STEPS = ("--steps", "10", "--lr", "0.01")


class CudaTrainer(TrainerTest):
    name = "train_gpt_cuda"

    def program(self):
        return [self.where]

    def setUp(self):
        super().setUp()
        self.where = TRAIN_GPT_CUDA

    def on_host(self, *arguments):
        self.where = TRAIN_GPT
        try:
            return self.stages(*arguments)[1]
        finally:
            self.where = TRAIN_GPT_CUDA

    def stages(self, *arguments):
        run, result = self.result(*arguments)
        return run, result["stages"]

    def assert_near(self, found, expected, tolerance):
        self.assertEqual(len(found), len(expected))
        for one, other in zip(found, expected):
            self.assertLess(abs(one - other), tolerance * abs(other), (found, expected))

    def test_losses_are_the_hosts_and_bits_those_of_all_stages(self):
        for options, tolerance in (
                (("--ranks", "3"), 1e-5),
                (("--ranks", "2", "--accumulate", "2", "--precision", "bf16"), 1e-2)):
            with self.subTest(options=options):
                run, result = self.result("--compare", *STEPS, *options)
                self.assertIn("bit-identical under all stages", run.stdout)
                self.assertIs(result["bit_identical"], True)
                (host,) = self.on_host(*STEPS, *options)
                self.assertLess(host["losses"][-1], host["losses"][0] - 0.5)
                first = result["stages"][0]
                self.assert_near(first["losses"], host["losses"], tolerance)
                self.assert_near(first["grad_norms"], host["grad_norms"], 30 * tolerance)
                for stage in result["stages"]:
                    held = stage["bytes_per_rank"]["held"]
                    self.assertEqual(stage["bytes_per_rank"]["planned"], held)
                    self.assertEqual(stage["elements_per_step"]["predicted"], stage["elements_per_step"]["counted"])
                    self.assertEqual(len(stage["step_seconds"]), 9)
                    self.assertEqual(len(stage["model_seconds"]), 9)
                self.check_memory(result["stages"])
                again = self.stages("--stage", "pos", *STEPS, *options)[1][0]
                for kind in ("losses", "grad_norms", "checksum"):
                    self.assertEqual(again[kind], first[kind])

    def check_memory(self, stages):
        """What the device has given is what is held and computed with, but for a word of each rank and
        the alignment of arrays."""
        for stage in stages:
            own = sum(stage["bytes_per_rank"]["held"].values()) + stage["working_bytes_per_rank"] + 256
            self.assertGreaterEqual(stage["device_bytes"], stage["ranks"] * own)
            self.assertLess(stage["device_bytes"], stage["ranks"] * (own + 40 * 4096))

    def test_a_gpu_for_each_rank(self):
        for precision in ("fp32", "bf16"):
            common = (*STEPS, "--ranks", "2", "--precision", precision, "--stage", "pos+g+p")
            shared = self.stages(*common)[1][0]
            apart = self.stages(*common, "--nccl")[1][0]
            for kind in ("losses", "grad_norms", "checksum"):
                self.assertEqual(apart[kind], shared[kind])

    def test_checkpoints_go_from_the_host_to_a_device_and_back(self):
        self.require_checkpoints(TRAIN_GPT)
        common = (*STEPS, "--ranks", "2")
        (whole,) = self.on_host(*common, "--export", "host.safetensors", "--save", "run")
        # Nothing is left to train: what was loaded on the device is what the host has saved.
        self.stages(*common, "--resume", "run", "--export", "device.safetensors")
        exported = [(self.folder / f"{where}.safetensors").read_bytes() for where in ("host", "device")]
        self.assertEqual(*exported)
        on = ("--steps", "14", "--lr", "0.01", "--ranks", "2", "--resume")
        (host,) = self.on_host(*on, "run")
        for stage in ("pos", "pos+g+p"):
            _, (device,) = self.stages(*on, "run", "--stage", stage, "--save", f"device-{stage}")
            self.assertEqual(device["first_step"], 10)
            self.assert_near(device["losses"], host["losses"], 1e-5)
            (back,) = self.on_host("--steps", "16", *on[2:], f"device-{stage}")
            self.assertEqual(back["first_step"], 14)
            self.assertLess(back["losses"][-1], whole["losses"][0] - 0.5)

    def test_a_run_that_goes_on_does_what_one_that_never_stopped_does(self):
        self.require_checkpoints(TRAIN_GPT)
        common = ("--ranks", "2", "--precision", "bf16", "--stage", "pos+g")
        _, (whole,) = self.stages("--steps", "10", *common)
        _, (half,) = self.stages("--steps", "10", *common, "--save", "run", "--save-every", "5", "--async-save")
        self.assertEqual(half["losses"], whole["losses"])
        last = sorted((self.folder / "run").glob("*-step-*"))[-1]
        (last / "manifest.json").unlink()
        _, (rest,) = self.stages("--steps", "10", *common, "--resume", "run")
        self.assertEqual(rest["first_step"], 5)
        self.assertEqual(rest["losses"], whole["losses"][5:])
        self.assertEqual(rest["checksum"], whole["checksum"])

    def test_a_signal_saves(self):
        self.require_checkpoints(TRAIN_GPT)
        process = self.started("--ranks", "2", "--steps", "10000", "--save", "run")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, err)
        self.assertIn("saved run/", err)

    def test_sample(self):
        # A context that is never full, and one that is.
        for count in (3, 20):
            common = ("--steps", "10", "--ranks", "1", "--seed", "3", "--sample", count)
            run = self.succeeds(*common)
            self.where = TRAIN_GPT
            self.assertEqual(self.sample_of(self.succeeds(*common)), self.sample_of(run))
            self.where = TRAIN_GPT_CUDA

    @staticmethod
    def sample_of(run):
        return run.stdout.split("--- sample")[1]

    def test_a_budget_is_of_the_devices_memory(self):
        _, (stage,) = self.stages("--ranks", "1", "--steps", "2", "--budget", "64MiB")
        need = stage["needed_bytes_per_rank"]
        self.succeeds("--ranks", "1", "--steps", "1", "--budget", need)
        self.assertIn("no room for", self.failing("--ranks", "1", "--steps", "1", "--budget", need - 4096))

    def test_what_a_device_cannot_do_is_refused_in_one_line(self):
        for words, *arguments in (
                ("--model-parallel", "--ranks", "2", "--model-parallel", "2"),
                ("--activations", "--activations", "recompute"),
                ("fp16", "--precision", "fp16"),
                ("multiples of 8", "--context", "12"),
                ("multiples of 8", "--heads", "4"),
                ("a GPU for each of 64 ranks", "--ranks", "64", "--nccl"),
                ("--ranks", "--ranks", "65")):
            self.assertIn(words, self.refused(*arguments), arguments)

    def test_a_base_is_tuned_on_the_host(self):
        self.require_checkpoints(TRAIN_GPT)
        self.on_host("--steps", "1", "--export", "base")
        refused = self.refused("--base", self.folder / "base", "--lora", "4")
        self.assertIn("--lora is of train_gpt, which adds adapters", refused)


if __name__ == "__main__":
    unittest.main(verbosity=2)
