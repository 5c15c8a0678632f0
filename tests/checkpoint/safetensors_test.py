"""The format's own Python package reads what export_model writes, and writes what
load_parameters_from reads.

usage: safetensors_test.py MODEL_PROGRAM
"""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

try:
    import numpy
    import safetensors
    import safetensors.numpy
except ImportError as error:
    print(f"skipped: Python cannot import what this test needs: {error}")
    sys.exit(77)

PROGRAM = str(pathlib.Path(sys.argv.pop(1)).resolve())
SHAPES = {
    "wte": (37, 5), "wpe": (1031,), "h0.w": (23, 89), "h0.frozen": (40,), "h0.b": (),
    "h1.none": (0, 7), "h1.c": (3,), "h2.w": (4097,), "h3.frozen": (9,), "ln.g": (511,),
}
FROZEN = {"h0.frozen", "h3.frozen"}
ORDER = ["wte", "wpe", "h0.w", "h0.frozen", "h0.b", "h1.none", "h1.c", "h2.w", "h3.frozen", "ln.g"]


def initial(name):
    """What tests/support/toy_model.hpp fills a tensor with, computed here once more."""
    count = int(numpy.prod(SHAPES[name], dtype=int))
    with numpy.errstate(over="ignore"):
        x = (
            numpy.uint64(ORDER.index(name)) * numpy.uint64(0x9E3779B97F4A7C15)
            + numpy.arange(count, dtype=numpy.uint64) * numpy.uint64(0xBF58476D1CE4E5B9)
            + numpy.uint64(0x94D049BB133111EB)
        )
        x ^= x >> numpy.uint64(31)
        x *= numpy.uint64(0x7FB5D329728EA185)
        x ^= x >> numpy.uint64(27)
    values = (x >> numpy.uint64(40)).astype(numpy.float32) * numpy.float32(2.0**-24)
    return (values - numpy.float32(0.5)).reshape(SHAPES[name])


def to_bf16(values):
    """Rounded to nearest even, as 16 bits."""
    bits = values.astype(numpy.float32).view(numpy.uint32).astype(numpy.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16)


def of_bf16(bits):
    return (bits.astype(numpy.uint32) << 16).view(numpy.float32)


ROUND = {
    "fp32": lambda values: values,
    "fp16": lambda values: values.astype(numpy.float16).astype(numpy.float32),
    "bf16": lambda values: of_bf16(to_bf16(values)).reshape(values.shape),
}


class Safetensors(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_program(self, *arguments):
        run = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=120)
        self.assertEqual(run.returncode, 0, run.stderr)
        return run.stdout

    def load(self, path):
        """Tensors as floats. The package's numpy part knows no bf16: its bytes are read as they are."""
        tensors = {}
        for name, entry in safetensors.deserialize(path.read_bytes()):
            data = bytes(entry["data"])
            if entry["dtype"] == "BF16":
                values = of_bf16(numpy.frombuffer(data, numpy.uint16))
            else:
                dtype = {"F32": numpy.float32, "F16": numpy.float16}[entry["dtype"]]
                values = numpy.frombuffer(data, dtype).astype(numpy.float32)
            tensors[name] = values.reshape(entry["shape"])
        return tensors

    def check_tensors(self, tensors, precision, master=False):
        self.assertEqual(set(tensors), set(SHAPES))
        for name, values in tensors.items():
            expected = initial(name)
            if not master or name in FROZEN:
                expected = ROUND[precision](expected)
            self.assertEqual(values.shape, SHAPES[name])
            numpy.testing.assert_array_equal(values, expected, name)

    def test_one_file_of_each_type_is_read(self):
        for precision in ROUND:
            for kind in ("parameter", "master"):
                with self.subTest(precision=precision, kind=kind):
                    path = self.folder / "m.safetensors"
                    self.run_program("write", precision, kind, 5 * 10**9, path)
                    self.check_tensors(self.load(path), precision, kind == "master")
                    with safetensors.safe_open(path, "numpy") as file:
                        self.assertEqual(file.metadata(), {"format": "pt", "head": "wte"})
        # By the package's own function, where numpy has the type.
        self.run_program("write", "fp16", "parameter", 5 * 10**9, path)
        self.check_tensors(
            {n: v.astype(numpy.float32) for n, v in safetensors.numpy.load_file(path).items()}, "fp16"
        )

    def test_several_files_are_read(self):
        self.run_program("write", "bf16", "master", 9000, self.folder / "model.safetensors")
        index = json.loads((self.folder / "model.safetensors.index.json").read_text())
        self.assertEqual(index["metadata"]["total_size"], sum(4 * initial(n).size for n in SHAPES))
        tensors = {}
        for file in set(index["weight_map"].values()):
            for name, values in self.load(self.folder / file).items():
                self.assertEqual(index["weight_map"][name], file)
                tensors[name] = values
        self.check_tensors(tensors, "bf16", master=True)

    def check_read(self, path, precision):
        lines = [line.split() for line in self.run_program("read", path).splitlines()]
        self.assertEqual([line[0] for line in lines], [*ORDER, "head"])
        for name, first, last, total in lines:
            values = ROUND[precision](initial("wte" if name == "head" else name)).ravel()
            if values.size:
                self.assertEqual((float(first), float(last)), (float(values[0]), float(values[-1])))
            self.assertAlmostEqual(float(total), float(values.sum(dtype=numpy.float64)), places=9)

    def test_what_the_package_writes_is_loaded(self):
        tensors = {name: initial(name) for name in SHAPES}
        path = self.folder / "theirs.safetensors"
        safetensors.numpy.save_file(tensors, path, metadata={"head": "wte"})
        self.check_read(path, "fp32")
        safetensors.numpy.save_file({n: v.astype(numpy.float16) for n, v in tensors.items()}, path)
        self.check_read(path, "fp16")
        # numpy has no bf16; the format's description says how it lies in a file.
        header, data = {"__metadata__": {"head": "wte"}}, b""
        for name, values in tensors.items():
            part = to_bf16(values).tobytes()
            header[name] = {"dtype": "BF16", "shape": list(values.shape),
                            "data_offsets": [len(data), len(data) + len(part)]}
            data += part
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + data)
        safetensors.deserialize(path.read_bytes())  # the package agrees that it is one
        self.check_read(path, "bf16")

    def test_adapters_alone_are_read_and_bytes_by_their_name(self):
        self.run_program("frozen", self.folder / "run")
        adapters = self.folder / "run.adapters.safetensors"
        tensors = self.load(adapters)
        self.assertEqual(set(tensors), set(SHAPES) - FROZEN)
        for name, values in tensors.items():
            numpy.testing.assert_array_equal(values, ROUND["bf16"](initial(name)), name)
        with safetensors.safe_open(adapters, "numpy") as file:
            self.assertEqual(file.metadata(), {"format": "pt", "head": "wte"})
        entries = dict(safetensors.deserialize((self.folder / "run.all.safetensors").read_bytes()))
        self.assertEqual(set(entries), {*SHAPES, "codes"})
        self.assertEqual((entries["codes"]["dtype"], entries["codes"]["shape"]), ("F8_E4M3", [13]))
        self.assertEqual(bytes(entries["codes"]["data"]), bytes(7 * i for i in range(13)))

    def test_several_files_of_theirs_are_loaded(self):
        names = list(SHAPES)
        weight_map = {}
        for i, part in enumerate((names[:4], names[4:])):
            file = f"model-{i + 1:05}-of-00002.safetensors"
            safetensors.numpy.save_file({name: initial(name) for name in part}, self.folder / file)
            weight_map.update(dict.fromkeys(part, file))
        (self.folder / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map}))
        self.check_read(self.folder, "fp32")


if __name__ == "__main__":
    unittest.main()
