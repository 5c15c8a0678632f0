#!/usr/bin/env python3
"""Runs zero-plan calibrate, simulate --cluster this and validate-plan here: the mechanism by numbers
that are known, and a few seconds of the machine itself, which may be as slow as it likes.

    here_test.py [CLASS...] ZERO_PLAN VALIDATE_PLAN SCRATCH_FOLDER TRAIN_GPT
"""

import copy
import json
import math
import subprocess
import sys
import unittest

from plan_programs import ProgramTest, answer, by, run, start

SCRATCH, TRAIN_GPT = None, None

PASSES = ["zero", "copy", "convert", "add", "norm", "update"]
COLLECTIVES = ["reduce_scatter", "all_gather", "all_reduce", "broadcast"]
# Dimensions of what the model computes.
KERNELS = {"linear forward": 3, "linear backward": 3, "attention forward": 3,
           "attention backward": 3, "layer norm forward": 2, "layer norm backward": 2,
           "gelu forward": 1, "gelu backward": 1, "sum": 1, "embedding and head": 2, "unpack": 1,
           "accumulate": 1}
# How often each occurs in a block.
IN_BLOCK = {"linear forward": 4, "linear backward": 4, "attention forward": 1,
            "attention backward": 1, "layer norm forward": 2, "layer norm backward": 2,
            "gelu forward": 1, "gelu backward": 1, "sum": 2, "unpack": 2, "accumulate": 1}


def timing(name, seconds, dimensions=1):
    """The same seconds whatever the sizes."""
    return {"name": name, "sizes": [[1.]] * dimensions, "seconds": [seconds]}


def machine(kernels, others=1e-12):
    timings = [timing("triad", 1e-3), timing("ping-pong", 1e-7)]
    timings += [timing(name, kernels.get(name, others)) for name in PASSES + COLLECTIVES]
    timings += [timing(name, kernels.get(name, others), n) for name, n in KERNELS.items()]
    # One triad of a byte: a memory rate so high that what is not measured takes no time.
    timings[0]["sizes"] = [[1e15]]
    return {"format": "zero-plan calibration 1", "precision": "fp32", "processors": 2,
            "measured": [{"ranks": ranks, "timings": copy.deepcopy(timings)} for ranks in (1, 2)]}


def written(name, content):
    path = SCRATCH / name
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def steps(calibration, *options):
    return answer("simulate", "--cluster", "this", "--calibration", calibration,
                  *options)["steps"]


class Activations(ProgramTest):
    """What the trainer computes with is what is estimated, with the terms of its own attention."""

    def working(self, ranks, activations, layers, width, heads, length, batch):
        path = SCRATCH / "run.json"
        done = subprocess.run(
            [TRAIN_GPT, "--text", __file__, "--steps", "2", "--ranks", str(ranks),
             "--model-parallel", str(ranks), "--layers", str(layers), "--channels", str(width),
             "--heads", str(heads), "--context", str(length), "--batch", str(batch),
             "--activations", activations, "--json", str(path)],
            capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        held = json.loads(path.read_text())["stages"][0]["working_bytes_per_rank"]
        # Copies of a unit's tensors and gradients in fp32 are no activations: the largest of each
        # place in a unit.
        h, part = width, width // ranks
        units = ([256 // ranks * h, length * h],
                 [h, h, 3 * part * h, 3 * part, h * part, h, h, h, 4 * part * h, 4 * part,
                  4 * part * h, h],
                 [h, h, 256 // ranks * h])
        return held - 2 * 4 * sum(max(unit[i] for unit in units if i < len(unit))
                                  for i in range(12))

    def test_train_gpt_computes_with_what_is_estimated(self):
        for layers, width, heads, length, batch in ((4, 128, 4, 64, 4), (6, 64, 8, 128, 8)):
            for ranks in (1, 2, 4):
                for activations, name in (("keep", "keep"), ("recompute", "whole"),
                                          ("partitioned", "pa")):
                    if (ranks, name) == (1, "pa"):
                        continue
                    plan = answer("memory", "--layers", layers, "--hidden", width, "--heads", heads,
                                  "--sequence", length, "--vocab", 256, "--ranks", ranks,
                                  "--model-parallel", ranks, "--batch", batch, "--checkpoint", name,
                                  "--precision", "fp32", "--attention", "plain", "--no-dropout")
                    estimate = by("role", plan["bytes"])["working activations (estimate)"]["pos+g"]
                    held = self.working(ranks, activations, layers, width, heads, length, batch)
                    with self.subTest(layers=layers, ranks=ranks, name=name):
                        self.assertLess(abs(estimate / held - 1.), 0.05)


class Files(ProgramTest):
    writer, command = None, ()

    def refused_file(self, words, path):
        said = self.refused(words, *self.command, path)
        self.assertIn(f"'{path}' is not what {self.writer} writes: ", said)


class Known(Files):
    writer = "zero-plan calibrate"
    command = ("simulate", "--cluster", "this", "--ranks", 2, "--calibration")

    def test_every_kernel_of_a_step_is_counted(self):
        for name, count in {**IN_BLOCK, "embedding and head": None}.items():
            path = written("one.json", machine({name: 1e-3}))
            for layers, micro_steps in ((3, 1), (5, 2)):
                found = steps(path, "--layers", layers, "--hidden", 64, "--heads", 4, "--ranks", 2,
                              "--micro-steps", micro_steps, "--stage", "pos")
                expected = 1e-3 * micro_steps * (layers * count if count else 1)
                self.assertAlmostEqual(found[0]["step"], expected, delta=1e-8, msg=name)
                self.assertAlmostEqual(found[0]["model"], expected, delta=1e-8, msg=name)

    def test_collectives_are_those_of_the_library_and_take_the_ranks_own_time(self):
        path = written("collectives.json", machine({name: 1e-3 for name in COLLECTIVES}))
        small = ["--layers", 4, "--hidden", 128, "--heads", 4, "--ranks", 2]
        calls = {}
        for stage in ("pos", "pos+g+p"):
            for bucket in ("25MiB", "256KiB"):
                row, = steps(path, *small, "--stage", stage, "--bucket", bucket)
                self.assertAlmostEqual(row["step"], row["collectives"], delta=1e-8)
                calls[stage, bucket] = row["collectives"] / 1e-3
        self.assertGreater(calls["pos", "256KiB"], calls["pos", "25MiB"] + 10)
        self.assertGreater(calls["pos+g+p", "25MiB"], calls["pos", "25MiB"])
        for number in calls.values():
            self.assertAlmostEqual(number, round(number), places=4)

    def test_twice_as_slow_is_twice_the_time(self):
        # Powers of sizes, so that all interpolation is in it.
        known = machine({})
        for one in known["measured"]:
            for entry in one["timings"]:
                n = len(entry["sizes"])
                if entry["name"] in ("triad", "ping-pong"):
                    continue
                entry["sizes"] = [[8., 512.]] * n
                entry["seconds"] = [1e-9 * (1 + i) ** 2 for i in range(2 ** n)]
        slow = copy.deepcopy(known)
        for one in slow["measured"]:
            for entry in one["timings"]:
                entry["seconds"] = [2. * value for value in entry["seconds"]]
        options = ["--stage", "pos,pos+g,pos+g+p", "--layers", 3, "--hidden", 96, "--heads", 2,
                   "--sequence", 48, "--batch", 5, "--bucket", "64KiB"]
        fast = steps(written("fast.json", known), *options)
        twice = steps(written("slow.json", slow), *options)
        self.assertEqual(len(fast), 6)
        for one, two in zip(fast, twice):
            self.assertAlmostEqual(two["step"] / one["step"], 2., places=6)

    def test_what_cannot_be_predicted_is_refused_in_a_line(self):
        path = written("known.json", machine({}))
        here = ["simulate", "--cluster", "this", "--calibration"]
        for arguments, why in (
                ([*here, path, "--ranks", 4], "measured with 1, 2 ranks, not with 4"),
                ([*here, path, "--precision", "bf16"], "measured in fp32, not in bf16"),
                ([*here, path, "--params", "1e9"], "by --layers and --hidden"),
                ([*here, path, "--checkpoint", "whole"], "keeps its activations"),
                ([*here, SCRATCH / "none.json"], "zero-plan calibrate writes it"),
                ([*here, written("bad.json", {"format": "x"})], "not \"x\""),
                ([*here, written("odd.json", [1])], "is not what zero-plan calibrate writes")):
            self.refused(why, *arguments)
        lacking = machine({})
        del lacking["measured"][1]["timings"][-1]
        self.refused("not measured how long 'accumulate' takes", *self.command,
                     written("lacking.json", lacking))

    def test_a_grid_of_other_sizes_than_the_work_has_is_refused(self):
        for name, sizes in (("linear forward", [[16]]), ("linear forward", [[16], [16]]),
                            ("linear forward", [[1]] * 4), ("triad", [[1], [1]])):
            known = machine({})
            for one in known["measured"]:
                for entry in one["timings"]:
                    if entry["name"] == name:
                        entry["sizes"] = sizes
            self.refused_file(f"'{name}'", written("grid.json", known))
        # Its points are 98 * 2**64 + 2747, which 64 bits count as 2747.
        sizes = (5, 23, 103, 181, 181, 227, 239, 281, 431, 709)
        self.assertEqual(math.prod(sizes) % 2 ** 64, 2747)
        known = machine({})
        known["measured"][0]["timings"].append({
            "name": "much", "sizes": [[*range(1, 1 + size)] for size in sizes],
            "seconds": [1.] * 2747})
        self.refused_file("no grid", written("points.json", known))

    def test_numbers_that_are_none_are_refused_with_their_name(self):
        path = SCRATCH / "numbers.json"
        sound = json.dumps(machine({}))
        for name, before in (("ranks", '"ranks": 2'), ("processors", '"processors": 2')):
            self.assertIn(before, sound)
            for number in ("1e300", "-1e300", "2.5", "-1", "4294967298", "18446744073709551615",
                           "null", "true", '"2"', "[" * 100000 + "]" * 100000):
                path.write_text(sound.replace(before, f'"{name}": {number}'), encoding="utf-8")
                self.refused_file(f"'{name}' is ", path)
        path.write_text(sound.replace('"triad"', '"triad"', 1).replace("[0.001]", "[1e999]", 1),
                        encoding="utf-8")
        self.refused_file("1e999", path)
        path.write_text('{"format": ' + "[" * 100000 + "]" * 100000 + "}", encoding="utf-8")
        self.refused_file("not array", path)


class Recorded(Files):
    """Rounds whose numbers are known."""

    writer = "validate-plan here --save"
    command = ("here", "--recorded")

    @staticmethod
    def a_round(measured, triad=1e-3, ping_pong=1e-7):
        # Two blocks with four products of a millisecond each: 8 ms are predicted.
        return {"calibration": machine({"linear forward": 1e-3}), "triad": triad,
                "ping-pong": ping_pong,
                "runs": [{"name": "small", "ranks": 2, "stage": "pos+g", "layers": 2, "hidden": 64,
                          "heads": 4, "sequence": 32, "batch": 1, "bucket": 65536,
                          "seconds": measured}]}

    def found(self, *rounds):
        return answer("here", "--recorded",
                      written("rounds.json", {"rounds": list(rounds)}))

    def test_errors_are_those_of_predictions(self):
        found = self.found(*map(self.a_round, (8e-3, 10e-3, 4e-3)))
        self.assertEqual(found["counts"], [{"kept": 3, "discarded": 0}])
        for row, error in zip(found["rounds"], (0., -0.2, 1.)):
            self.assertAlmostEqual(row["predicted"], 8e-3, delta=1e-8)
            self.assertAlmostEqual(row["error"], error, delta=1e-5)
        for row in found["errors"]:
            self.assertAlmostEqual(row["median"], 0.2, delta=1e-5)
            self.assertAlmostEqual(row["median with its sign"], 0., delta=1e-5)
            self.assertAlmostEqual(row["at most"], 1., delta=1e-5)
        self.assertEqual([row["run"] for row in found["errors"]], ["small", "all"])

    def test_a_round_on_another_machine_is_discarded_and_counted(self):
        for change in ({"triad": 1.16e-3}, {"triad": 0.84e-3}, {"ping_pong": 1.16e-7},
                       {"ping_pong": 0.84e-7}):
            found = self.found(self.a_round(8e-3), self.a_round(1., **change))
            self.assertEqual(found["counts"], [{"kept": 1, "discarded": 1}], change)
            self.assertEqual(len(found["rounds"]), 1)
        found = self.found(self.a_round(8e-3, triad=1.14e-3, ping_pong=0.86e-7))
        self.assertEqual(found["counts"], [{"kept": 1, "discarded": 0}])
        found = self.found(self.a_round(8e-3, triad=2e-3))
        self.assertEqual((found["counts"], found["errors"]), ([{"kept": 0, "discarded": 1}], []))

    def test_numbers_that_are_none_are_refused_with_their_name(self):
        path = SCRATCH / "rounds.json"
        for name in ("ranks", "layers", "hidden", "heads", "sequence", "batch", "bucket"):
            for number in ("1e300", "-1e300", "2.5", "0", "-1", "null"):
                a_round = self.a_round(8e-3)
                a_round["runs"][0][name] = "HERE"
                path.write_text(json.dumps({"rounds": [a_round]}).replace('"HERE"', number),
                                encoding="utf-8")
                self.refused_file(f"'{name}' is ", path)
        self.refused_file("above 0", written("rounds.json", {"rounds": [self.a_round(0.)]}))
        for number in (1, 64):
            a_round = self.a_round(8e-3)
            a_round["calibration"]["measured"][1]["ranks"] = number
            self.refused_file("2 ranks", written("rounds.json", {"rounds": [a_round]}))


class Machine(unittest.TestCase):
    def test_this_machine_is_measured_and_simulated(self):
        path = SCRATCH / "this.json"
        done = run("calibrate", "--ranks", 1, "--seconds", 0.1, "--precision", "bf16", "--out", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("calibrating with 1 at once", done.stderr)
        kept = json.loads(path.read_text(encoding="utf-8"))
        names = [entry["name"] for entry in kept["measured"][0]["timings"]]
        self.assertEqual(sorted(names), sorted(["triad", "ping-pong", *PASSES, *COLLECTIVES,
                                                *KERNELS]))
        for name in names:
            self.assertIn(name, done.stdout)
        for entry in kept["measured"][0]["timings"]:
            points = math.prod(len(dimension) for dimension in entry["sizes"])
            self.assertEqual(len(entry["seconds"]), points, entry["name"])
            self.assertTrue(all(0. < value < 60. for value in entry["seconds"]), entry)
        row, = steps(path, "--stage", "pos+g")
        self.assertTrue(0. < row["step"] < 60.)
        self.assertAlmostEqual(row["tokens/s"], 256 / row["step"], delta=1.)
        # More work takes longer, on any machine.
        wider, = steps(path, "--stage", "pos+g", "--layers", 8, "--hidden", 512, "--batch", 8)
        self.assertGreater(wider["step"], 4 * row["step"])

    def test_a_round_of_this_machine_is_recorded_as_it_is_printed(self):
        path = SCRATCH / "two.json"
        options = ["--rounds", 1, "--seconds", 0.2, "--run-seconds", 0.05, "--train-gpt", TRAIN_GPT]
        found = answer("here", *options, "--save", path)
        again = answer("here", "--recorded", path)
        self.assertEqual(found, again)
        kept = json.loads(path.read_text(encoding="utf-8"))["rounds"]
        counts, = found["counts"]
        self.assertEqual(counts["kept"] + counts["discarded"], len(kept))
        self.assertEqual(len(found["rounds"]), 8 * counts["kept"])
        for one in kept:
            self.assertEqual(len(one["runs"]), 8)
            self.assertTrue(all(0. < entry["seconds"] < 60. for entry in one["runs"]))
            for witness in ("triad", "ping-pong"):
                self.assertGreater(one[witness], 0.)
        for row in found["rounds"]:
            self.assertTrue(math.isfinite(row["error"]))
            self.assertTrue(0. < row["predicted"] < 60.)

    def test_a_trainer_that_is_not_there_is_named(self):
        done = run("here", "--rounds", 1, "--seconds", 0.1, "--train-gpt",
                   SCRATCH / "none")
        self.assertEqual(done.returncode, 1)
        self.assertIn("name train_gpt by --train-gpt", done.stderr)


if __name__ == "__main__":
    TRAIN_GPT = sys.argv.pop()
    SCRATCH = start(*sys.argv[-3:])
    unittest.main(argv=sys.argv[:-3])
