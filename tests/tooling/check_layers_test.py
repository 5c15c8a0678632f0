"""Every rule of check_layers.py rejects a tree that breaks it, by name, and accepts a good one."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "cmake" / "check_layers.py"
GOOD = {
    "include/zero/base/error.hpp": "#pragma once\n#include <string>\n#define ZERO_THROW 1\n",
    "include/zero/base/config.hpp": "#pragma once\n",
    "include/zero/base/version.hpp": "#pragma once\nnamespace zero::inline v0_3 {}\n",
    "include/zero/base/bytes.hpp": '#pragma once\n#include "zero/base/config.hpp"\n'
    "namespace zero::inline ZERO_SHARED_NAMESPACE {}\n"
    "namespace zero::inline ZERO_NAMESPACE::math {\nnamespace detail {}\n}\n",
    "include/zero/concepts/stage.hpp": '#pragma once\n#include "zero/base/error.hpp"\n',
    "include/zero/kernel/copy.hpp": "#pragma once\n#include <immintrin.h>\n",
    "include/zero/comm/self.hpp": "#pragma once\n#include <zero/kernel/copy.hpp>\n",
    "include/zero/rule/sgd.hpp": "#pragma once\n#include <zero/base/error.hpp>\n",
    "include/zero/zero.hpp": "#pragma once\n#include <zero/comm/self.hpp>\n",
    "tests/unit/base/error_test.cpp": "",
    "tests/contracts/all_test.cpp": "#include <zero/zero.hpp>\n// zero/concepts/stage.hpp\n"
    "// zero/base/config.hpp zero/base/version.hpp zero/base/bytes.hpp\n"
    "// zero/kernel/copy.hpp zero/comm/self.hpp zero/rule/sgd.hpp\n",
}


def run(files, *flags):
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            path = pathlib.Path(root, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        result = subprocess.run([sys.executable, SCRIPT, "--root", root, *flags],
                                capture_output=True, text=True, check=False)
        return result.returncode, result.stdout


class Layers(unittest.TestCase):
    def rejected(self, words, path, text, others={}):
        status, output = run(GOOD | others | {path: text})
        self.assertEqual(status, 1, output)
        self.assertIn(words, output)

    def test_a_good_tree(self):
        status, output = run(GOOD, "--require-tests")
        self.assertEqual(status, 0, output)

    def test_upward(self):
        floors = ("base/a.hpp", "layout/a.hpp", "concepts/a.hpp", "space/a.hpp",
                  "sharded_optimizer.hpp", "checkpoint/a.hpp", "zero.hpp")
        for lower, upper in zip(floors, floors[1:]):
            self.rejected("includes point downward", f"include/zero/{lower}",
                          f'#pragma once\n#include "zero/{upper}"\n',
                          {f"include/zero/{upper}": "#pragma once\n"})

    def test_one_header_that_breaks_a_rule(self):
        """Words of the rule, headers, and what each of them says."""
        once = "#pragma once\n"
        foreign = "is not of the C++20 standard library"
        strangers = "models do not know each other"
        devices = once + "#include <cub/cub.cuh>\n#include <thrust/fill.h>\n"
        rows = [
            ("belong here", "base/x.h rule/x.cpp space/x.cuh", once),
            (strangers, "rule/adam.hpp precision/fp32.hpp kernel/sum.hpp",
             once + "#include <zero/comm/self.hpp>\n"),
            (strangers, "rule/adam.hpp", once + "#include <zero/kernel/copy.hpp>\n"),
            ("which is of one backend", "comm/decorators/x.hpp", once + "#include <zero/comm/self.hpp>\n"),
            ("belongs to no layer", "misc/x.hpp extra.hpp", once),
            *((foreign, "comm/x.hpp", f"{once}#include <{name}>\n")
              for name in ("mpi.h", "Eigen/Core", "unistd.h", "stdint.h")),
            # The header of a backend is not all whose names begin like it.
            (foreign, "comm/in_process_cudas.hpp", once + "#include <cuda_runtime_api.h>\n"),
            (foreign, "rule/x.hpp", once + "#include <immintrin.h>\n"),
            (foreign, "device/x.hpp space/cuda.hpp comm/nccl.hpp", devices),
            ("from the include root", "base/x.hpp", once + '#include "error.hpp"\n'),
            ("does not exist", "base/x.hpp", once + '#include "zero/base/gone.hpp"\n'),
            ("macro CHECK does not start with ZERO_", "base/x.hpp", once + "#  define CHECK(x) x\n"),
            ("macro OMPI_SKIP_MPICXX does", "comm/x.hpp", once + "#define OMPI_SKIP_MPICXX 1\n"),
            ("no '#pragma once'", "base/x.hpp", "// #pragma once\n"),
        ]
        for words, headers, text in rows:
            for header in headers.split():
                with self.subTest(words, header=header):
                    self.rejected(words, f"include/zero/{header}", text)
        self.assertEqual(run(GOOD | {"include/zero/device/x.cuh": devices})[0], 0)

    def test_namespace(self):
        config = '#pragma once\n#include "zero/base/config.hpp"\n'
        self.rejected("carries no flags", "include/zero/base/x.hpp", config + "namespace zero {}\n")
        self.rejected("spell it ZERO_NAMESPACE", "include/zero/base/x.hpp",
                      config + "namespace zero::inline v0_3 {}\n")
        self.rejected("does not include zero/base/config.hpp", "include/zero/base/x.hpp",
                      "#pragma once\nnamespace zero::inline ZERO_NAMESPACE {}\n")
        for inner in ("::detail {}\n", " {\nnamespace detail {}\n}\n"):
            self.rejected("would be ambiguous", "include/zero/base/x.hpp",
                          config + "namespace zero::inline ZERO_SHARED_NAMESPACE" + inner)

    def test_ring(self):
        a = '#pragma once\n#include "zero/base/b.hpp"\n'
        b = '#pragma once\n#include "zero/base/a.hpp"\n'
        status, output = run(GOOD | {"include/zero/base/a.hpp": a, "include/zero/base/b.hpp": b})
        self.assertEqual(status, 1, output)
        self.assertIn("a ring of includes: base/a.hpp -> base/b.hpp -> base/a.hpp", output)

    def test_untested_header(self):
        files = GOOD | {"include/zero/base/x.hpp": "#pragma once\n"}
        status, output = run(files)
        self.assertEqual(status, 0, output)
        self.assertIn("base/x.hpp: warning: no test", output)
        self.assertEqual(run(files, "--require-tests")[0], 1)

    def test_no_headers(self):
        self.assertEqual(run({"README.md": ""})[0], 1)


if __name__ == "__main__":
    unittest.main()
