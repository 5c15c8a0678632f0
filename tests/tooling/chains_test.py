"""chains.py lends a header only what it includes anyway, and leaves none out."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "headers" / "chains.py"
HEADERS = {
    "zero/a.hpp": "#pragma once\n#include <string>\n",
    "zero/b.hpp": '#include "zero/a.hpp"\n',
    "zero/c.hpp": "#if X\n#endif\n#include <zero/b.hpp>\n",
    "zero/beside.hpp": "#include <zero/a.hpp>\n",
    "zero/sometimes.hpp": "#if X\n#if Y\n#endif\n#include <zero/beside.hpp>\n#endif\n",
    "zero/x/below.hpp": "namespace zero {}\n#include <zero/beside.hpp>\n",
}


class Chains(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = pathlib.Path(scratch.name)
        for header, text in HEADERS.items():
            path = self.root / "include" / header
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def files(self, *headers):
        """What each file that is printed includes, in order."""
        out = self.root / "out"
        printed = subprocess.run(
            [sys.executable, SCRIPT, "--include", self.root / "include", "--out", out, *headers],
            capture_output=True, text=True, check=True).stdout.split()
        return {pathlib.Path(name).relative_to(out).as_posix():
                    pathlib.Path(name).read_text(encoding="utf-8").splitlines()
                for name in printed}

    @staticmethod
    def twice(*headers):
        return [f"#include <{header}>" for header in headers for _ in range(2)]

    def test_who_comes_before_whom(self):
        self.assertEqual(self.files(*HEADERS), {
            "zero/c.cpp": self.twice("zero/a.hpp", "zero/b.hpp", "zero/c.hpp"),
            "zero/beside.cpp": self.twice("zero/beside.hpp"),
            "zero/sometimes.cpp": self.twice("zero/sometimes.hpp"),
            "zero/x/below.cpp": self.twice("zero/x/below.hpp")})

    def test_through_a_header_that_is_not_asked_for(self):
        self.assertEqual(self.files("zero/c.hpp", "zero/a.hpp"),
                         {"zero/c.cpp": self.twice("zero/a.hpp", "zero/c.hpp")})

    def test_only_a_file_that_differs_is_written(self):
        self.files("zero/b.hpp")
        written = self.root / "out/zero/b.cpp"
        os.utime(written, (1, 1))
        self.files("zero/b.hpp")
        self.assertEqual(written.stat().st_mtime, 1)
        self.assertEqual(self.files("zero/a.hpp", "zero/b.hpp"),
                         {"zero/b.cpp": self.twice("zero/a.hpp", "zero/b.hpp")})


if __name__ == "__main__":
    unittest.main()
