"""A name means one thing: classes that are defined in several files are few, and each has a reason."""

import pathlib
import re
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEFINITION = re.compile(r"^ *(?:class|struct|enum class) ([A-Z][A-Za-z]+)(?: final)?(?: :|\s*\{)", re.MULTILINE)

# At most 12.
REASONS = {
    "Checkpoints": "public: of a C++ trainer, and the choice of checkpoints in a list of policies for C",
    "Kernels": "public where NCCL's are instantiated; of an optimizer, the calls of its space's kernels",
    "Mask": "nested: each kind of pack has its own, and kernels call it by the pack's name",
    "Options": "public: the options of one communicator, nested in its name",
    "Ordered": "public: how a communicator adds, nested in its name",
    "Ticket": "asked for by concepts: every communicator and transfer has its own",
}


def defined_twice(include):
    """{name: files} of classes with more than one definition."""
    found = {}
    for path in sorted(include.rglob("*")):
        if path.is_file():
            for name in DEFINITION.findall(path.read_text(encoding="utf-8")):
                found.setdefault(name, []).append(path.relative_to(include).as_posix())
    return {name: files for name, files in found.items() if len(files) > 1}


class Names(unittest.TestCase):
    def test_what_is_found(self):
        with tempfile.TemporaryDirectory() as root:
            for name, text in {"a.hpp": "class One {\n};\nclass Ahead;\n  struct Two final : One {};\n",
                               "b/b.hpp": "enum class Two { x };\nenum class One : int;\nclass Ahead {};\n",
                               "c.hpp": "struct One\n{};\nstruct Three { One Two; };\n"}.items():
                path = pathlib.Path(root, name)
                path.parent.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")
            self.assertEqual(defined_twice(pathlib.Path(root)),
                             {"One": ["a.hpp", "b/b.hpp", "c.hpp"], "Two": ["a.hpp", "b/b.hpp"]})

    def test_the_library(self):
        found = defined_twice(ROOT / "include" / "zero")
        self.assertLessEqual(len(REASONS), 12)
        new = {name: files for name, files in found.items() if name not in REASONS}
        self.assertEqual(new, {}, "defined in several files without a reason in this test")
        self.assertEqual(set(REASONS) - set(found), set(), "no longer defined in several files")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
