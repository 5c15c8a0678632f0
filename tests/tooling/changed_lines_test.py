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


class ChangedLines(unittest.TestCase):
    def run_on(self, after, limit):
        with tempfile.TemporaryDirectory() as root:
            pathlib.Path(root, "before.cpp").write_text(BEFORE, encoding="utf-8")
            pathlib.Path(root, "after.cpp").write_text(after, encoding="utf-8")
            result = subprocess.run(
                [sys.executable, SCRIPT, "--root", root, f"before.cpp:after.cpp:{limit}"],
                capture_output=True, text=True, check=False)
        if result.returncode == 77:
            self.skipTest("no clang-format")
        self.assertEqual(result.stderr, "")
        return result.returncode, result.stdout.splitlines()[-1].split()[1:]

    def test_added_and_changed(self):
        after = BEFORE.replace("update(a);", "step(a);\n  more();").replace("#include", "#include <b>\n#include")
        self.assertEqual(self.run_on(after, 3), (0, ["3", "3", "1"]))
        self.assertEqual(self.run_on(after, 2), (1, ["3", "2", "1"]))

    def test_comments_blanks_and_layout_do_not_count(self):
        after = BEFORE.replace("// one", "// two\n\n").replace("old\n     words", "new").replace(
            "int a = 1;", "int  a\n= 1 ;")
        self.assertEqual(self.run_on(after, 3), (1, ["0", "3", "0"]))  # nothing has changed

    def test_lines_that_are_gone_do_not_count(self):
        after = BEFORE.replace("  update(a);\n", "").replace("a = 1", "a = 2")
        self.assertEqual(self.run_on(after, 1), (0, ["1", "1", "2"]))

    def test_several_statements_on_a_line_are_several_lines(self):
        after = BEFORE.replace("update(a);", "update(a); b(); c(); d();")
        self.assertEqual(self.run_on(after, 3), (0, ["3", "3", "0"]))

    def test_what_looks_like_a_comment_in_a_text_counts(self):
        after = BEFORE.replace("not a comment", "other words")
        self.assertEqual(self.run_on(after, 1), (0, ["1", "1", "1"]))

    def test_two_files_of_a_users_own(self):
        with tempfile.TemporaryDirectory() as root:
            pathlib.Path(root, "a.cpp").write_text(BEFORE, encoding="utf-8")
            pathlib.Path(root, "b.cpp").write_text(BEFORE.replace("a = 1", "a = 2"), encoding="utf-8")
            result = subprocess.run([sys.executable, SCRIPT, "a.cpp", "b.cpp"], cwd=root,
                                    capture_output=True, text=True, check=False)
        if result.returncode == 77:
            self.skipTest("no clang-format")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(result.stdout.splitlines()[-1].split()[1:], ["1", "-", "1"])

    def test_what_is_neither_is_refused_in_words(self):
        for arguments in (["a.cpp"], ["a.cpp", "b.cpp", "c.cpp"], ["a.cpp:b.cpp:many"],
                          ["a.cpp:b.cpp"], ["no_such_file", "nor_this"]):
            result = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True,
                                    text=True, check=False)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertRegex(result.stderr, "neither one of two files nor|no such file")
            self.assertNotIn("Traceback", result.stderr)


if __name__ == "__main__":
    unittest.main()
