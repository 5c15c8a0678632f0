#!/usr/bin/env python3
"""Prints includes of all headers of the standard library that a compiler has."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "cmake"))
import check_layers  # noqa: E402

for header in sorted(check_layers.STANDARD_HEADERS):
    print(f"#if __has_include(<{header}>)\n#include <{header}>\n#endif")
