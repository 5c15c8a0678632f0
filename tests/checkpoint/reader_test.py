"""The reader in Python that the guide has finds in checkpoints what export_model says.

usage: reader_test.py READER_DIRECTORY MODEL_PROGRAM STORED_CHECKPOINTS
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

try:
    import numpy
except ImportError as error:
    print(f"skipped: Python cannot import what this test needs: {error}")
    sys.exit(77)

sys.path.insert(0, sys.argv.pop(1))
import read_checkpoint  # noqa: E402

PROGRAM = str(pathlib.Path(sys.argv.pop(1)).resolve())
STORED = pathlib.Path(sys.argv.pop(1))


def exported(path):
    """The tensors of a model file."""
    raw = path.read_bytes()
    length = 8 + int.from_bytes(raw[:8], "little")
    entries = json.loads(raw[8:length])
    entries.pop("__metadata__", None)
    return {name: read_checkpoint.values(entry, raw[length:]).reshape(entry["shape"])
            for name, entry in entries.items()}


class Reader(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.run_path = pathlib.Path(cls.folder.name) / "run"
        subprocess.run([PROGRAM, "save", str(cls.run_path), "3"], check=True, timeout=120)
        cls.last = cls.run_path / "000003-step-3"

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_all_elements_are_those_of_the_exported_model(self):
        manifest, tensors = read_checkpoint.read(self.last)
        self.assertEqual((manifest["step"], len(manifest["files"])), (3, 3))
        masters = exported(self.run_path.parent / "run.master.safetensors")
        self.assertGreater(len(masters), 8)
        compared = 0
        for name, values in masters.items():
            about, arrays = tensors[name]
            self.assertEqual(tuple(about["shape"]), values.shape)
            if values.size == 0:
                continue
            read = arrays["parameter" if about["frozen"] else "master"]
            self.assertTrue(numpy.array_equal(read, values.astype(read.dtype)), name)
            compared += read.size
        self.assertGreater(compared, 5000)
        self.assertTrue(numpy.array_equal(tensors["head"][1]["exp_avg_sq"], tensors["wte"][1]["exp_avg_sq"]))

    def test_parts_of_a_grid_and_layers_of_a_stack_are_put_together(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "run"
            subprocess.run([PROGRAM, "grid", str(path)], check=True, timeout=120)
            _, tensors = read_checkpoint.read(path / "000001-step-0")
            masters = exported(path.parent / "run.master.safetensors")
            self.assertEqual(sorted(masters), ["a", "w"])
            self.assertEqual(masters["a"].shape, (6, 8))
            self.assertEqual(masters["a"][5, 7], 47.25)
            self.assertTrue(numpy.array_equal(tensors["a"][1]["master"], masters["a"]))
            layers = [tensors[f"w[{layer}]"] for layer in range(3)]
            self.assertEqual([about["layers"] for about, _ in layers], [3] * 3)
            self.assertTrue(numpy.array_equal(numpy.stack([arrays["master"] for _, arrays in layers]), masters["w"]))

    def test_tensors_of_several_optimizers_are_told_apart(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "run"
            subprocess.run([PROGRAM, "several", str(path)], check=True, timeout=120)
            _, tensors = read_checkpoint.read(path / "000001-step-1")
            self.assertEqual(tensors["critic/wte"][0]["steps"], 2)
            self.assertEqual(tensors["generator/wte"][0]["steps"], 1)
            model = exported(path.parent / "run.critic.safetensors")
            for name in ("h0.frozen", "h3.frozen"):
                self.assertTrue(numpy.array_equal(tensors[f"critic/{name}"][1]["parameter"], model[name]))
            self.assertFalse(numpy.array_equal(tensors["critic/wte"][1]["master"], tensors["generator/wte"][1]["master"]))
            self.assertTrue(numpy.array_equal(tensors["critic/head"][1]["master"], tensors["critic/wte"][1]["master"]))

    def test_frozen_bytes_are_read_and_need_not_be_there(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "run"
            subprocess.run([PROGRAM, "frozen", str(path)], check=True, timeout=120)
            _, tensors = read_checkpoint.read(path.with_name("run.all") / "000001-step-0")
            self.assertEqual(tensors["codes"][1]["parameter"].tobytes(), bytes(7 * i for i in range(13)))
            _, tensors = read_checkpoint.read(path / "000001-step-0")
            self.assertEqual(tensors["codes"][1], {})
            self.assertEqual(sorted(tensors["wte"][1]), ["exp_avg", "exp_avg_sq", "master"])
            run = subprocess.run([sys.executable, read_checkpoint.__file__, str(path / "000001-step-0")],
                                 capture_output=True, text=True, timeout=60)
            self.assertIn("codes [13], 0 updates: left out", run.stdout)

    def test_a_checkpoint_of_another_build_reads(self):
        found = [each.parent for each in STORED.rglob("manifest.json")]
        self.assertTrue(found)
        for checkpoint in found:
            _, tensors = read_checkpoint.read(checkpoint)
            for about, arrays in tensors.values():
                for values in arrays.values():
                    self.assertEqual(list(values.shape), about["shape"])
                    self.assertTrue(numpy.isfinite(values).all())

    @unittest.skipUnless(read_checkpoint.checksum, "Python has no xxhash")
    def test_every_flipped_byte_is_found(self):
        for name in ("manifest.json", "rank-00001.safetensors"):
            size = (self.last / name).stat().st_size
            for at in [*range(0, size, max(1, size // 50)), size - 1]:
                with tempfile.TemporaryDirectory() as folder:
                    copy = pathlib.Path(folder) / "copy"
                    shutil.copytree(self.last, copy)
                    raw = bytearray((copy / name).read_bytes())
                    raw[at] ^= 1
                    (copy / name).write_bytes(raw)
                    with self.assertRaises((ValueError, KeyError), msg=f"{name} {at}"):
                        read_checkpoint.read(copy)


if __name__ == "__main__":
    unittest.main()
