"""ctest says at the end why tests were skipped; and every test that can be skipped gives a reason."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

TESTS = pathlib.Path(__file__).resolve().parent.parent
# What ctest reads in a build folder: four tests, and the script after them.
FOLDER = """
add_test(by_status "sh" "-c" "echo 'skipped: there is no torch [1;2]'; exit 77")
set_tests_properties(by_status PROPERTIES SKIP_RETURN_CODE 77)
add_test(by_words "sh" "-c" "echo 'and skipped: not this'; echo 'skipped: there is no GPU'")
set_tests_properties(by_words PROPERTIES SKIP_REGULAR_EXPRESSION "skipped: ")
add_test(passes "sh" "-c" "echo 'nothing is skipped: all is here'")
add_test(fails "sh" "-c" "exit 1")
"""


class Skipped(unittest.TestCase):
    def run_of_ctest(self, *arguments):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "CTestTestfile.cmake").write_text(FOLDER, encoding="utf-8")
            (folder / "CTestCustom.cmake").write_text(
                f'set(CTEST_CUSTOM_POST_TEST [["{sys.executable}" "{TESTS / "skipped.py"}" "{folder}"]])\n',
                encoding="utf-8")
            return subprocess.run([shutil.which("ctest"), *arguments], cwd=folder, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)

    def setUp(self):
        if shutil.which("ctest") is None:
            self.skipTest("no ctest in the PATH")

    def test_reasons_come_last(self):
        done = self.run_of_ctest()
        self.assertTrue(done.stdout.count("***Skipped") == 2, done.stdout)
        _, _, end = done.stdout.partition("\nThese tests were skipped because\n")
        self.assertEqual(end.splitlines()[:2], ["  by_status: there is no torch [1;2]",
                                                "  by_words: there is no GPU"], done.stdout)
        self.assertNotEqual(done.returncode, 0)

    def test_nothing_is_said_where_nothing_is_skipped(self):
        done = self.run_of_ctest("-R", "passes")
        self.assertNotIn("because", done.stdout)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertNotIn("because", self.run_of_ctest("-N").stdout)

    def test_whoever_ends_with_the_status_says_why(self):
        for path in sorted(TESTS.rglob("*")):
            if path.suffix not in (".py", ".sh", ".cpp", ".cu") or path == pathlib.Path(__file__):
                continue
            text = path.read_text(encoding="utf-8")
            if re.search(r"(exit[( ]|SKIPPED = |skipped = )77\b", text):
                self.assertTrue(re.search(r"[\"']skipped: ", text), path)


if __name__ == "__main__":
    unittest.main()
