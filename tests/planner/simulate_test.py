#!/usr/bin/env python3
"""Runs zero-plan simulate and validate-plan figures: the paper's figures, a trillion parameters,
traces.

    simulate_test.py [--all] ZERO_PLAN VALIDATE_PLAN SCRATCH_FOLDER

Of the report's other choices of points, each of which takes all simulations, one is tried; with --all
the six are.
"""

import json
import pathlib
import re
import resource
import sys
import time
import unittest

from plan_programs import ProgramTest, answer, by, run, start

SCRATCH, ALL = None, False
STAGES = ["replicated", "pos", "pos+g", "pos+g+p"]


class Paper(ProgramTest):
    @classmethod
    def setUpClass(cls):
        cls.found = answer("figures")
        cls.points = {(row["figure"], row["model"]): row for row in cls.found["points"]}

    def predicted(self, figure, model):
        return self.points[figure, model]["predicted"]

    def test_figure_3_is_predicted_from_its_first_point_and_three_of_other_figures(self):
        used = [key for key, row in self.points.items() if row["use"] == "calibrates"]
        self.assertEqual(len(used), 4)
        self.assertEqual([key for key in used if key[0] == "3"], [("3", "60B, 64 GPUs")])
        errors = [abs(row["predicted"] / row["published"] - 1.) for key, row in self.points.items()
                  if key[0] == "3" and row["use"] == "held out"]
        self.assertEqual(len(errors), 3)
        self.assertLessEqual(sum(errors) / 3, 0.05)
        self.assertLessEqual(max(errors), 0.15)
        told = by("figure", self.found["held_out"])
        self.assertGreater(told["3"]["one constant"], 5 * told["3"]["on average"])
        self.assertEqual(told["3"]["other points calibrate"], "not tried")
        self.assertAlmostEqual(told["3"]["on average"], sum(errors) / 3)
        self.assertAlmostEqual(told["3"]["at most"], max(errors))

    def test_figure_3_grows_faster_than_its_devices(self):
        rates = [gpus * self.predicted("3", f"60B, {gpus} GPUs") for gpus in (64, 128, 256, 400)]
        self.assertGreater(rates[1], 2 * rates[0])
        self.assertGreater(rates[2], 4 * rates[0])
        self.assertGreater(rates[3], 400 / 64 * rates[0])

    def test_figure_2_has_its_shape(self):
        models = [model for figure, model in self.points if figure == "2, ZeRO"]
        self.assertEqual(len(models), 9)
        gains = {model: self.predicted("2, ZeRO", model) / self.predicted("2, baseline", model)
                 for model in models}
        self.assertTrue(all(gain > 1. for gain in gains.values()), gains)
        # Megatron leaves the node between 8 and 40 billion, where it breaks in.
        self.assertLess(gains["8B"], 2.)
        self.assertTrue(all(gains[model] > 3.5 for model in models[2:]), gains)

    def test_the_report_says_what_other_points_give(self):
        report = pathlib.Path(__file__).parents[2] / "bench" / "plan" / "REPORT.md"
        rows = [[cell.strip() for cell in line.split("|")[2:-1]]
                for line in report.read_text(encoding="utf-8").splitlines()
                if re.match(r"\|.*\| `[0-9,]+` \|", line)]
        self.assertEqual(len(rows), 6)
        if not ALL:
            rows = [row for row in rows if row[0] == "`6,15,19`"]
        self.assertGreater(len(rows), 0)
        for points, *told in rows:
            found = answer("figures", "--calibrate", points.strip("`"))
            of = by("figure", found["held_out"])
            self.assertEqual(told, [f"{100 * of['3']['on average']:.1f} %",
                                    f"{100 * of['3']['at most']:.1f} %",
                                    f"{100 * of['2, ZeRO']['on average']:.0f} %",
                                    f"{100 * of['4, ZeRO']['on average']:.0f} %"], points)
            if points == "`6,15,19`":
                used = [row["model"] for row in found["points"] if row["use"] == "calibrates"]
                self.assertEqual(used, ["100B", "100B", "60B, 64 GPUs"])
                self.assertNotEqual(found["fractions"], self.found["fractions"])

    def test_points_that_are_not_there_calibrate_nothing(self):
        self.assertNotEqual(run("figures", "--calibrate", "34").returncode, 0)

    def test_no_fraction_exceeds_a_data_sheet(self):
        self.assertEqual(len(self.found["fractions"]), 4)
        for row in self.found["fractions"]:
            self.assertGreater(row["fraction"], 0.1)
            self.assertLessEqual(row["fraction"], 1.)


class Steps(ProgramTest):
    def test_a_trillion_parameters_on_a_hundred_thousand_devices(self):
        begin = time.monotonic()
        found = answer("simulate", "--params", "1e12", "--ranks", "100000", "--checkpoint", "whole")
        self.assertLess(time.monotonic() - begin, 10)
        used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        self.assertLess(used, 1 << 20)  # KiB
        self.assertEqual([row["stage"] for row in found["steps"]], STAGES)
        self.assertEqual([row["fits"] for row in found["steps"]], ["no"] * 4)
        bucket = found["bucket"][0]
        # A hundred thousand latencies of 8 us.
        self.assertAlmostEqual(bucket["ring"], 0.8, delta=0.05)
        self.assertLess(bucket["tree"], 0.001)

    def test_time_is_computing_and_waiting(self):
        found = answer("simulate", "--layers", "8", "--hidden", "1024", "--ranks", "1,16",
                       "--batch", "4", "--cluster", "dgx-a100")
        self.assertEqual(len(found["steps"]), 8)
        self.assertEqual({row["fits"] for row in found["steps"]}, {"yes"})
        for row in found["steps"]:
            self.assertAlmostEqual(row["step"], row["computing"] + row["waiting for others"])
            self.assertEqual(row["MFU"], row["HFU"])
            self.assertAlmostEqual(row["tokens/s"], 4 * 1024 * row["ranks"] / row["step"])
            self.assertAlmostEqual(row["of a device"], row["tokens/s"] / row["ranks"])
            # 6 of each weight but the embedding's, and 12 L h s of scores, over 312 TFLOP/s.
            of_token = 6 * (12 * 8 * 1024**2 + 51200 * 1024) + 12 * 8 * 1024 * 1024
            self.assertAlmostEqual(row["MFU"], of_token * row["of a device"] / 312e12)
            if row["ranks"] == 1:
                self.assertEqual(row["waiting for others"], 0)
        alone, together = found["steps"][0], found["steps"][4]
        self.assertGreater(together["step"], alone["step"])

    def test_no_error_is_claimed_of_another_cluster(self):
        def error(*more):
            return answer("simulate", "--layers", "2", "--hidden", "128", "--ranks", "16", "--stage",
                          "pos", *more)["steps"][0]["error"]

        self.assertEqual(error("--cluster", "dgx-h100"), 0.12)
        for other in (["--cluster", "dgx-b200"], ["--ranks-per-node", "4"], ["--network", "1GB"],
                      ["--sums", "flat"], ["--computing", "1"]):
            self.assertIsNone(error(*other), other)

    def test_accumulation_and_model_ranks(self):
        def step(*more):
            found = answer("simulate", "--layers", "8", "--hidden", "4096", "--heads", "32",
                           "--ranks", "64", "--stage", "pos+g", *more)
            return found["steps"][0]

        once = step("--batch", "4")
        self.assertGreater(step("--batch", "4", "--micro-steps", "4")["computing"],
                           3.5 * once["computing"])
        self.assertLess(step("--batch", "4", "--model-parallel", "8")["computing"],
                        once["computing"] / 2)
        whole = step("--batch", "4", "--checkpoint", "whole")
        self.assertGreater(whole["computing"], 1.2 * once["computing"])
        self.assertGreater(whole["HFU"], 1.2 * whole["MFU"])
        self.assertAlmostEqual(step("--tokens", "2T")["training"],
                               2e12 / step("--tokens", "2T")["tokens/s"])

    def test_a_trace_has_one_step_of_two_queues(self):
        path = SCRATCH / "trace.json"
        found = answer("simulate", "--layers", "4", "--hidden", "512", "--ranks", "16",
                       "--stage", "pos+g+p", "--trace", path)
        events = json.loads(path.read_text())["traceEvents"]
        for queue in (0, 1):
            spans = [(e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == queue]
            self.assertGreater(len(spans), 10)
            for (begin, length), (after, _) in zip(spans, spans[1:]):
                self.assertLessEqual(begin + length, after + 1e-6)
        computed = sum(e["dur"] for e in events if e["ph"] == "X" and e["tid"] == 0) / 1e6
        self.assertAlmostEqual(computed, found["steps"][0]["computing"], places=6)
        self.assertIn("reduce_scatter", {e["name"] for e in events})

    def test_what_makes_no_sense_is_one_line(self):
        small = ("simulate", "--layers", "2", "--hidden", "64")
        for wrong in (["--cluster", "moon"], ["--ranks", "0"], ["--stage", "most"],
                      ["--model-parallel", "3", "--ranks", "64"]):
            self.refused("", *small, *wrong)
        self.refused("cannot write", *small, "--trace", SCRATCH / "none" / "trace.json", status=1)


class Sums(ProgramTest):
    def test_bytes_of_a_node_are_those_of_every_pair_and_of_one_partial_sum(self):
        found = answer("sums", "--ranks-per-node", "4", "--nodes", "2,3,1024", "--dtype", "bf16",
                       "--elements", "6000000")
        for row, nodes in zip(found["bytes"], (2, 3, 1024), strict=True):
            ranks = 4 * nodes
            block = -(-6000000 // (512 * ranks)) * 512
            self.assertEqual([row[key] for key in ("nodes", "ranks", "elements of a block")],
                             [nodes, ranks, block])
            # Every rank here sends every rank there 2 bytes of each element of its block.
            self.assertEqual(row["flat"], 4 * (ranks - 4) * block * 2)
            self.assertEqual(row["chained"], ranks * block * 4)
            self.assertEqual(row["chained, the last node"], (ranks - 4) * block * 2)
            piece = min(max(block * 4 // 16, 32 * 1024), 256 * 1024, block * 4)
            hops = (nodes - 1) * (256 * 1024 + 4 * piece)
            self.assertEqual(row["automatic"],
                             "chained" if row["chained"] + hops < row["flat"] else "flat")
        self.assertEqual([row["automatic"] for row in found["bytes"]],
                         ["flat", "chained", "flat"])

    def test_hops_take_over_from_bytes(self):
        found = answer("sums", "--cluster", "dgx-h100")
        times = found["times"]
        self.assertEqual(times[0]["fastest in rank order"], "chained")
        self.assertEqual(times[-1]["fastest in rank order"], "flat")
        shares = [row["of it, latency"] for row in times]
        self.assertEqual(shares, sorted(shares))
        at = next(row["nodes"] for row in times if row["chained"] > row["flat"])
        self.assertIn(f"On {at} nodes the hops", found["notes"][-1])
        slow = answer("sums", "--elements", "1000000000", "--nodes", "2,64")
        self.assertTrue(all(row["chained"] < row["flat"] for row in slow["times"]))
        self.assertIn("On none", slow["notes"][-1])

    def test_a_node_sends_what_its_ranks_plan(self):
        model = ("--layers", "3", "--hidden", "128", "--ranks", "12", "--precision", "bf16")
        found = answer("traffic", *model, "--ranks-per-node", "4")
        sent = by("operation", found["bytes"])
        node = {row["operation"].split(" (")[0]: row for row in found["nodes"]}
        for stage in STAGES:
            block = sent["reduce gradients"][stage] // 11
            self.assertEqual(node["sums, flat"][stage], 4 * 8 * block)
            self.assertEqual(node["sums, chained"][stage], 12 * 2 * block)
            self.assertEqual(node["sums, chained, the last node"][stage], 8 * block)
            gathered = sent["publish parameters"][stage] + sent["gather parameters"][stage]
            self.assertEqual(node["gathers"][stage], 4 * 2 * gathered // 11)
        # Two models' ranks to a node of four: two groups, each of two ranks there.
        halves = answer("traffic", *model, "--model-parallel", "2", "--ranks-per-node", "4")
        node = {row["operation"]: row["pos"] for row in halves["nodes"]}
        block = by("operation", halves["bytes"])["reduce gradients"]["pos"] // 5
        self.assertEqual(node["sums, flat"], 2 * 2 * 4 * block)
        self.refused("nodes of 5 ranks do not divide 12 ranks", "traffic", *model,
                     "--ranks-per-node", "5")

    def test_steps_over_mpi_on_other_links(self):
        model = ("--layers", "4", "--hidden", "256", "--heads", "4", "--sequence", "64",
                 "--ranks", "6", "--precision", "fp32", "--ranks-per-node", "2")

        def step(sums, network, *more):
            found = answer("simulate", *model, "--stage", "pos+g", "--cluster", "cpu2", "--sums",
                           sums, "--network", network, *more)["steps"][0]
            return found["step"]

        half = ("1000000", "--computing", "0.5")
        flat = step("flat", *half)
        # Where links are all: the bytes of a node over their rate.
        node = {row["operation"].split(" (")[0]: row["pos+g"]
                for row in answer("traffic", *model)["nodes"]}
        links = (node["sums, flat"] + node["gathers"]) / 1e6
        self.assertGreater(flat, links)
        self.assertLess(flat, links + 0.5)
        self.assertGreater(step("flat", "500000"), 2 * links)
        # Three quarters of the sums' bytes, and later: the first piece has hops to go.
        chained = step("chained", *half)
        self.assertEqual(step("automatic", *half), chained)
        saved = (node["sums, flat"] - node["sums, chained"]) / 1e6
        self.assertLess(chained, flat - 0.5 * saved)
        self.assertGreater(chained, flat - 1.01 * saved)


if __name__ == "__main__":
    ALL = sys.argv[1] == "--all"
    SCRATCH = start(*sys.argv[-3:])
    unittest.main(argv=sys.argv[:1])
