"""Runs train_gpt as a user would: good runs, bad input, Ctrl-C.

usage: trainer_test.py TRAIN_GPT
"""

import importlib.util
import json
import math
import operator
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import time
import unittest

from trainer_programs import DIVIDED, SMALL, TrainerTest

TRAIN_GPT = str(pathlib.Path(sys.argv.pop(1)).resolve())
THREE_LAYERS = SMALL | {"--layers": 3}


class Program(TrainerTest):
    def program(self):
        return [TRAIN_GPT]

    def stages(self, *arguments):
        run, result = self.result(*arguments)
        return run, result["stages"]

    def stage(self, *arguments):
        return self.stages("--steps", "8", *arguments)[1][0]

    def losses(self, *arguments):
        return self.stage(*arguments)["losses"]

    def assert_near(self, found, expected, tolerance):
        self.assertEqual(len(found), len(expected))
        for one, other in zip(found, expected):
            self.assertTrue(math.isclose(one, other, rel_tol=tolerance), (found, expected))


class Trainer(Program):
    def compare(self, *arguments):
        return self.result("--compare", *arguments)

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
            self.assertEqual(len(stage["step_seconds"]), steps - 1)
            self.assertTrue(all(seconds > 0 for seconds in stage["step_seconds"]))
        states = [s["bytes_per_rank"]["held"]["state"] for s in result["stages"]]
        self.assertGreater(states[0], states[1])
        self.assertGreater(states[0], states[3])

    def test_a_comparison_is_drawn(self):
        # Not imported: what this process holds counts for programs whose memory is looked at.
        if importlib.util.find_spec("matplotlib") is None:
            self.skipTest("no matplotlib")
        files = [str(self.folder / name) for name in ("run.json", "run.svg")]
        _, result = self.compare("--ranks", "2", "--steps", "3")
        pathlib.Path(files[0]).write_text(json.dumps(result))
        plot = pathlib.Path(__file__).parents[2] / "bench" / "plot.py"
        subprocess.run([sys.executable, plot, *files], check=True)
        drawn = pathlib.Path(files[1]).read_text()
        for words in ("replicated", "Pos+g+p", "gradients", "tokens/s"):
            self.assertIn(words, drawn)

    def test_comparison_of_all_stages(self):
        for steps, options in (
                (12, ("--precision", "fp32", "--ranks", "3", "--lr", "0.01")),
                (6, ("--precision", "bf16", "--ranks", "2", "--accumulate", "3")),
                (6, ("--precision", "bf16-rest16", "--ranks", "3")),
                (6, ("--precision", "bf16-rest8", "--ranks", "3")),
                (6, ("--precision", "bf16-sr", "--ranks", "3")),
                (6, ("--precision", "bf16-rest8", "--rule", "adamw8bit", "--ranks", "3")),
                (6, ("--precision", "bf16-rest16", "--rule", "lamb", "--ranks", "3")),
                (8, ("--precision", "fp16", "--ranks", "2")),  # with overflows
                (8, ("--precision", "fp16", "--ranks", "4", "--model-parallel", "2"))):
            with self.subTest(options=options):
                run, result = self.compare("--steps", steps, *options)
                self.check_comparison(result, steps)
                self.assertIn("bit-identical under all stages", run.stdout)
                speed = [stage["tokens_per_s"] for stage in result["stages"]]
                self.assertEqual("Pos+g+p is slower than Pos+g here, because" in run.stdout,
                                 speed[3] < speed[2])
                first = result["stages"][0]
                name = options[1].replace("-sr", "-stochastic")
                self.assertEqual(first["precision"].replace(" ", "-"), name)
                if options[1] == "fp32":
                    self.assertLess(first["losses"][-1], first["losses"][0] - 0.5)

    def test_bytes_of_a_parameter(self):
        self.model = SMALL | {"--channels": 64, "--batch": 1}
        for precision, rule, least in (("fp32", "AdamW", 16), ("bf16", "AdamW", 16),
                                       ("bf16-rest16", "AdamW", 14), ("bf16-rest8", "AdamW", 13),
                                       ("bf16-sr", "AdamW", 8), ("bf16-rest16", "LAMB", 14),
                                       ("bf16-rest16", "AdamW8bit", 8.0625), ("bf16-rest8", "AdamW8bit", 7.0625)):
            run, (stage,) = self.stages("--steps", "1", "--ranks", "1", "--precision", precision,
                                        "--rule", rule.lower())
            self.assertEqual(stage["rule"], rule)
            # A unit is padded to a multiple of 512 elements; biases and norms have no states in 8 bits.
            self.assertLessEqual(least, stage["bytes_per_parameter"])
            self.assertLess(stage["bytes_per_parameter"], least * (1.05 if "8bit" in rule else 1.02))
            (row,) = (line for line in run.stdout.splitlines() if "per parameter" in line)
            self.assertEqual(row.split()[-1], f"{stage['bytes_per_parameter']:.2f}")

    def test_model_parallel_ranks(self):
        # Of ASCII, the last ranks' parts of the vocabulary have none.
        self.text.write_bytes(bytes(i * i // 7 % 256 for i in range(9000)))
        self.model = DIVIDED
        # A norm that is always clipped to, and that has to be of all parts.
        common = ("--clip", "0.1", "--accumulate", "2")
        whole = self.stage("--ranks", "2", *common)
        for ranks in (2, 4):
            grid = ("--ranks", 2 * ranks, "--model-parallel", ranks, *common)
            _, result = self.compare("--steps", "8", *grid)
            self.check_comparison(result, 8)
            several = result["stages"][0]
            for kind in ("losses", "grad_norms"):
                self.assertEqual(len(several[kind]), 8)
                # The same two models' batches, added in another order. 1e-5 is what
                # examples/gpt/README.md says.
                self.assert_near(several[kind], whole[kind], 1e-5)
            for stage in ("pos", "pos+g+p"):
                for kept in ("recompute", "partitioned", "partitioned+host"):
                    again = self.losses(*grid, "--stage", stage, "--activations", kept)
                    self.assertEqual(again, several["losses"], kept)

    def test_what_is_held_of_inputs_of_blocks(self):
        # Of 3 blocks, 2 sequences of 16 tokens and 16 channels.
        self.model = THREE_LAYERS
        whole = 3 * 2 * 16 * 16 * 4
        for kept, here, slower in (("recompute", whole, 0), ("partitioned", whole // 2, 0),
                                   ("partitioned+host", 0, whole // 2)):
            run = self.succeeds("--ranks", "2", "--model-parallel", "2", "--steps", "1",
                                "--activations", kept)
            self.assertIn(f"activations: {here} bytes a rank, {slower} in slower memory", run.stderr)

    def test_activations_computed_again_on_one_rank(self):
        self.model = THREE_LAYERS
        kept = self.losses("--ranks", "1")
        for again in ("recompute", "partitioned+host"):
            self.assertEqual(self.losses("--ranks", "1", "--activations", again), kept)

    def test_comparison_of_the_papers_configurations(self):
        self.model = THREE_LAYERS
        grid = ("--ranks", "4", "--model-parallel", "2", "--steps", "8")
        run, result = self.result("--compare=configurations", *grid)
        self.assertIn("bit-identical under all configurations", run.stdout)
        self.assertIs(result["bit_identical"], True)
        found = result["stages"]
        inputs = 3 * 2 * 16 * 16 * 4  # of blocks, in bytes
        table = [("C1", "Pos", inputs, 0), ("C2", "Pos", inputs // 2, 0), ("C3", "Pos+g", inputs, 0),
                 ("C4", "Pos+g", inputs // 2, 0), ("C5", "Pos+g", 0, inputs // 2)]
        for one, (name, stage, here, slower) in zip(found, table, strict=True):
            self.assertEqual((one["configuration"], one["stage"]), (name, stage))
            held = one["bytes_per_rank"]["held"]
            self.assertEqual(one["bytes_per_rank"]["planned"], held)
            self.assertEqual(held["activations"], here)
            self.assertEqual(one["slower_bytes_per_rank"], slower)
            self.assertGreater(one["tokens_per_s"], 0)
            self.assertGreater(one["working_bytes_per_rank"], 2 * 32 * 128 * 4)  # scores, gradients
            # All of it is in one reservation, which begins every array at a page.
            own = sum(held.values()) + one["working_bytes_per_rank"]
            self.assertGreaterEqual(one["needed_bytes_per_rank"], own)
            self.assertLess(one["needed_bytes_per_rank"], own + 100 * 4096)
        self.assertEqual(found[0]["losses"], self.losses(*grid[:4], "--stage", "replicated"))
        # That much is enough, a page less is not.
        need = found[4]["needed_bytes_per_rank"]
        c5 = (*grid, "--stage", "pos+g", "--activations", "partitioned+host", "--budget")
        self.succeeds(*c5, need)
        self.assertIn("no room for", self.failing(*c5, need - 4096))

    def test_largest_model_in_a_budget(self):
        self.model = {"--heads": 2, "--channels": 16, "--context": 32, "--batch": 12}
        grid = ("--ranks", "4", "--model-parallel", "2", "--budget", "2MiB")
        run, found = self.result("--capacity", *grid)
        # Section 10.5 of the paper.
        self.assertIn("largest model: C1 < C3 < C2 < C4 < C5\n", run.stdout)
        self.assertEqual([one["configuration"] for one in found], ["C1", "C2", "C3", "C4", "C5"])
        for one in found:
            self.assertLessEqual(one["bytes_per_rank"], 2 << 20)
            blocks = 12 * 16 * 16 + 13 * 16  # elements of one
            self.assertEqual(one["parameters"], (256 + 32 + 2) * 16 + one["blocks"] * blocks)
        again = (*grid, "--steps", "1", "--stage", "pos+g", "--activations", "partitioned",
                 "--layers")
        self.succeeds(*again, found[3]["blocks"])
        self.assertIn("no room for", self.failing(*again, found[3]["blocks"] + 1))
        # Not even one block fits.
        run = self.succeeds("--capacity", *grid[:4], "--budget", "64KiB")
        self.assertIn("largest model: C1 = C2 = C3 = C4 = C5\n", run.stdout)

    def peak_mib(self, *arguments):
        process = subprocess.Popen(self.command("--ranks", "1", "--steps", "1", *arguments),
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, process.returncode, usage = os.wait4(process.pid, 0)
        self.assertEqual(process.returncode, 0)
        return usage.ru_maxrss / 1024

    def test_activations_computed_again_need_not_be_held(self):
        self.model = {"--layers": 8, "--channels": 32, "--context": 128, "--batch": 16}
        # Of 8 blocks, 2048 tokens and 4 heads: scores alone are 4 MiB a block.
        self.assertGreater(self.peak_mib() - self.peak_mib("--activations", "recompute"), 28)

    def test_sample(self):
        for ranks in (("--ranks", "1"), ("--ranks", "2", "--model-parallel", "2")):
            run = self.succeeds(*ranks, "--stage", "pos+g+p", "--steps", "3", "--sample", "20")
            self.assertIn("--- sample (Pos+g+p)", run.stdout)
            self.assertIn("step 3/3", run.stderr)
            self.assertIn("grad norm", run.stderr)

    def test_the_old_name_of_a_stage(self):
        run, (old,) = self.stages("--stage", "none", "--steps", "2")
        said = [line for line in run.stderr.splitlines() if "none" in line]
        self.assertEqual(said, ["--stage none is called --stage replicated now; zero 0.4 will refuse none"])
        run, (new,) = self.stages("--stage", "replicated", "--steps", "2")
        self.assertNotIn("none", run.stderr)
        for kind in ("stage", "losses", "checksum"):
            self.assertEqual(old[kind], new[kind])

    def test_seed_decides(self):
        one, again, other = (self.losses("--seed", seed) for seed in ("1", "1", "2"))
        self.assertEqual(one, again)
        self.assertNotEqual(one, other)

    def test_what_cannot_be_is_refused_in_one_line(self):
        empty, short = self.folder / "empty", self.folder / "short"
        empty.touch()
        short.write_text("short")
        two = ("--model-parallel", "2")
        six = ("--heads", "3", "--channels", "6")
        for words, *arguments in (
                ("nowhere", "--text", "nowhere"),
                ("empty", "--text", empty),
                ("context", "--text", short),
                ("heads", "--heads", "3"),
                ("--ranks", "--ranks", "0"),
                ("--ranks", "--ranks", "1000000"),
                ("--stage", "--stage", "three"),
                ("--lr", "--lr", "-1"),
                ("--rule", "--rule", "adamax"),
                ("--rule adamw with --precision bf16-rest16 and --accumulate is not compiled; there are: adamw with "
                 "fp32, adamw with bf16, adamw with fp16",
                 "--precision", "bf16-rest16", "--accumulate", "2"),
                ("2 heads", "--model-parallel", "3"),
                ("3 ranks", *two, "--ranks", "3"),
                ("vocabulary", *six, "--ranks", "3", "--model-parallel", "3"),
                ("--activations", "--activations", "none"),
                ("--model-parallel", "--activations", "partitioned"),
                ("--model-parallel", "--compare=configurations"),
                ("--model-parallel", "--capacity", "--budget", "1MiB"),
                ("--budget", "--capacity", *two),
                ("--compare", "--compare=all", *two),
                ("--budget", "--budget", "much")):
            self.assertIn(words, self.refused(*arguments), arguments)
        self.assertIn("json", self.failing("--json", "no/such/folder/x.json", "--steps", "1"))

    def test_no_default_text_outside_the_repository(self):
        run = subprocess.run([TRAIN_GPT, "--steps", "1"], capture_output=True, text=True,
                             timeout=60, cwd=self.folder)
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("--text", run.stderr)

    def test_help(self):
        self.assertIn("--accumulate", self.succeeds("--help").stdout)

    def test_interrupt_without_a_place_to_save(self):
        # Several times: whether a signal comes between two ranks' questions is left to chance.
        grids = [("--ranks", "4", "--model-parallel", "2")] * 5
        for attempt, options in enumerate([("--compare",), *grids]):
            process = self.started("--steps", "10000000", *options, after_a_step=False)
            time.sleep(0.4 + 0.03 * attempt if attempt else 2)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 130, err)
            self.assertIn("interrupted", err)
            self.assertTrue(attempt or "final loss" in out, out)


class Checkpoints(Program):
    """What a run that goes on does is what one that never stopped does."""

    def setUp(self):
        super().setUp()
        self.require_checkpoints(TRAIN_GPT)

    def checkpoints(self):
        return sorted((self.folder / "run").glob("*-step-*/manifest.json"))

    def save_half(self, *arguments):
        """Takes 10 steps, loses the checkpoint of the last and keeps that of the fifth."""
        run, stages = self.stages("--save", "run", "--save-every", "5", "--steps", "10", *arguments)
        self.assertEqual(run.stderr.count("saved run/"), 2)
        self.assertEqual(len(self.checkpoints()), 2)
        shutil.rmtree(self.checkpoints()[-1].parent)
        return stages[0]["losses"]

    def test_same_losses_under_all_stages(self):
        for model, options in (
                (SMALL, ("--ranks", "3")),
                # The first steps overflow: updates are fewer than steps; the scale has a history.
                (SMALL, ("--ranks", "2", "--precision", "fp16")),
                (SMALL, ("--ranks", "3", "--precision", "bf16-rest16")),
                # Random bits go on where they were.
                (SMALL, ("--ranks", "3", "--precision", "bf16-rest8")),
                (SMALL, ("--ranks", "3", "--precision", "bf16-sr")),
                (SMALL | {"--channels": 64}, ("--ranks", "3", "--precision", "bf16-rest8", "--rule", "adamw8bit")),
                (DIVIDED, ("--ranks", "4", "--model-parallel", "2")),
                (DIVIDED, ("--ranks", "4", "--model-parallel", "4", "--precision", "fp16"))):
            with self.subTest(options=options):
                shutil.rmtree(self.folder / "run", ignore_errors=True)
                self.model = model
                losses = self.save_half("--stage", "pos+g", *options)
                files = list(self.checkpoints()[0].parent.glob("rank-*"))
                self.assertEqual(len(files), int(options[1]))
                run, stages = self.stages("--resume", "run", "--steps", "10", "--compare", *options)
                self.assertIn("after step 5", run.stderr)
                self.assertIn("bit-identical under all stages", run.stdout)
                self.assertEqual(len(stages), 4)
                for stage in stages:
                    self.assertEqual(stage["first_step"], 5)
                    self.assertEqual(stage["losses"], losses[5:], stage["stage"])
                # A run that saves nothing has the same losses.
                _, alone = self.stages("--stage", "pos", "--steps", "10", *options)
                self.assertEqual(alone[0]["losses"], losses)

    def test_same_losses_in_bf16_with_accumulation_saved_on_the_way(self):
        common = ("--ranks", "2", "--precision", "bf16", "--accumulate", "2")
        losses = self.save_half("--async-save", *common)
        for stage in ("replicated", "pos+g+p"):
            _, stages = self.stages("--resume", "run", "--steps", "10", "--stage", stage, *common)
            self.assertEqual(stages[0]["losses"], losses[5:])

    def test_another_number_of_ranks(self):
        losses = self.save_half("--ranks", "4")
        for ranks, accumulate in (("2", "2"), ("1", "4")):
            _, stages = self.stages("--resume", "run", "--steps", "10", "--ranks", ranks,
                                    "--accumulate", accumulate)
            # The same data, added in another order. 1e-6 is what examples/gpt/README.md says.
            self.assert_near(stages[0]["losses"], losses[5:], 1e-6)

    def test_keep(self):
        run, _ = self.stages("--save", "run", "--save-every", "1", "--keep", "2", "--steps", "5")
        self.assertEqual(run.stderr.count("saved run/"), 5)
        self.assertEqual(len(self.checkpoints()), 2)

    def test_export(self):
        names = [self.folder / name for name in ("trained", "resumed")]
        self.stages("--save", "run", "--steps", "4", "--ranks", "3", "--export", names[0])
        run, stages = self.stages("--resume", "run", "--steps", "4", "--ranks", "2", "--stage",
                                  "pos+g+p", "--export", names[1])
        self.assertEqual(stages[0]["losses"], [])
        self.assertIn(f"exported {names[1]}", run.stderr)
        trained, resumed = (name.read_bytes() for name in names)
        self.assertEqual(trained, resumed)
        size = int.from_bytes(trained[:8], "little")
        header = json.loads(trained[8:8 + size])
        self.assertEqual(header["wte"]["dtype"], "F32")
        self.assertEqual(header["wte"]["shape"], [256, 16])
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name[0] != "_"]
        self.assertEqual(8 + size + max(ends), len(trained))

    def test_another_number_of_model_parallel_ranks(self):
        self.model = DIVIDED
        model = {ranks: ("--ranks", 2 * ranks, "--model-parallel", ranks, "--stage", stage)
                 for ranks, stage in ((1, "pos+g+p"), (2, "pos+g"), (4, "pos"))}
        for saved in model:
            shutil.rmtree(self.folder / "run", ignore_errors=True)
            losses = self.save_half(*model[saved])
            exported = []
            for ranks in model:
                run, stages = self.stages("--resume", "run", "--steps", "10", *model[ranks])
                found = stages[0]["losses"]
                # As in one run: 1e-5 is what examples/gpt/README.md says.
                self.assert_near(found, losses[5:], 1e-5)
                said = f"has changed: model_parallel was {saved}\n"
                self.assertEqual(said in run.stderr, ranks != saved, run.stderr)
                if ranks == saved:
                    self.assertEqual(found, losses[5:])
                # Not a step more: the model that was saved, from ranks of other numbers, too.
                name = self.folder / f"model-{ranks}"
                self.stages("--resume", "run", "--steps", "5", "--ranks", ranks,
                            *model[ranks][2:], "--export", name)
                exported.append(name.read_bytes())
            self.assertEqual(exported, exported[:1] * 3)

    def interrupted(self, number, *arguments, common=("--ranks", "2")):
        common = ["--steps", "300", *common]
        whole = self.stages(*common)[1][0]["losses"]
        path = self.folder / "interrupted.json"
        process = self.started(*common, "--save", "run", "--resume", "run", "--json", path,
                               *arguments)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, err)
        self.assertIn("saved run/", err)
        self.assertIn("interrupted", err)
        before = json.loads(path.read_text())["stages"][0]["losses"]
        self.assertLess(len(before), 300)
        _, after = self.stages("--save", "run", "--resume", "run", *common)
        self.assertEqual(after[0]["first_step"], len(before))
        self.assertEqual(before + after[0]["losses"], whole)

    def test_sigterm_saves(self):
        self.interrupted(signal.SIGTERM)

    def test_sigterm_saves_a_model_of_several_ranks(self):
        self.interrupted(signal.SIGTERM, common=("--ranks", "4", "--model-parallel", "2"))

    def test_sigint_saves_after_what_is_under_way(self):
        self.interrupted(signal.SIGINT, "--async-save", "--save-every", "1", "--keep", "3")
        self.assertLessEqual(len(self.checkpoints()), 4)

    def test_what_changed_is_said(self):
        self.save_half("--ranks", "2")
        run, _ = self.stages("--resume", "run", "--ranks", "2", "--steps", "8", "--seed", "7")
        self.assertIn("has changed: seed was 1, steps was 10\n", run.stderr)

    def test_bad_input_gets_one_line(self):
        self.save_half("--ranks", "2")
        file = self.folder / "file"
        file.touch()
        for words, *arguments in (
                ("there is no checkpoint in nowhere", "--resume", "nowhere"),
                ("--save", "--save-every", "2"),
                ("--save", "--keep", "2"),
                ("--save", "--async-save"),
                ("--compare", "--save", "x", "--compare"),
                ("--compare", "--export", "x", "--compare"),
                ("no/such", "--export", "no/such/x"),
                (str(file), "--save", file),
                ("'wte'", "--resume", "run", "--channels", "4"),
                ("2 heads", "--resume", "run", "--heads", "4")):
            self.assertIn(words, self.refused(*arguments), arguments)


class FineTuning(Program):
    """A base that is trained here once and frozen in 8 bits, and adapters that learn another text."""

    exported = None
    trained = None

    def setUp(self):
        super().setUp()
        self.require_checkpoints(TRAIN_GPT)
        self.model = SMALL | {"--layers": 2, "--heads": 4, "--channels": 40}
        self.base = self.folder / "base.safetensors"
        if not FineTuning.exported:
            FineTuning.trained = self.losses_of("--ranks", "2", "--steps", "300", "--lr", "0.01",
                                                "--export", self.base)
            FineTuning.exported = self.base.read_bytes()
        self.base.write_bytes(FineTuning.exported)
        self.lora = ("--base", self.base, "--lora", "8")

    def losses_of(self, *arguments):
        return self.stages(*arguments)[1][0]["losses"]

    def other_text(self):
        self.text.write_text("".join(f"0x{i * i:08x} 0x{i * 7919:08x}\n" for i in range(400)))

    def compared(self, *arguments):
        run, result = self.result("--compare", *self.lora, *arguments)
        self.assertIn("bit-identical under all stages", run.stdout)
        self.assertIs(result["bit_identical"], True)
        for stage in result["stages"]:
            self.assertEqual(stage["losses"], result["stages"][0]["losses"])
            self.assertEqual(stage["bytes_per_rank"]["planned"], stage["bytes_per_rank"]["held"])
            traffic = stage["elements_per_step"]
            self.assertEqual(traffic["predicted"], traffic["counted"])
        return run, result["stages"]

    def test_same_bits_under_all_stages(self):
        for ranks in ("1", "2", "3"):
            with self.subTest(ranks=ranks):
                self.compared("--ranks", ranks, "--steps", "6")
        for options in (("--precision", "bf16", "--ranks", "2", "--accumulate", "2"),
                        ("--precision", "fp16", "--ranks", "3", "--activations", "recompute")):
            with self.subTest(options=options):
                self.compared(*options, "--steps", "6")

    def test_the_base_is_where_it_was_and_adapters_learn(self):
        # The same text: the base in 8 bits is nearly as good as it was.
        base = sum(self.trained[-20:]) / 20
        same = self.losses_of("--ranks", "2", "--steps", "20", "--lr", "1e-8", *self.lora)
        self.assertLess(abs(sum(same) / 20 - base), 0.25)
        self.assertLess(sum(same) / 20, self.trained[0] - 1)
        self.other_text()
        losses = self.losses_of("--ranks", "2", "--steps", "120", "--lr", "0.01", *self.lora)
        self.assertLess(sum(losses[-10:]) / 10, losses[0] - 1)
        # They are all that is trained: without a rate nothing changes.
        still = self.losses_of("--ranks", "2", "--steps", "120", "--lr", "1e-8", *self.lora)
        self.assertGreater(sum(still[-10:]) / 10, losses[0] - 0.5)

    def test_what_each_rank_holds(self):
        run, stages = self.compared("--ranks", "3", "--steps", "2")
        matrices = [(120, 40), (40, 40), (160, 40), (40, 160)]
        adapters = 2 * sum(8 * (rows + columns) for rows, columns in matrices)
        coded = 2 * sum(rows * (columns + 4 * ((columns + 31) // 32)) for rows, columns in matrices)
        # Embeddings; norms and biases of blocks; the last norm.
        plain = (256 + 16) * 40 + 2 * (4 * 40 + 120 + 40 + 160 + 40) + 2 * 40
        whole, shared = (stages[i]["bytes_per_rank"]["held"] for i in (0, 3))

        def check(expected, found):
            """Arrays are padded: to a share of 512 elements for each rank."""
            self.assertLessEqual(expected, found)
            self.assertLess(found, expected + 65536)

        bases = [stage["base_bytes_per_rank"] for stage in stages]
        check(2 * 4 * adapters, whole["state"])
        check(coded + 4 * plain, bases[0])
        check(4 * adapters, whole["parameters"] - bases[0])
        # Shared out under the last stage alone, to equal shares.
        self.assertEqual(bases[:3], [bases[0]] * 3)
        check(coded + 4 * plain, 3 * bases[3])
        check(4 * adapters, 3 * (shared["parameters"] - bases[3]))
        # The table says so.
        held = run.stdout.split("bytes per rank, held")[1].splitlines()
        for title, figures in (("of the frozen base", bases),
                               ("of the adapters", [stage["bytes_per_rank"]["held"]["parameters"] - base
                                                    for stage, base in zip(stages, bases)])):
            (row,) = (line for line in held if title in line)
            self.assertEqual(row.split(title)[1].split(), [f"{figure:,}" for figure in figures])
        self.assertNotIn("base", self.succeeds("--steps", "1").stdout)

    def test_a_rank_reads_its_share(self):
        for ranks, stage, least, most in (("2", "replicated", 1, 1.05), ("4", "pos+g+p", 0.3, 0.7)):
            run = self.succeeds("--ranks", ranks, "--stage", stage, "--steps", "1", *self.lora)
            words = run.stderr.split("rank 0 read ")[1].split()
            read, size = int(words[0]), int(words[3])
            self.assertEqual(size, sum(end - begin for begin, end, _ in self.tensors(self.base).values()))
            # Its own, and the next rank's to compare.
            self.assertLessEqual(least * size, read)
            self.assertLess(read, most * size)

    def tensors(self, path):
        """Where the tensors of a file begin and end, and their shapes."""
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        return {name: (8 + size + entry["data_offsets"][0], 8 + size + entry["data_offsets"][1],
                       entry["shape"])
                for name, entry in json.loads(data[8:8 + size]).items() if name != "__metadata__"}

    def values(self, path, name):
        begin, end, shape = self.tensors(path)[name]
        values = struct.unpack(f"{(end - begin) // 4}f", path.read_bytes()[begin:end])
        return [values[row * shape[1]:(row + 1) * shape[1]] for row in range(shape[0])]

    def test_exported_adapters_are_all_that_was_learnt(self):
        self.other_text()
        path = self.folder / "adapters.safetensors"
        _, (tuned,) = self.stages("--ranks", "3", "--stage", "pos+g+p", "--steps", "120", "--lr", "0.01",
                                  *self.lora, "--export", path)
        adapters, base = self.tensors(path), self.tensors(self.base)
        matrices = [name for name, (_, _, shape) in base.items() if name.startswith("h") and len(shape) == 2]
        self.assertEqual(len(matrices), 2 * 4)
        self.assertEqual(set(adapters), {name + end for name in matrices for end in (".lora_A", ".lora_B")})
        self.assertEqual(adapters["h1.fc.w.lora_A"][2], [8, 40])
        self.assertEqual(adapters["h1.fc.w.lora_B"][2], [160, 8])
        # Another program adds them to the base as LoRA says, and has the model that was trained.
        merged = bytearray(self.base.read_bytes())
        for name in matrices:
            a = list(zip(*self.values(path, name + ".lora_A")))
            place = base[name][0]
            for w, b in zip(self.values(self.base, name), self.values(path, name + ".lora_B")):
                row = [x + 16 / 8 * sum(map(operator.mul, b, column)) for x, column in zip(w, a)]
                struct.pack_into(f"{len(row)}f", merged, place, *row)
                place += 4 * len(row)
        self.base.write_bytes(merged)
        losses = self.losses_of("--ranks", "3", "--steps", "10", "--lr", "1e-8", *self.lora)
        self.assertLess(tuned["losses"][-1], tuned["losses"][0] - 1)
        self.assertLess(abs(sum(losses) - sum(tuned["losses"][-10:])) / 10, 0.3)

    def test_a_run_that_goes_on(self):
        common = ("--ranks", "2", *self.lora)
        losses = self.losses_of("--steps", "10", *common)
        self.succeeds("--save", "run", "--save-every", "5", "--async-save", "--steps", "10", *common)
        newest = max((self.folder / "run").glob("*-step-*"))
        # The base is not saved again.
        begin, _, _ = self.tensors(self.base)["wte"]
        files = [file.read_bytes() for file in newest.iterdir()]
        self.assertGreater(len(files), 1)
        self.assertFalse([file for file in files if self.base.read_bytes()[begin:begin + 64] in file])
        shutil.rmtree(newest)
        for ranks, stage in (("2", "replicated"), ("2", "pos+g+p")):
            _, stages = self.stages("--resume", "run", "--steps", "10", "--stage", stage, *common)
            self.assertEqual(stages[0]["losses"], losses[5:])
        said = self.failing("--resume", "run", *common[:-1], "4")
        self.assertIn("'h0.qkv.w.lora_A'", said)
        other = bytearray(self.base.read_bytes())
        other[begin] ^= 1
        self.base.write_bytes(other)
        self.assertIn("its adapters are of another base", self.failing("--resume", "run", *common))

    def test_what_cannot_be_is_refused_in_one_line(self):
        junk = self.folder / "junk"
        junk.write_bytes(b"no model of any kind")
        cut = self.folder / "cut"
        cut.write_bytes(self.base.read_bytes()[:-100])
        for words, *arguments in (
                ("--base", "--lora", "8"),
                ("--lora", "--base", self.base),
                ("--lora", "--base", self.base, "--lora", "0"),
                ("--model-parallel", *self.lora, "--ranks", "2", "--model-parallel", "2"),
                ("cannot read nowhere", "--base", "nowhere", "--lora", "8"),
                ("junk is no base", "--base", junk, "--lora", "8"),
                ("it ends in", "--base", cut, "--lora", "8"),
                ("has 'wte' of shape [256,40], and this model of [256,20]", *self.lora, "--channels", "20"),
                ("has no tensor 'h2.ln1.g'", *self.lora, "--layers", "3"),
                ("12 tensors that this model has not", *self.lora, "--layers", "1")):
            self.assertIn(words, self.refused(*arguments), arguments)


if __name__ == "__main__":
    unittest.main(verbosity=2)
