"""weight.py counts lines of code, what a header brings along, and what each component may have."""

import contextlib
import io
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "cmake"))
import weight  # noqa: E402
HEADERS = {
    "top.hpp": '#pragma once\n\n#include "zero/room/below.hpp"\n/* two\n   lines */ int top();  // why\n',
    "room/below.hpp": '#pragma once\n#if X\n#include "zero/room/device.cuh"\n#endif\n#include <vector>\n',
    "room/device.cuh": "// only words\n\n",
    "room/inner/alone.hpp": 'char const* url = "http://";\n#include "zero/room/below.hpp"\n',
    "room/mine.hpp": "int mine();\n",
    "c/mine.hpp": '#include "zero/room/mine.hpp"\n#include "zero/c/inside.hpp"\n',
    "c/inside.hpp": "int inside();\n",
}


class Weight(unittest.TestCase):
    def run_script(self, root, *arguments):
        """{first word of a row: its numbers} of each table."""
        done = subprocess.run([sys.executable, ROOT / "cmake" / "weight.py", "--root", root, *arguments],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        tables = [[row.split() for row in table.splitlines()[1:]] for table in done.stdout.split("\n\n")]
        return [{name: [int(number) for number in numbers] for name, *numbers in table} for table in tables]

    def small(self, *arguments):
        with tempfile.TemporaryDirectory() as root:
            for header, text in HEADERS.items():
                path = pathlib.Path(root, "include", "zero", header)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            return self.run_script(root, *arguments)

    def test_rooms_and_headers(self):
        rooms, headers = self.small()
        self.assertEqual(rooms, {".": [1, 5, 3], "room": [3, 8, 6], "room/inner": [1, 2, 2], "c": [2, 3, 3],
                                 "all": [7, 18, 14]})
        self.assertEqual(headers, {"zero/top.hpp": [3, 8], "zero/room/inner/alone.hpp": [3, 7],
                                   "zero/room/mine.hpp": [1, 1], "zero/c/mine.hpp": [3, 4]})

    def test_one_header(self):
        self.assertEqual(self.small("--header", "zero/room/below.hpp"), [{"zero/room/below.hpp": [2, 5]}])

    def budgets(self, code, taken=()):
        """What is wrong with a library of two components, of which `core.hpp` is the core."""
        components = {"core": (100, ()), "mpi": (100, ("mpi/",)), "all": (100, ("both/", "alone/")),
                      "too": (100, ("both/",))}
        with mock.patch.multiple(weight, COMPONENTS=components, TAKEN=taken,
                                 ALLOWANCES={"open": {"mpi": 7}}), contextlib.redirect_stdout(io.StringIO()):
            return weight.hold_budgets(code, {"core.hpp", "both/core.hpp"})

    def test_budgets(self):
        within = {"core.hpp": 60, "both/core.hpp": 43, "mpi/a.hpp": 3, "mpi/b.hpp": 100, "alone/c.hpp": 103}
        self.assertEqual(self.budgets(within), [])
        self.assertEqual(self.budgets(within | {"core.hpp": 61}), ["core has 1 lines more than its budget"])
        self.assertEqual(self.budgets(within | {"mpi/a.hpp": 10}), ["mpi has 7 lines more than its budget"])
        self.assertEqual(self.budgets(within | {"mpi/a.hpp": 10}, ("open",)), [])
        self.assertEqual(self.budgets(within | {"new/a.hpp": 1}), ["new/a.hpp belongs to no component"])
        self.assertEqual(self.budgets(within | {"both/a.hpp": 0}), ["both/a.hpp belongs to all and too"])

    def test_the_library_counted_otherwise(self):
        include = ROOT / "include" / "zero"
        lines = [line.strip() for path in include.rglob("*") if path.is_file()
                 for line in path.read_text(encoding="utf-8").splitlines()]
        # No comment of ours is longer than a line.
        code = [line for line in lines if line and not line.startswith("//")]
        rooms, headers = self.run_script(ROOT)
        self.assertEqual(rooms["all"], [sum(1 for path in include.rglob("*") if path.is_file()),
                                        len(lines), len(code)])
        everything = rooms.pop("all")
        self.assertEqual([sum(column) for column in zip(*rooms.values())], everything)
        self.assertLess(headers["zero/zero.hpp"][1], len(code))


if __name__ == "__main__":
    unittest.main()
