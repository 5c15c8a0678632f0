"""compile_time.py compiles what its rows say, with a compiler that only says how it was called.

usage: compile_time_test.py COMPILE_TIME_PY
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(sys.argv.pop(1)).resolve()

COMPILER = """#!/bin/sh
case "$*" in *" -E "*) echo "namespace v0_0_flags"; exit ;; esac
for word; do case $word in *unit.cpp) source=$word ;; esac; done
echo "$* $(grep -c train_ "$source") $(grep -o 'stage::[A-Za-z]*' "$source" | sort -u | tr '\\n' ' ')" >>"$0.log"
"""


class CompileTime(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.compiler = pathlib.Path(scratch.name, "compiler")
        self.compiler.write_text(COMPILER)
        self.compiler.chmod(0o755)

    def run_script(self, *arguments):
        return subprocess.run([sys.executable, SCRIPT, "--compiler", self.compiler, *arguments],
                              capture_output=True, text=True)

    def test_what_is_compiled(self):
        done = self.run_script("--runs", "2", "--json", "further stage, declarations", "zero.hpp")
        rows = {row["name"]: row for row in json.loads(done.stdout)}
        # What a choice adds is known where the loop is measured, too.
        self.assertEqual(list(rows), ["zero.hpp", "loop, declarations", "further stage, declarations"])
        calls = pathlib.Path(f"{self.compiler}.log").read_text().splitlines()
        self.assertEqual(calls[:6], calls[6:])
        flags = ["-DZERO_COMPILED_" in call and "v0_0_flags=1" in call for call in calls[:6]]
        self.assertEqual(flags, [False, False, False, True, False, True])
        self.assertEqual(["-O0" in call for call in calls[:6]], [True, True] + 4 * [False])
        self.assertEqual([call.split("/dev/null ")[1].split() for call in calls[:6]],
                         [["0"], ["0"], ["0"], ["2", "stage::PosG"],
                          ["0"], ["4", "stage::PosG", "stage::PosGP"]])
        for name, row in rows.items():
            own = row["seconds"] - ("further" in name) * rows["loop, declarations"]["seconds"]
            self.assertAlmostEqual(row["ratio"], own / row["standard_seconds"])
            self.assertGreater(row["megabytes"], 0)

    def test_every_type_once(self):
        text = subprocess.run([sys.executable, "-c", "import compile_time; print(compile_time.products())"],
                              capture_output=True, text=True, check=True, cwd=SCRIPT.parent).stdout
        types = [line.split("model, ")[1] for line in text.splitlines() if "ShardedOptimizer" in line]
        self.assertEqual((len(types), len(set(types))), (48, 48))

    def test_what_is_not_measured_is_said(self):
        done = self.run_script("--runs", "1", "--mpi-compiler", "no_such_compiler", "loop over MPI")
        self.assertIn("loop over MPI: not measured, there is no no_such_compiler", done.stderr)
        done = self.run_script("no such row")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.compiler.write_text("#!/bin/sh\nexit 1\n")
        self.assertIn("failed", self.run_script("--runs", "1", "loop").stderr)


if __name__ == "__main__":
    unittest.main()
