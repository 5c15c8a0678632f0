#!/usr/bin/env python3
"""Runs zero-plan as a user does: what the paper printed, options, formats, pictures.

    program_test.py [--all] ZERO_PLAN VALIDATE_PLAN SCRATCH_FOLDER

Of the five questions whose answers are held against all that fits, the one of most devices is asked, and
one of another cluster; with --all the five are.
"""

import csv
import io
import json
import pathlib
import sys
import time
import unittest

from plan_programs import ProgramTest, answer, by, run, start

SCRATCH, ALL = None, False
STAGES = ["replicated", "pos", "pos+g", "pos+g+p"]
COMMANDS = ["memory", "traffic", "advise", "sums", "table1", "table2", "fig1", "pa"]
# As published: arXiv 1910.02054v3, Tables 1 and 2, Figure 1.
TABLE_1 = {
    1: "120 120 120 2048 2048 2048 16000 16000 16000",
    4: "52.5 41.3 30 896 704 512 7000 5500 4000",
    16: "35.6 21.6 7.5 608 368 128 4750 2875 1000",
    64: "31.4 16.6 1.88 536 284 32 4187 2218 250",
    256: "30.4 15.4 0.47 518 263 8 4046 2054 62.5",
    1024: "30.1 15.1 0.12 513 257 2 4011 2013 15.6",
}
# Row and column, from 1 on, of the cells in bold.
TABLE_1_BOLD = [(4, 3), (16, 2), (64, 1), (64, 6), (1024, 9)]
TABLE_2 = {
    1: "2B 7.6B 14.4B 128B",
    2: "4B 15.2B 28.8B 256B",
    4: "8B 30.4B 57.6B 0.5T",
    8: "16B 60.8B 115.2B 1T",
    16: "32B 121.6B 230.4B 2T",
}
FIGURE_1 = ["120", "31.4", "16.6", "1.9"]


def small(*more):
    """Options of a small model, with others in their place or beside them."""
    options = {"--layers": "3", "--hidden": "128", "--vocab": "100", "--sequence": "32",
               "--ranks": "4"}
    options.update(zip(more[::2], more[1::2]))
    return [word for option in options.items() for word in option]


class Paper(ProgramTest):
    def test_table_1_cell_by_cell(self):
        rows = answer("table1")["table1"]
        self.assertEqual([row["DP"] for row in rows], list(TABLE_1))
        errata, bold = [], []
        for row in rows:
            cells = list(row.values())[1:]
            self.assertEqual(" ".join(cell["printed"] for cell in cells), TABLE_1[row["DP"]])
            for column, cell in enumerate(cells, 1):
                # What is printed is the bytes, rounded or truncated in its last digit.
                digits = len(cell["printed"].partition(".")[2])
                unit = 10 ** (9 - digits)
                off = float(cell["printed"]) * 1e9 - cell["bytes"]
                self.assertLessEqual(off, unit / 2, cell)
                self.assertGreater(off, -unit if cell["erratum"] else -unit / 2 - 1, cell)
                self.assertEqual(cell["erratum"], off < -unit / 2 - 0.5 or
                                 (cell["rounded"] != cell["printed"]), cell)
                if cell["erratum"]:
                    self.assertEqual(int(cell["rounded"]), int(cell["printed"]) + 1)
                    errata.append((row["DP"], column))
                if cell["bold"]:
                    bold.append((row["DP"], column))
        self.assertEqual(errata, [(64, 7), (64, 8), (256, 7), (256, 8), (1024, 4), (1024, 5),
                                  (1024, 7), (1024, 8)])
        self.assertEqual(sorted(bold), sorted(TABLE_1_BOLD))
        self.assertIn("8 of 54 cells", run("table1").stdout)
        self.assertEqual(run("table1").stdout.count("*"), 9)

    def test_table_2_cell_by_cell(self):
        rows = answer("table2")["table2"]
        errata = 0
        for row in rows:
            cells = [row[stage] for stage in ("baseline", "Pos", "Pos+g", "Pos+g+p")]
            self.assertEqual(row["GPUs"], 64 * row["MP"])
            self.assertEqual(" ".join(cell["printed"] for cell in cells), TABLE_2[row["MP"]])
            for cell, state in zip(cells, (16, 4 + 12 / 64, 2 + 14 / 64, 16 / 64)):
                exact = row["MP"] * 32e9 / state
                self.assertAlmostEqual(cell["parameters"], exact, delta=row["MP"])
                errata += cell["erratum"]
                self.assertEqual(cell["erratum"], cell["printed"] != cell["truncated"])
        self.assertEqual(errata, 5)
        self.assertEqual([row["MP"] for row in rows], list(TABLE_2))

    def test_figure_1(self):
        rows = answer("fig1")["fig1"]
        self.assertEqual([row["printed"] for row in rows], FIGURE_1)
        for row in rows:
            self.assertEqual(row["parameters"] + row["gradients"] + row["states"], row["bytes"])

    def test_statements_about_activations(self):
        rows = answer("pa")["pa"]
        here = [row["here"] for row in rows]
        elements = 32 * 1024 * 8192 * 125
        self.assertEqual(here[0], 2 * 12 * 32 * 1024 * 1600 * 48)
        self.assertEqual(here[1], here[0] // 12 + here[0] // 48)
        self.assertEqual(here[2:7], [2 * elements, 2 * elements, elements // 8, 16, 0])
        self.assertAlmostEqual(here[8], 1 / 12)
        self.assertEqual(here[9], 2)
        self.assertEqual(["erratum" in row["verdict"] for row in rows],
                         [False] * 3 + [True] * 2 + [False] * 5)
        self.assertNotIn("DIFFERS", run("pa").stdout)


class Plans(ProgramTest):
    def test_memory_is_complete_and_near_the_paper(self):
        # Figure 1, with a described model: its own number of parameters, and padding.
        document = answer("memory", "--params", "7.5e9", "--ranks", "64")
        rows = by("role", document["bytes"])
        for stage, formula in zip(STAGES, (16, 4 + 12 / 64, 2 + 14 / 64, 16 / 64)):
            parts = sum(row[stage] for role, row in rows.items()
                        if not role.startswith(("total", "model states")))
            self.assertEqual(parts, rows["total"][stage])
            states = rows["model states"][stage]
            self.assertAlmostEqual(states / (7524037632 * formula), 1, delta=1e-3)
            self.assertEqual(rows["model states, the paper's formula"][stage],
                             int(7524037632 * formula))
        self.assertIn("7,524,037,632 parameters", document["head"][0])

    def test_a_base_of_few_bits_beside_adapters(self):
        asked = ["--params", "70B", "--sequence", "2048", "--ranks", "8", "--adapters", "16"]
        coded = answer("memory", *asked, "--base-bits", "4.5")
        rows = by("role", coded["bytes"])
        # All parameters but the embedding are in blocks: 4.5 bits of each, on one of 8 ranks.
        self.assertAlmostEqual(rows["parameters"]["pos+g+p"] / (70e9 * 4.5 / 8 / 8), 1, delta=0.05)
        self.assertAlmostEqual(rows["parameters"]["pos+g"] / (70e9 * 4.5 / 8), 1, delta=0.05)
        self.assertLess(rows["state"]["replicated"], 70e9 * 8 / 100)
        self.assertIn("frozen beside adapters of rank 16", coded["head"][0])
        # The paper has no frozen tensors: its formula counts adapters, and that is said.
        self.assertNotIn("model states, the paper's formula", rows)
        trained = rows["model states of trained tensors, the paper's formula"]
        kept = [rows[role]["replicated"] for role in ("gradients", "master", "state")]
        self.assertAlmostEqual(trained["replicated"] / (sum(kept) * 8 / 7), 1, delta=0.01)
        half = by("role", answer("memory", *asked)["bytes"])
        self.assertAlmostEqual(half["parameters"]["pos+g+p"] / (70e9 * 2 / 8), 1, delta=0.05)
        self.refused("--adapters", "memory", "--base-bits", "4")
        # 7 of 8 shares of the base go out twice: for the forward pass, and for the backward pass.
        sent = by("operation", answer("traffic", *asked, "--base-bits", "4.5")["bytes"])
        base = sent.pop("gather frozen parameters")
        self.assertAlmostEqual(base["pos+g+p"] / (2 * 7 * rows["parameters"]["pos+g+p"]), 1,
                               delta=0.05)
        total = sent.pop("total")
        for stage in STAGES:
            self.assertEqual(base[stage] + sum(row[stage] for row in sent.values()), total[stage])

    def test_wide_norms_change_little(self):
        def rows(*more):
            return by("role", answer("memory", "--params", "7.5e9", "--ranks", "64", *more)["bytes"])

        plain, wide = rows(), rows("--wide-vectors")
        for stage in STAGES:
            self.assertNotEqual(wide["total"][stage], plain["total"][stage])
            self.assertAlmostEqual(wide["total"][stage] / plain["total"][stage], 1, delta=1e-3)

    def test_bytes_of_a_parameter(self):
        # Of parameter, gradient, what is held of a master, and one state.
        formats = {"fp32": (4, 4, 0, 4), "fp64": (8, 8, 0, 8), "bf16": (2, 2, 4, 4), "fp16": (2, 2, 4, 4),
                   "bf16-half-away": (2, 2, 4, 4), "bf16-rest16": (2, 2, 2, 4), "bf16-rest8": (2, 2, 1, 4),
                   "bf16-stochastic": (2, 2, 0, 2), "bf16-stochastic+fp32-states": (2, 2, 0, 4),
                   "bf16+fp32-grads": (2, 4, 4, 4), "fp16+fp32-grads": (2, 4, 4, 4)}
        states = {"adamw": 2, "adam": 2, "nadam": 2, "amsgrad": 3, "adagrad": 1, "rmsprop": 1, "lion": 1,
                  "sgd": 1, "plain-sgd": 0, "lamb": 2}
        # A byte of codes for each element and one of scales for each 32, instead of fp32.
        coded = {"adamw8bit": 2, "adam8bit": 2, "lion8bit": 1}
        rows = by("precision", answer("formats")["bytes"])
        self.assertEqual(set(rows), set(formats))
        for precision, (*once, state) in formats.items():
            expected = {rule: sum(once) + count * state for rule, count in states.items()}
            expected |= {rule: sum(once) + count * (1 + 1 / 32) if state == 4 else None
                         for rule, count in coded.items()}
            self.assertEqual({**rows[precision]}, {"precision": precision, **expected})

    def test_options_reach_the_plan(self):
        def total(*more, role="total", stage="pos+g+p"):
            rows = by("role", answer("memory", *small(*more))["bytes"])
            return rows.get(role, {}).get(stage, 0)

        base = total()
        for more in (["--precision", "fp32"], ["--precision", "bf16-rest16"], ["--rule", "lion"],
                     ["--batch", "2"],
                     ["--prefetch", "3"], ["--communicator", "1MiB"],
                     ["--model-parallel", "2"], ["--checkpoint", "whole"],
                     ["--micro-steps", "2"], ["--ranks", "8"], ["--layers", "4"],
                     ["--vocab", "200"], ["--sequence", "64"], ["--hidden", "256"]):
            self.assertNotEqual(total(*more), base, more)
        # Units that share a bucket share its padding.
        self.assertLess(total("--ranks", "16", stage="pos"),
                        total("--ranks", "16", "--bucket", "64KiB", stage="pos"))
        self.assertEqual(total("--communicator", "1MiB") - base, 2**20)
        self.assertEqual(total("--communicator", "1MB", role="communicator"), 10**6)
        self.assertNotEqual(total("--micro-steps", "2", "--accumulate", "full"),
                            total("--micro-steps", "2", "--accumulate", "shard"))
        whole = total("--checkpoint", "whole", "--model-parallel", "2", role="activations")
        pa = total("--checkpoint", "pa", "--model-parallel", "2", role="activations")
        self.assertEqual((whole, 2 * pa), (2 * 3 * 128 * 32, whole))
        self.assertEqual(total("--checkpoint", "pa+cpu", "--model-parallel", "2", stage="pos",
                               role="in the host's memory"), pa)
        one = answer("memory", *small("--stage", "pos"))["bytes"][0]
        self.assertEqual(list(one), ["role", "pos"])

    def test_what_fits_is_the_last_that_does(self):
        asked = ["--checkpoint", "whole"]
        fits = by("stage", answer("memory", *small(*asked, "--budget", "20MB"))["fits"])
        for stage in STAGES:
            def total(*more):
                return by("role", answer("memory", *small(*asked, *more))["bytes"])["total"][stage]

            batch = fits[stage]["largest batch"]
            layers = fits[stage]["blocks"]
            self.assertIs(fits[stage]["this run"], total() <= 20e6)
            self.assertLessEqual(total("--batch", str(batch)), 20e6)
            self.assertGreater(total("--batch", str(batch + 1)), 20e6)
            self.assertLessEqual(total("--layers", str(layers)), 20e6)
            self.assertGreater(total("--layers", str(layers + 1)), 20e6)

    def test_traffic_follows_the_paper(self):
        ranks = 16
        document = answer("traffic", "--ranks", str(ranks), "--params", "1.5e9")
        last = document["elements"][-1]
        for stage, times in zip(STAGES, (2, 2, 2, 3)):
            exact = times * (ranks - 1) / ranks
            # The embedding is used by two units, and gathered for both.
            self.assertAlmostEqual(last[stage], exact, delta=0.15 if times == 3 else 2e-3)
            parts = sum(row[stage] for row in document["elements"][:-2])
            self.assertEqual(document["elements"][-2][stage], parts)
        # Reduced once a step, or in each micro-step.
        full, shard = answer("traffic", *small("--micro-steps", "4"))["accumulation"]
        self.assertEqual((full["accumulation"], shard["accumulation"]), ("full", "shard"))
        self.assertLess(full["pos+g"], shard["pos+g"])
        of = by("operation", answer(
            "traffic", *small("--model-parallel", "2", "--checkpoint", "pa"))["elements"])
        wide = 128 * 32
        self.assertEqual(of["all-reduce activations (formula)"]["pos"], 12 * wide * 3 // 2)
        self.assertEqual(of["gather checkpoints"]["pos"], wide * 3 // 2)

    def test_a_trillion_parameters_on_100_000_devices_take_no_time(self):
        start = time.monotonic()
        asked = ["--params", "1e12", "--checkpoint", "pa", "--model-parallel", "8"]
        rows = answer("memory", *asked, "--ranks", "100000", "--budget", "80GB")["fits"]
        self.assertEqual([row["this run"] for row in rows], [False, False, False, True])
        document = answer("advise", "--params", "1e12", "--devices", "100000")
        self.assertEqual(document["fitting"][0]["stage"], "pos+g+p")
        self.assertLess(time.monotonic() - start, 20)

    def test_what_takes_long_says_so_on_the_error_stream_alone(self):
        quick = run("memory", *small(), "--json", "-")
        self.assertEqual((quick.returncode, quick.stderr), (0, ""))
        long = run("memory", *small("--layers", "50000"), "--json", "-")
        self.assertEqual(long.returncode, 0)
        lines = long.stderr.splitlines()
        self.assertEqual(lines, [f"planning memory, {2 ** i} s so far" for i in range(len(lines))])
        self.assertGreater(len(lines), 0)
        self.assertEqual(list(json.loads(long.stdout)), list(json.loads(quick.stdout)))

    def test_advice_names_the_first_and_why_others_are_none(self):
        asked = ["advise", "--params", "70e9", "--devices", "64", "--device-memory", "80GB",
                 "--cluster", "dgx-a100"]
        document = answer(*asked)
        first = document["fitting"][0]
        self.assertIn("Take pos+g+p on", document["head"][2])
        steps = [row["step"] for row in document["fitting"]]
        self.assertEqual(steps, sorted(steps))
        self.assertEqual([row["of the first"] for row in document["fitting"]],
                         [step / steps[0] for step in steps])
        self.assertEqual(document["bytes"][-1]["bytes"], first["GB a device"])
        # A tenth is left to others.
        self.assertLessEqual(max(row["GB a device"] for row in document["fitting"]), 72e9)
        self.assertEqual(first["batch"] * first["micro-steps"] * 64 // first["N_m"], 512)
        # The memory command says the same of it, and simulate does of its time.
        of_first = ("--params", "70e9", "--ranks", "64", "--model-parallel", first["N_m"],
                    "--batch", first["batch"], "--micro-steps", first["micro-steps"],
                    "--checkpoint", first["checkpoint"], "--stage", first["stage"])
        again = answer("memory", *of_first)
        self.assertEqual(by("role", again["bytes"])["total"][first["stage"]], first["GB a device"])
        simulated = answer("simulate", *of_first, "--cluster", "dgx-a100")["steps"][0]
        self.assertAlmostEqual(simulated["step"] / first["step"], 1., delta=2e-3)
        self.assertAlmostEqual(simulated["tokens/s"] / first["tokens/s"], 1., delta=2e-3)
        for row in document["rejected"]:
            self.assertRegex(row["why"], r"^needs [\d,.]+ GB of 72.0 GB .*\.$")
        sent = [row["GB sent"] for row in answer(*asked, "--by", "bytes")["fitting"]]
        self.assertEqual(sent, sorted(sent))
        self.assertEqual(len(answer(*asked, "--show", "3")["fitting"]), 3)
        trained = answer(*asked, "--tokens", "2T")["fitting"][0]
        self.assertAlmostEqual(trained["training"], 2e12 / trained["tokens/s"])
        nothing = answer("advise", "--params", "1e12", "--devices", "8")
        self.assertNotIn("fitting", nothing)
        self.assertIn("Nothing fits", nothing["head"][2])
        self.assertEqual(len(nothing["rejected"]), 16)
        reserved = answer(*asked, "--reserve", "50GB")
        self.assertLessEqual(reserved["fitting"][0]["GB a device"], 30e9)


class Files(ProgramTest):
    def test_a_cluster_is_written_changed_and_read(self):
        path = SCRATCH / "mine.json"
        answer("clusters", "dgx-h100")
        run("clusters", "dgx-h100", "--json", path)
        asked = ["advise", "--params", "7e9", "--devices", "16", "--show", "1", "--cluster"]
        self.assertEqual(answer(*asked, path)["fitting"], answer(*asked, "dgx-h100")["fitting"])
        document = json.loads(path.read_text())
        document["clusters"][0]["device"]["flops"] /= 2
        path.write_text(json.dumps(document))
        self.assertGreater(answer(*asked, path)["fitting"][0]["step"],
                           1.3 * answer(*asked, "dgx-h100")["fitting"][0]["step"])
        del document["clusters"][0]["inside"]["rate"]
        path.write_text(json.dumps(document))
        self.refused("'inside' has no 'rate'", *asked, path)
        names = [cluster["name"] for cluster in answer("clusters")["clusters"]]
        self.assertEqual(names, ["dgx2-v100", "dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200",
                                 "cpu2"])
        properties = by("property", answer("clusters")["properties"])
        self.assertEqual(properties["device.memory"]["dgx-h200"], 141e9)

    def test_a_model_is_read_from_its_configuration(self):
        path = SCRATCH / "config.json"
        config = {"model_type": "llama", "num_hidden_layers": 80, "hidden_size": 8192,
                  "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672,
                  "max_position_embeddings": 4096, "vocab_size": 32000}
        path.write_text(json.dumps(config))
        document = answer("memory", "--model", path, "--ranks", "64")
        self.assertIn("A gated decoder of 80 blocks x 8192, 64 and 8 heads, 32000 words, 4096 tokens",
                      document["head"][0])
        self.assertIn("68,976,648,192 parameters", document["head"][0])
        shorter = answer("memory", "--model", path, "--ranks", "64", "--sequence", "2048")
        self.assertIn("2048 tokens", shorter["head"][0])
        self.refused("16 model-parallel ranks cannot share 8 heads of keys and values evenly",
                     "memory", "--model", path, "--ranks", "64", "--model-parallel", "16")
        self.refused("--model", "memory", "--model", path, "--params", "7e9")
        path.write_text(json.dumps(config | {"num_local_experts": 8}))
        self.refused("'num_local_experts' is not known here", "memory", "--model", path)


class Validation(ProgramTest):
    def test_published_rows_are_predicted_by_those_that_calibrate(self):
        found = answer("rows")
        self.assertEqual(len(found["rows"]), 22)
        errors = [row["predicted"] / row["published"] - 1. for row in found["rows"]
                  if row["use"] == "held out"]
        self.assertEqual(len(errors), 14)
        self.assertLessEqual(sum(map(abs, errors)) / len(errors), 0.12)
        self.assertLessEqual(max(map(abs, errors)), 0.3)
        self.assertLessEqual(abs(sum(errors) / len(errors)), 0.05)
        for row in found["rows"]:
            self.assertEqual(row["error"], row["predicted"] / row["published"] - 1.)
        own, null, other = found["held_out"][:3]
        self.assertLess(own["on average"], null["on average"])
        self.assertLess(own["on average"], other["on average"])
        # What is known of the clusters is what the rows say.
        known = by("property", answer("clusters")["properties"])
        for row in found["fractions"]:
            for column, name in (("matrix products", "matrix_fraction"),
                                 ("memory", "memory_fraction"),
                                 ("fused attention", "attention_fraction")):
                self.assertAlmostEqual(known["device." + name][row["cluster"]], row[column],
                                       delta=2e-3)
            most = max(abs(of["error"]) for of in found["rows"]
                       if of["cluster"] == row["cluster"] and of["use"] == "held out")
            self.assertAlmostEqual(known["error"][row["cluster"]], most, delta=0.01)

    def test_advice_is_never_a_twentieth_over_the_best_that_fits(self):
        asked = [] if ALL else ["--questions", "1,5"]
        found = answer("advice", *asked)["advice"]
        self.assertEqual(len(found), 5 if ALL else 2)
        for row in found:
            self.assertGreater(row["tried"], 20, row)
            self.assertGreaterEqual(row["over the best"], -1e-9, row)
            self.assertLessEqual(row["over the best"], 0.05, row)


class Formats(unittest.TestCase):
    def test_text_json_and_csv_say_the_same(self):
        for command in COMMANDS:
            files = [str(SCRATCH / f"{command}.json"), str(SCRATCH / f"{command}.csv")]
            done = run(command, "--json", files[0], "--csv", files[1])
            self.assertEqual((done.returncode, done.stderr), (0, ""), command)
            document = json.loads(pathlib.Path(files[0]).read_text(encoding="utf-8"))
            self.assertEqual((document["schema"], document["command"]), ("zero.plan/1", command))
            lines = list(csv.DictReader(io.StringIO(pathlib.Path(files[1]).read_text())))
            cells = 0
            for name, rows in document.items():
                if not isinstance(rows, list) or name in ("head", "notes"):
                    continue
                for row in rows:
                    cells += len(row) - 1
                    for value in row.values():
                        if isinstance(value, int) and not isinstance(value, bool) and value < 10**6:
                            continue  # may be in another unit
                        if isinstance(value, str):
                            self.assertIn(value, done.stdout)
            self.assertEqual(len(lines), cells, command)
            for line in done.stdout.splitlines():
                self.assertEqual(line, line.rstrip())
            self.assertEqual(run(command, "--csv", "-").stdout,
                             pathlib.Path(files[1]).read_text())

    def test_charts(self):
        for command in COMMANDS:
            charts = json.loads(run(command, "--charts", "--json", "-").stdout).get("charts", [])
            self.assertEqual(bool(charts), command != "pa", command)
            for chart in charts:
                self.assertTrue(chart["title"] and chart["y_label"])
                for series in chart["series"]:
                    points = len(chart["bars"]) if chart["bars"] else len(series["points"])
                    self.assertEqual(len(series["points"]), points)
                    self.assertGreater(points, 0)
                    for x, y in series["points"]:
                        self.assertIsInstance(x + y, (int, float))
            titles = {series["title"] for chart in charts for series in chart["series"]}
            titles |= {bar for chart in charts for bar in chart["bars"]}
            expected = {"pa": None, "memory": "gather_pool", "traffic": "publish parameters",
                        "advise": "model states", "sums": "chained", "table1": "7.5B Pos+g"}
            name = expected.get(command, "Pos+g")
            self.assertTrue(name is None or name in titles, (command, titles))
        nothing = run("advise", "--params", "1e12", "--devices", "8", "--charts",
                      "--json", "-")
        self.assertEqual(nothing.returncode, 0)
        self.assertNotIn("charts", json.loads(nothing.stdout))

    def test_memory_is_drawn_as_bars_and_curves(self):
        found = json.loads(run("memory", "--budget", "32GB", "--charts", "--json", "-").stdout)
        bars, memory, largest = found["charts"]
        held = [row for row in found["bytes"] if row["role"] == "state"][0]
        total = [row for row in found["bytes"] if row["role"] == "total"][0]
        layer = [series for series in bars["series"] if series["title"] == "state"][0]
        for stage in STAGES:
            self.assertEqual(layer["points"][bars["bars"].index(stage)][1], held[stage] / 1e9)
            curve = [series for series in memory["series"] if series["title"] == stage][0]
            self.assertIn([64, total[stage] / 1e9], curve["points"])
        self.assertEqual(len(largest["series"]), 4)


class Mistakes(ProgramTest):
    def test_mistakes_have_one_line(self):
        for arguments, words in (
            ([], "subcommand"),
            (["frob"], "no subcommand 'frob'"),
            (["memory", "--frob"], "--frob"),
            (["memory", "--layers", "3"], "--hidden"),
            (["memory", "--params", "1e9", "--layers", "3", "--hidden", "64"], "--params"),
            (["memory", "--params", "12"], "so few parameters"),
            (["memory", "--params", "many"], "--params"),
            (["memory", "--params", "1e30"], "10^18"),
            (["memory", "--stage", "zero3"], "zero3"),
            (["memory", "--precision", "fp8"], "fp8"),
            (["memory", "--rule", "adamax"], "adamax"),
            (["memory", "--checkpoint", "all"], "all"),
            (["memory", "--ranks", "3", "--model-parallel", "2"], "do not divide 3 ranks"),
            (["memory", "--ranks", "16", "--model-parallel", "16"], "24 heads"),
            (["memory", "--budget", "3XB"], "xb"),
            (["memory", "--budget", "80"], "80 bytes are no device's memory: 80GB?"),
            (["advise", "--device-memory", "80"], "--device-memory"),
            (["memory", "--attention", "linear"], "linear"),
            (["simulate", "--cluster", "dgx2-v100", "--attention", "fused"], "plain or selective"),
            (["advise", "--cluster", "none.json"], "none.json"),
            (["memory", "--micro-steps", "2", "--accumulate", "none"], "full or shard"),
            (["memory", "--batch", "0"], "--batch"),
            (["advise", "--cluster", "dgx"], "dgx2-v100"),
            (["advise", "--reserve", "90GB"], "--reserve"),
            (["table1", "--json"], "--json"),
        ):
            said = self.refused(words, *arguments)
            self.assertTrue(said.startswith("zero-plan: "), said)
        unwritable = run("fig1", "--json", "/no/such/folder/x.json")
        self.assertEqual(unwritable.returncode, 1)
        self.assertIn("cannot write /no/such/folder/x.json", unwritable.stderr)

    def test_help_is_everywhere(self):
        done = run("--help")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(run("--version").stdout, r"^zero-plan \d+\.\d+\.\d+\n$")
        for command in [*COMMANDS, "formats"]:
            self.assertIn(f"\n  {command} ", done.stdout)
            of_command = run(command, "--help")
            self.assertEqual((of_command.returncode, of_command.stderr), (0, ""))
            self.assertIn("--json", of_command.stdout)
        self.assertIn("ZeRO 6.1", run("memory", "--help").stdout)


if __name__ == "__main__":
    ALL = sys.argv[1] == "--all"
    SCRATCH = start(*sys.argv[-3:])
    unittest.main(argv=sys.argv[:1])
