"""Whatever extract.py cannot turn into a test it refuses, with the line; the rest it hands on."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).with_name("extract.py")
CI = "stage dependencies sh cmake/install-deps.sh\ntest() { make check 2>&1; }\n"
PRESETS = '{"workflowPresets": [{"name": "demo"}]}'


def run(text):
    """Exit status, errors, blocks.cmake and the text of each block's file."""
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        (root / ".ci").mkdir()
        (root / ".ci/run").write_text(CI, encoding="utf-8")
        (root / "CMakePresets.json").write_text(PRESETS, encoding="utf-8")
        (root / "doc").mkdir()
        (root / "doc/page.md").write_text(text, encoding="utf-8")
        (root / "doc/other.c").write_text("int a;\n  int b;\n", encoding="utf-8")
        result = subprocess.run(
            [sys.executable, SCRIPT, "--root", root, "--out", root / "out", "doc/page.md"],
            capture_output=True, text=True, check=False)
        files = {path.name: path.read_text(encoding="utf-8") for path in root.glob("out/*")}
        return result.returncode, result.stderr, files


class Extract(unittest.TestCase):
    def refused(self, words, text):
        status, errors, _ = run(text)
        self.assertNotEqual(status, 0)
        self.assertIn(words, errors)

    def test_every_kind(self):
        status, errors, files = run(
            "See [the page](page.md#part) and [a site](https://example.com).\n"
            "<!-- test: program -->\n```cpp\nint main() {}\n```\n"
            "<!-- test: body -->\n```cpp\n#include <map>\ncomm.rank();\n```\n"
            "<!-- test: types -->\n```cpp\nstruct S {};\n```\n"
            "<!-- test: ci -->\n```sh\nsh cmake/install-deps.sh && cmake --workflow --preset demo\n"
            "make check  # a remark\n```\n"
            "<!-- test: run -->\n```sh\ntrue\n```\n"
            "<!-- test: output p -->\n```text\nhello\n```\n"
            "<!-- test: cuda nccl -->\n```cpp\nint f();\n```\n"
            "<!-- test: bench -->\n```cpp\nint main() {}\n```\n"
            "<!-- test: bench 04_own_rule -->\n```cpp\nint main() {}\n```\n"
            "<!-- test: session p -->\n```text\n$ p --x\nhello\n```\n"
            "<!-- test: project -->\n```cmake\nproject(p)\n```\n"
            "<!-- test: main -->\n```cpp\nint main() {}\n```\n"
            "<!-- test: printed -->\n```text\nhello\n```\n"
            "## Part\n")
        self.assertEqual(status, 0, errors)
        calls = files["blocks.cmake"].splitlines()
        self.assertEqual([call.split()[1] for call in calls],
                         ["program", "body", "types", "ci", "run", "output", "cuda",
                          "bench", "bench", "session", "project", "main", "printed"])
        self.assertRegex(files["doc_page_1.cpp"], r'#line 4 ".*page.md"\nint main')
        self.assertRegex(files["doc_page_2.cpp"], r"(?s)^#include <map>.*BLOCK main.*BLOCK\(\).*comm.rank\(\);")
        self.assertIn("int main() {}", files["doc_page_3.cpp"])
        self.assertEqual(files["doc_page_6.txt"], "hello\n")
        self.assertTrue(calls[5].endswith('"p")'))
        self.assertRegex(files["doc_page_7.cu"], r'#line \d+ ".*page.md"\nint f')
        self.assertTrue(calls[6].endswith('"nccl")'))
        self.assertRegex(files["doc_page_8.cpp"], r"^#line \d+ .*\nint main")
        self.assertIn('#include "examples/04_own_rule.cpp"\n#undef main', files["doc_page_9.cpp"])

    def test_types_before_a_body(self):
        status, errors, files = run(
            "<!-- test: types -->\n```cpp\nstruct S {};\n```\n"
            "<!-- test: types -->\n```cpp\nstruct T {};\n```\n"
            "<!-- test: body types -->\n```cpp\nT t;\n```\n"
            "<!-- test: body -->\n```cpp\ncomm.rank();\n```\n")
        self.assertEqual(status, 0, errors)
        self.assertRegex(files["doc_page_3.cpp"],
                         r'(?s)trainer.hpp.*#line 7 ".*page.md"\nstruct T \{\};\n.*main.*#line 11 .*T t;')
        self.assertNotIn("struct S", files["doc_page_3.cpp"])
        self.assertNotIn("struct T", files["doc_page_4.cpp"])
        self.refused("page.md:2: no block has types",
                     "<!-- test: body types -->\n```cpp\nint x;\n```\n")

    def test_refusals(self):
        self.refused("page.md:1: the block has no line", "```cpp\nint x;\n```\n")
        self.refused("page.md:1: the block has no line", "~~~cpp\nint x;\n~~~\n")
        self.refused("blocks in '' are not tested", "```\nint x;\n```\n")
        self.refused("blocks in 'python' are not tested", "```python\n1\n```\n")
        self.refused("'run' is no test", "<!-- test: run -->\n```cpp\nint x;\n```\n")
        self.refused("do not fit", "<!-- test: output -->\n```text\nx\n```\n")
        self.refused("do not fit", "<!-- test: body x -->\n```cpp\nint x;\n```\n")
        self.refused("page.md:1: no block follows", "<!-- test: types -->\n\n```cpp\n```\n")
        self.refused("is not '<!-- test", "<!-- test:types -->\n```cpp\n```\n")
        self.refused("does not end", "<!-- test: types -->\n```cpp\nint x;\n")
        self.refused("does not end", "<!-- test: types -->\n")
        self.refused("leads nowhere", "[gone](gone.md)\n")
        self.refused("no block at all", "nothing\n")
        self.refused("has no heading '#gone'", "[there](page.md#gone)\n")
        self.refused("has no heading '#gone'", "[here](#gone)\n")

    def test_commands(self):
        block = "<!-- test: ci -->\n```sh\n{}\n```\n"
        self.refused("nobody runs 'make'", block.format("make"))
        self.refused("nobody runs 'rm -r x'", block.format("make check && rm -r x"))
        self.refused("nobody runs", block.format("cmake --workflow --preset gone"))
        self.refused("nobody runs", block.format("cmake --workflow --preset demo --fresh"))

    def test_quotes(self):
        block = "<!-- test: quote other.c -->\n```c\n{}\n```\n"
        self.assertEqual(run(block.format("int a;\n\n...\nint b;"))[0], 0)
        self.refused("there is no gone.c", "<!-- test: quote gone.c -->\n```c\nint x;\n```\n")
        self.refused("do not fit", "<!-- test: quote -->\n```c\nint x;\n```\n")
        self.refused("has no line 'int z;' there", block.format("int z;"))
        self.refused("has no line 'int a;' there", block.format("int b;\nint a;"))


if __name__ == "__main__":
    unittest.main()
