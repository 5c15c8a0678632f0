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
LIBRARIES = {
    "zero/processes.hpp": "#include <vector>\n#include <mpi.h>\n",
    "zero/device.hpp": "#if X\n#  include <cuda_runtime_api.h>\n#endif\n",
    "zero/both.hpp": '#include "zero/processes.hpp"\n#include "zero/device.hpp"\n',
    "zero/none.hpp": "#include <fcntl.h>\n",
    "zero/moved.hpp": '#pragma once\n#error "zero: this moved to examples/there"\n',
}


class Chains(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = pathlib.Path(scratch.name)
        for header, text in (HEADERS | LIBRARIES).items():
            path = self.root / "include" / header
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def run_script(self, *arguments):
        """Everything that is printed: (what it is, its value)."""
        done = subprocess.run(
            [sys.executable, SCRIPT, "--include", self.root / "include", "--out", self.root / "out",
             *arguments], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [tuple(line.split(" ", 1)) for line in done.stdout.splitlines()]

    def files(self, *headers, kind="source"):
        """What each file of a kind that is printed includes, in order."""
        return {pathlib.Path(path).relative_to(self.root / "out").as_posix():
                    pathlib.Path(path).read_text(encoding="utf-8").splitlines()
                for what, path in self.run_script(*headers) if what == kind}

    def kept(self, *have):
        """Which headers are kept with these libraries and options, and the libraries they need."""
        arguments = [name if name.startswith("--") else f"--have={name}" for name in have]
        printed = self.run_script(*arguments, *LIBRARIES)
        return [{value.removeprefix("zero/") for what, value in printed if what == wanted}
                for wanted in ("header", "needs")]

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

    def test_files_of_torch_have_headers_alone_that_include_it(self):
        for name, text in {"module": "#include <torch/torch.h>\n#include \"zero/a.hpp\"\n",
                           "adapter": "#include \"zero/module.hpp\"\n"}.items():
            (self.root / f"include/zero/{name}.hpp").write_text(text)
        headers = ["--have=libtorch", "zero/a.hpp", "zero/module.hpp", "zero/adapter.hpp"]
        self.assertEqual(self.files(*headers), {"zero/a.cpp": self.twice("zero/a.hpp")})
        self.assertEqual(self.files(*headers, kind="torch"),
                         {"zero/adapter.cpp": self.twice("zero/module.hpp", "zero/adapter.hpp")})

    def test_only_a_file_that_differs_is_written(self):
        self.files("zero/b.hpp")
        written = self.root / "out/zero/b.cpp"
        os.utime(written, (1, 1))
        self.files("zero/b.hpp")
        self.assertEqual(written.stat().st_mtime, 1)
        self.assertEqual(self.files("zero/a.hpp", "zero/b.hpp"),
                         {"zero/b.cpp": self.twice("zero/a.hpp", "zero/b.hpp")})

    def test_a_header_needs_what_is_included_below_it(self):
        self.assertEqual(self.kept(), [{"none.hpp"}, set()])
        self.assertEqual(self.kept("cuda"), [{"none.hpp", "device.hpp"}, {"cuda"}])
        self.assertEqual(self.kept("mpi", "nccl"), [{"none.hpp", "processes.hpp"}, {"mpi"}])
        self.assertEqual(self.kept("mpi", "cuda"),
                         [{"none.hpp", "processes.hpp", "device.hpp", "both.hpp"}, {"mpi", "cuda"}])

    def test_only_what_needs_a_library(self):
        self.assertEqual(self.kept("cuda", "mpi", "--only=cuda"),
                         [{"device.hpp", "both.hpp"}, {"mpi", "cuda"}])

    def test_a_library_that_nobody_knows_is_an_error(self):
        (self.root / "include/zero/a.hpp").write_text("#include <other/library.h>\n")
        done = subprocess.run(
            [sys.executable, SCRIPT, "--include", self.root / "include", "--out", self.root / "out",
             "zero/b.hpp"], capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("zero/a.hpp includes <other/library.h>", done.stderr)


if __name__ == "__main__":
    unittest.main()
