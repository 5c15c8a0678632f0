"""The format's own Python package reads what the example writes, and writes what the example reads.

usage: gguf_test.py PROGRAM
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

try:
    import gguf
    import numpy
except ImportError as error:
    print(f"skipped: Python cannot import what this test needs: {error}")
    sys.exit(77)

PROGRAM = str(pathlib.Path(sys.argv.pop(1)).resolve())
SHAPES = {
    "token_embd.weight": (37, 5), "blk.0.attn_qkv.weight": (3, 23, 89), "blk.0.scale": (1,),
    "output_norm.weight": (4097,),
}


def initial(name):
    """What the example fills a tensor with."""
    count = int(numpy.prod(SHAPES[name]))
    values = len(name) + numpy.arange(count, dtype=numpy.float32) / numpy.float32(1024)
    return values.astype(numpy.float32).reshape(SHAPES[name])


class Gguf(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "model.gguf"

    def run_program(self, *arguments):
        return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=120,
                              check=False)

    def check_written(self):
        run = self.run_program("write", self.path)
        self.assertEqual(run.returncode, 0, run.stderr)
        reader = gguf.GGUFReader(self.path)
        self.assertEqual([tensor.name for tensor in reader.tensors], list(SHAPES))
        for tensor in reader.tensors:
            self.assertEqual(tensor.tensor_type, gguf.GGMLQuantizationType.F32)
            numpy.testing.assert_array_equal(tensor.data, initial(tensor.name), tensor.name)
        self.assertIn("general.architecture", reader.fields)

    def test_what_the_example_writes_is_read(self):
        self.check_written()
        size = self.path.stat().st_size
        self.path.write_bytes(b"?" * (size + 4096))  # over a longer file
        self.check_written()
        self.assertEqual(self.path.stat().st_size, size)

    def write(self, alignment=None, dtype=numpy.float32, shapes=None):
        """A file of the package's, with keys of every kind, and a tensor that nobody asks for."""
        writer = gguf.GGUFWriter(self.path, "llama")
        if alignment:
            writer.add_custom_alignment(alignment)
        writer.add_name("a name")
        writer.add_array("tokens", ["a", "", "long"])
        writer.add_array("numbers", [1, 2, 3])
        writer.add_bool("yes", True)
        writer.add_float64("half", 0.5)
        writer.add_tensor("other", numpy.ones(3, numpy.float32))
        for name in reversed(SHAPES):
            values = initial(name) * numpy.float32(3)
            writer.add_tensor(name, values.reshape((shapes or {}).get(name, values.shape)).astype(dtype))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def test_what_the_package_writes_is_read(self):
        for alignment in (None, 128):
            with self.subTest(alignment=alignment):
                self.write(alignment)
                run = self.run_program("read", self.path)
                self.assertEqual(run.returncode, 0, run.stderr)
                values = numpy.array(run.stdout.split(), numpy.float32)
                expected = [(initial(name) * numpy.float32(3)).ravel() for name in SHAPES]
                numpy.testing.assert_array_equal(values, numpy.concatenate(expected))

    def write_base(self, kind):
        """Two blocks of a quantised matrix and a norm in F16; no adapters."""
        writer = gguf.GGUFWriter(self.path, "llama")
        random = numpy.random.default_rng(1)
        expected = {}
        for block in (1, 0):
            up, norm = f"blk.{block}.ffn_up.weight", f"blk.{block}.ffn_norm.weight"
            values = random.standard_normal((96, 256), numpy.float32)
            expected[up] = gguf.quants.quantize(values, kind)
            expected[norm] = random.standard_normal(256, numpy.float32).astype(numpy.float16)
            writer.add_tensor(up, expected[up], raw_dtype=kind)
            writer.add_tensor(norm, expected[norm])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return expected

    def test_a_quantised_base_is_read_as_bytes(self):
        for kind, row_bytes in ((gguf.GGMLQuantizationType.Q8_0, 272), (gguf.GGMLQuantizationType.Q4_0, 144)):
            with self.subTest(kind=kind):
                expected = self.write_base(kind)
                run = self.run_program("base", self.path, row_bytes)
                self.assertEqual(run.returncode, 0, run.stderr)
                words = run.stdout.split()
                # Of a third of the file and the next rank's, to compare. Shares are padded.
                whole = sum(values.nbytes for values in expected.values())
                self.assertLess(whole // 4, int(words[0]))
                self.assertLess(int(words[0]), 0.75 * whole)
                count = 2 * 96 * row_bytes
                found = numpy.array(words[1:1 + count], numpy.uint8)
                matrices = [expected[f"blk.{block}.ffn_up.weight"].ravel() for block in (0, 1)]
                numpy.testing.assert_array_equal(found, numpy.concatenate(matrices))
                norms = [expected[f"blk.{block}.ffn_norm.weight"] for block in (0, 1)]
                numpy.testing.assert_array_equal(numpy.array(words[1 + count:], numpy.float16),
                                                 numpy.concatenate(norms))
                refused = self.run_program("base", self.path, row_bytes + 2)
                self.assertIn("ffn_up.weight has another shape there", refused.stderr)

    def test_what_does_not_fit_is_refused(self):
        for change in ({"dtype": numpy.float64}, {"shapes": {"token_embd.weight": (5, 37)}}):
            with self.subTest(change=change):
                self.write(**change)
                run = self.run_program("read", self.path)
                self.assertNotEqual(run.returncode, 0)
                self.assertIn("has another shape there, or another type", run.stderr)
        self.path.write_bytes(self.path.read_bytes()[:-3000])
        self.assertNotEqual(self.run_program("read", self.path).returncode, 0)
        self.path.write_bytes(b"no model of any kind")
        self.assertIn("is no GGUF file", self.run_program("read", self.path).stderr)


if __name__ == "__main__":
    unittest.main()
