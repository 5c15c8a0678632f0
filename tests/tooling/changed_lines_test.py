"""changed_lines.py counts lines of code that are added or changed, and nothing else."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "cmake" / "changed_lines.py"
BEFORE = """// A trainer.
#include <math.h>

int main() {
  int a = 1;  // one
  update(a);
  /* old
     words */
  puts("// not a comment");
}
"""


def run(*arguments, **options):
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, **options)


class ChangedLines(unittest.TestCase):
    def counts(self, after, *arguments):
        """The exit status and the last row's numbers."""
        with tempfile.TemporaryDirectory() as root:
            for name, text in (("before.cpp", BEFORE), ("after.cpp", after)):
                pathlib.Path(root, name).write_text(text, encoding="utf-8")
            result = run(*arguments, cwd=root)
        if result.returncode == 77:
            self.skipTest("no clang-format")
        self.assertEqual(result.stderr, "")
        return result.returncode, result.stdout.splitlines()[-1].split()[1:]

    def test_lines_that_count(self):
        added = BEFORE.replace("update(a);", "step(a);\n  more();").replace("#include", "#include <b>\n#include")
        layout = BEFORE.replace("// one", "// two\n\n").replace("old\n     words", "new").replace(
            "int a = 1;", "int  a\n= 1 ;")
        for what, after, limit, expected in (
                ("added and changed", added, 3, (0, ["3", "3", "1"])),
                ("more than the limit", added, 2, (1, ["3", "2", "1"])),
                ("nothing but comments, blanks and layout", layout, 3, (1, ["0", "3", "0"])),
                ("lines that are gone do not count",
                 BEFORE.replace("  update(a);\n", "").replace("a = 1", "a = 2"), 1, (0, ["1", "1", "2"])),
                ("several statements on a line are several lines",
                 BEFORE.replace("update(a);", "update(a); b(); c(); d();"), 3, (0, ["3", "3", "0"])),
                ("what looks like a comment in a text counts",
                 BEFORE.replace("not a comment", "other words"), 1, (0, ["1", "1", "1"]))):
            with self.subTest(what):
                self.assertEqual(self.counts(after, "--root", ".", f"before.cpp:after.cpp:{limit}"), expected)

    def test_two_files_of_a_users_own(self):
        self.assertEqual(self.counts(BEFORE.replace("a = 1", "a = 2"), "before.cpp", "after.cpp"),
                         (0, ["1", "-", "1"]))

    def test_what_is_neither_is_refused_in_words(self):
        for arguments in (["a.cpp"], ["a.cpp", "b.cpp", "c.cpp"], ["a.cpp:b.cpp:many"],
                          ["a.cpp:b.cpp"], ["no_such_file", "nor_this"]):
            result = run(*arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertRegex(result.stderr, "neither one of two files nor|no such file")
            self.assertNotIn("Traceback", result.stderr)


if __name__ == "__main__":
    unittest.main()
