"""Runs zero-checkpoint as a user would.

usage: tool_test.py ZERO_CHECKPOINT MODEL_PROGRAM
"""

import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

TOOL = str(pathlib.Path(sys.argv.pop(1)).resolve())
PROGRAM = str(pathlib.Path(sys.argv.pop(1)).resolve())
TENSORS = ["wte", "wpe", "h0.w", "h0.frozen", "h0.b", "h1.none", "h1.c", "h2.w", "h3.frozen", "ln.g", "head"]


class Tool(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.saved = tempfile.TemporaryDirectory()
        subprocess.run([PROGRAM, "save", f"{cls.saved.name}/run", "3"], check=True, timeout=120)

    @classmethod
    def tearDownClass(cls):
        cls.saved.cleanup()

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        shutil.copytree(self.saved.name, self.folder, dirs_exist_ok=True)
        self.run_path = self.folder / "run"
        self.last = self.run_path / "000003-step-3"

    def tool(self, *arguments, status=0):
        run = subprocess.run([TOOL, *map(str, arguments)], capture_output=True, text=True, timeout=60)
        self.assertEqual(run.returncode, status, run.stdout + run.stderr)
        if status == 2:
            self.assertEqual(run.stdout, "")
            self.assertRegex(run.stderr, r"\Azero-checkpoint: [^\n]+\n\Z")
            return run.stderr
        self.assertEqual(run.stderr, "")
        return run.stdout

    def json(self, *arguments, status=0):
        return json.loads(self.tool(*arguments, "--json", status=status))

    def flip(self, file, at):
        data = bytearray(file.read_bytes())
        data[at] ^= 4
        file.write_bytes(data)

    def test_list_has_complete_checkpoints_and_says_what_is_damaged(self):
        found = self.json("list", self.run_path)
        self.assertEqual([c["step"] for c in found["checkpoints"]], [1, 2, 3])
        self.assertEqual(found["checkpoints"][2]["path"], str(self.last))
        self.assertEqual(self.tool("list", self.run_path).splitlines()[0],
                         f"{self.run_path}/000001-step-1  step 1")
        (self.last / "rank-00001.safetensors").unlink()
        found = self.json("list", self.run_path)
        self.assertEqual([c["step"] for c in found["checkpoints"]], [1, 2])
        self.assertEqual(len(found["damaged"]), 1)
        self.assertIn("rank-00001.safetensors", found["damaged"][0])
        self.assertIn("damaged: ", self.tool("list", self.run_path))

    def test_show(self):
        shown = self.json("show", self.last)
        self.assertEqual(shown, self.json("show", self.run_path))  # the newest
        self.assertEqual((shown["step"], shown["ranks"], shown["user"]), (3, 3, {"epoch": 3}))
        self.assertEqual(shown["bytes"], sum(f.stat().st_size for f in self.last.glob("rank-*")))
        policies = shown["optimizers"][0]["policies"]
        self.assertEqual((policies["stage"], policies["world_size"]), ("Pos+g+p", 3))
        self.assertEqual([t["name"] for t in shown["tensors"]], TENSORS)
        for tensor in shown["tensors"]:
            count = 1
            for extent in tensor["shape"]:
                count *= extent
            names = ["parameter"] if tensor["frozen"] else ["exp_avg", "exp_avg_sq", "master"]
            self.assertEqual(sorted(tensor["arrays"]), [] if not count or tensor["tied_to"] else names)
            for name, array in tensor["arrays"].items():
                self.assertEqual(array["dtype"], "bf16" if name == "parameter" else "fp32")
                end = 0
                for run in array["runs"]:
                    self.assertEqual(run["first"], end)
                    end += run["count"]
                self.assertEqual(end, count)
        self.assertEqual(shown["tensors"][-1]["tied_to"], "wte")
        text = self.tool("show", self.last)
        for line in ("stage: Pos+g+p", "head [37, 5] unit 6, tied to wte",
                     "  master fp32  rank 0: 0-511, rank 1: 512-1023, rank 2: 1024-1030"):
            self.assertIn(line, text.splitlines())

    def test_verify(self):
        self.assertEqual(self.tool("verify", self.last), f"{self.last} is as it was saved\n")
        self.assertIs(self.json("verify", self.last)["sound"], True)
        self.flip(self.last / "rank-00001.safetensors", 40)
        for path in (self.last, self.run_path):  # the newest that is whole is another one
            self.assertIn("header of", self.tool("verify", path, status=1))
            self.assertIn(str(self.last), self.json("verify", path, status=1)["problems"][0])
        self.assertEqual([c["step"] for c in self.json("list", self.run_path)["checkpoints"]], [1, 2])
        self.flip(self.last / "rank-00001.safetensors", 40)
        self.flip(self.last / "rank-00002.safetensors", -1)
        for problem in (self.tool("verify", self.last, status=1),
                        self.json("verify", self.last, status=1)["problems"][0]):
            self.assertIn("rank-00002.safetensors' of rank 2 is damaged", problem)

    def test_without_a_manifest(self):
        for path in self.run_path.glob("0*"):
            (path / "manifest.json").unlink()
        for path in (self.last, self.run_path):
            self.assertIn("has no manifest.json", self.tool("verify", path, status=2))

    def test_diff(self):
        self.assertEqual(self.tool("diff", self.last, self.run_path), "the same\n")
        self.assertEqual(self.json("diff", self.last, self.last)["differences"], [])
        first = self.run_path / "000001-step-1"
        found = self.json("diff", first, self.last, status=1)["differences"]
        self.assertIn({"step": [1, 3]}, found)
        arrays = {d["tensor"]: d for d in found if "tensor" in d}
        # Without gradients there is weight decay alone, and not for all.
        self.assertEqual(set(arrays), {"wte", "wpe", "h0.w", "h1.c", "h2.w"})
        self.assertEqual(arrays["wpe"]["array"], "master")
        self.assertEqual((arrays["wpe"]["elements"], arrays["wpe"]["differing"]), (1031, 1031))
        self.assertTrue(1e-6 < arrays["wpe"]["largest"] < 1e-4)
        self.assertIn("wpe, master: 1031 of 1031 differ, by at most ",
                      self.tool("diff", first, self.last, status=1))
        self.flip(self.last / "rank-00000.safetensors", -1)
        self.assertIn("is damaged", self.tool("diff", first, self.last, status=2))

    def test_export_writes_what_the_optimizer_would(self):
        out = self.folder / "out.safetensors"
        for dtype in ("parameter", "master"):
            report = self.json("export", self.last, out, "--dtype", dtype)
            self.assertEqual(report, {"path": str(out), "bytes": out.stat().st_size})
            expected = self.folder / f"run.{dtype}.safetensors"
            self.assertEqual(out.read_bytes(), expected.read_bytes())
        report = self.json("export", self.last, out, "--max-file-bytes", "9000")
        self.assertEqual(report["path"], str(out) + ".index.json")
        self.assertEqual(len(list(self.folder.glob("out-0000?-of-00003.safetensors"))), 3)
        # As good as the optimizer's own to whoever reads it.
        again = [subprocess.run([PROGRAM, "read", path], capture_output=True, check=True).stdout
                 for path in (report["path"], self.folder / "run.parameter.safetensors")]
        self.assertEqual(again[0], again[1])

    def test_several_optimizers(self):
        several = self.folder / "several"
        subprocess.run([PROGRAM, "several", several], check=True, timeout=120)
        self.assertIs(self.json("verify", several)["sound"], True)
        shown = self.json("show", several)
        self.assertEqual((shown["step"], shown["ranks"]), (1, 2))
        self.assertEqual([(o["name"], o["step"]) for o in shown["optimizers"]], [("generator", 1), ("critic", 2)])
        names = [f"{optimizer}/{tensor}" for optimizer in ("generator", "critic") for tensor in TENSORS]
        self.assertEqual([t["name"] for t in shown["tensors"]], names)
        self.assertIn("optimizer: critic, step 2", self.tool("show", several).splitlines())
        self.assertEqual(self.tool("diff", several, several), "the same\n")
        out = self.folder / "out.safetensors"
        self.tool("export", several, out, "--optimizer", "critic")
        self.assertEqual(out.read_bytes(), (self.folder / "several.critic.safetensors").read_bytes())
        self.assertIn("'generator', 'critic'", self.tool("export", several, out, status=2))
        self.assertIn("no optimizer 'x'", self.tool("export", several, out, "--optimizer", "x", status=2))
        self.assertIn("no optimizer 'x'", self.tool("export", self.last, out, "--optimizer", "x", status=2))

    def test_frozen_tensors_that_were_left_out_are_told_and_need_not_be_there(self):
        run, everything = self.folder / "adapters", self.folder / "adapters.all"
        subprocess.run([PROGRAM, "frozen", run], check=True, timeout=120)
        self.assertIs(self.json("verify", run)["sound"], True)
        left_out = {t["name"] for t in self.json("show", run)["tensors"] if t["left_out"]}
        self.assertEqual(left_out, {"h0.frozen", "h3.frozen", "codes"})
        self.assertIn("codes [13] unit 0, frozen, left out", self.tool("show", run).splitlines())
        self.assertEqual(self.tool("diff", everything, everything), "the same\n")
        found = self.json("diff", run, everything, status=1)["differences"]
        self.assertEqual({(d["tensor"], d["array"], d["only"]) for d in found},
                         {(name, "parameter", "b") for name in left_out})
        out = self.folder / "out.safetensors"
        self.assertIn("which is frozen and was left out", self.tool("export", run, out, status=2))
        for checkpoint in (run, everything):
            self.tool("export", checkpoint, out, "--without-frozen")
            self.assertEqual(out.read_bytes(), (self.folder / "adapters.adapters.safetensors").read_bytes())
        self.tool("export", everything, out)
        self.assertEqual(out.read_bytes(), (self.folder / "adapters.all.safetensors").read_bytes())

    def test_export_refuses_values_that_the_type_cannot_hold_or_saturates_them(self):
        large = self.folder / "large"
        subprocess.run([PROGRAM, "large", large], check=True, timeout=120)
        out = self.folder / "out.safetensors"
        self.assertIn("element 2 of tensor 'w' is 100000, which would become infinite in fp16; with overflow = "
                      "saturate", self.tool("export", large, out, status=2))
        self.assertEqual(list(self.folder.glob("out*")), [])
        self.tool("export", large, out, "--overflow", "saturate")
        self.assertEqual(out.read_bytes()[-8:], struct.pack("<4e", 0, 0, 65504, 0))
        self.tool("export", large, out, "--dtype", "master")
        self.assertEqual(out.read_bytes()[-16:], struct.pack("<4f", 0, 0, 1e5, 0))
        self.assertIn("--overflow", self.tool("export", large, out, "--overflow", "ignore", status=2))

    def test_export_of_a_damaged_checkpoint_leaves_nothing(self):
        self.flip(self.last / "rank-00001.safetensors", -1)
        out = self.folder / "out.safetensors"
        self.assertIn("is damaged", self.tool("export", self.last, out, status=2))
        self.assertEqual(list(self.folder.glob("out*")), [])

    def raw(self, *arguments):
        run = subprocess.run([TOOL, *arguments], capture_output=True, timeout=60)
        return run.returncode, run.stdout, run.stderr

    def test_a_name_that_is_no_text_is_shown_in_json_all_the_same(self):
        odd = os.fsencode(self.folder) + b"/r\xff\xc2n"
        os.rename(self.run_path, odd)
        for command in (b"list", b"show", b"verify"):
            status, out, err = self.raw(command, odd, b"--json")
            self.assertEqual((status, err), (0, b""))
            told = json.loads(out)
            paths = [c["path"] for c in told["checkpoints"]] if command == b"list" else [told["path"]]
            for path in paths:
                self.assertRegex(path, "/r\ufffd\ufffdn/00000.-step-.\\Z")
        os.unlink(odd + b"/000003-step-3/rank-00001.safetensors")
        self.assertIn("r\ufffd\ufffdn", json.loads(self.raw(b"list", odd, b"--json")[1])["damaged"][0])
        self.assertIn(b"/r??n/000001-step-1  step 1\n", self.raw(b"list", odd)[1])
        status, out, err = self.raw(b"diff", odd + b"/000001-step-1", odd + b"/000002-step-2", b"--json")
        self.assertEqual((status, err), (1, b""))
        self.assertIn("r\ufffd\ufffdn", json.loads(out)["a"])

    def test_nothing_that_a_terminal_obeys_is_printed(self):
        harmless = "caf\u00e9 \u6a21\u578b \U0001f600"
        harmful = ["\x1b[31m", "\x07", "\x7f", "\x80", "\x85", "\x9b31m", "\x9f", "\xad", "\u061c",
                   "\u200b", "\u200f", "\u2028", "\u202e", "\u2066", "\ufeff", "\ufff9", "\ue000",
                   "\U000e0041", "\U0010ffff"]
        # As UTF-8 too long, half a pair, beyond the last, and a letter cut short.
        broken = [b"\xc0\x9b", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\x9b"]
        odd = self.folder / ("run" + harmless + "".join(harmful))
        path = os.fsencode(odd) + b"".join(broken)
        os.rename(self.run_path, path)
        first, last = path + b"/000001-step-1", path + b"/000003-step-3"
        with open(last + b"/rank-00002.safetensors", "r+b") as file:
            file.write(b"?")
        commands = [[b"list", path], [b"show", path], [b"verify", first], [b"verify", last],
                    [b"diff", first, last], [b"export", first, path + b".out"],
                    [b"show", path + b"/none"], [b"show", path, path]]
        said = b""
        for command in commands + [[*command, b"--json"] for command in commands]:
            _, out, err = self.raw(*command)
            said += out + err
            for text in (out, err):
                shown = text.decode()
                for letters in harmful:
                    self.assertNotIn(letters[0], shown, command)
                self.assertNotIn("\ufffd", shown)
            if b"--json" in command:
                self.assertTrue(out.isascii())
        self.assertIn(harmless, said.decode())
        self.assertIn(harmless + "?[31m???", said.decode())

    def test_bad_input_is_one_line_and_a_status(self):
        none = self.folder / "none"
        for command in (["list", none], ["show", none], ["verify", none], ["diff", none, self.last],
                        ["export", none, self.folder / "x"]):
            self.assertIn(f"there is no directory '{none}'", self.tool(*command, status=2))
        self.assertIn("none?[31m?x'", self.tool("show", f"{none}\n[31m\x1bx", status=2))
        none.mkdir()
        self.assertIn("has no manifest.json", self.tool("show", none, status=2))
        (none / "manifest.json").write_text("{}\n\x1b[31m")
        self.assertIn("is no manifest of a checkpoint", self.tool("show", none, status=2))
        self.assertIn("cannot create", self.tool("export", self.last, none / "a" / "b", status=2))
        for arguments in ([], ["show"], ["frob"], ["diff", self.last], ["list", none, "--x"],
                          ["export", self.last, "x", "--dtype", "F8"]):
            self.tool(*arguments, status=2)
        self.assertIn("export", self.tool("--help"))
        self.assertRegex(self.tool("--version"), r"^zero-checkpoint \d+\.\d+\.\d+\n$")
        for command in ("list", "show", "verify", "diff", "export"):
            self.assertIn("--json", self.tool(command, "--help"))


if __name__ == "__main__":
    unittest.main()
