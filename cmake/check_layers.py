#!/usr/bin/env python3
"""Checks the house rules of include/zero that a compiler does not: includes point downward only.

Prints one line per violation, 'file:line: what is wrong', and fails if there is any.
"""

import argparse
import pathlib
import re
import sys

LAYER_OF_DIRECTORY = {
    "base": 0,
    "layout": 1,
    "concepts": 2,
    "comm": 3,
    "rule": 3,
    "precision": 3,
    "space": 3,
    "device": 3,
    "kernel": 3,
    "memory": 3,
    "transfer": 3,
    "optimizer": 4,
    "activations": 5,
    "adapt": 5,
    "bench": 5,
    "checkpoint": 5,
    # What a C++ trainer never includes: facades for others, above everything.
    "c": 6,
}
LAYER_OF_FILE = {
    "sharded_optimizer.hpp": 4, "compiled.hpp": 5, "checkpoint.hpp": 5, "memory.hpp": 5,
    "activations.hpp": 5, "bench.hpp": 5, "simulate.hpp": 5,
    "zero.hpp": 6,
    "c.h": 0, "c_checkpoint.h": 0, "c_mpi.h": 0,
}

# Models do not know each other: a rule that includes a communicator could not be exchanged alone.
# Kernels are their shared floor, and a communicator says in which memory it works.
ALLOWED_BETWEEN_SIBLINGS = {
    ("comm", "kernel"), ("comm", "space"), ("space", "kernel"),
    # A precision names the elements that kernels read and write.
    ("precision", "kernel"),
    # A device runs the kernels' element functions; what works on device memory launches them.
    ("device", "kernel"), ("space", "device"), ("comm", "device"),
    # A transfer is between a space and slower memory.
    ("transfer", "space"), ("transfer", "device"), ("transfer", "kernel"),
}
MODEL_LAYER = 3

STANDARD_HEADERS = set(
    """
    algorithm any array atomic barrier bit bitset cassert cctype cerrno cfenv cfloat charconv chrono
    cinttypes climits clocale cmath codecvt compare complex concepts condition_variable coroutine
    csetjmp csignal cstdarg cstddef cstdint cstdio cstdlib cstring ctime cuchar cwchar cwctype deque
    exception execution filesystem format forward_list fstream functional future initializer_list
    iomanip ios iosfwd iostream istream iterator latch limits list locale map memory memory_resource
    mutex new numbers numeric optional ostream queue random ranges ratio regex scoped_allocator
    semaphore set shared_mutex source_location span sstream stack stdexcept stop_token streambuf
    string string_view syncstream system_error thread tuple type_traits typeindex typeinfo
    unordered_map unordered_set utility valarray variant vector version
    """.split()
)
# Headers of the compiler, not of a library; for stores that bypass the cache.
INTRINSICS = {"kernel": {"immintrin.h", "emmintrin.h", "xmmintrin.h"}}

# A backend's library, by the beginning of the only headers that may know it.
CUDA = {"cuda_runtime_api.h"}
BACKENDS = {
    "comm/mpi/pages.hpp": {"sys/mman.h", "unistd.h"},
    "comm/mpi/library.hpp": {"mpi.h"},
    "comm/in_process_cuda": CUDA,
    "comm/nccl.hpp": CUDA | {"nccl.h"},
    # Launching is a template of the larger header.
    "device": CUDA | {"cuda_runtime.h"},
    "space/cuda": CUDA,
    "transfer/cuda_transfer.hpp": CUDA,
    # In C; what defines them is in c/.
    "c.h": {"stdint.h", "string.h"},
    "c_mpi.h": {"mpi.h"},
    "transfer/file_transfer.hpp": {"unistd.h"},
    "transfer/file": {"fcntl.h", "io.h", "unistd.h"},
    "memory/address_sanitizer.hpp": {"dlfcn.h"},
    "bench/collectives.hpp": {"benchmark/benchmark.h"},
    "bench/program.hpp": {"benchmark/benchmark.h"},
    "bench/rule_bench.hpp": {"benchmark/benchmark.h"},
    "adapt/libtorch/exchanged_memory.hpp": {"sys/mman.h", "torch/torch.h"},
    "adapt/libtorch": {"torch/torch.h", "torch/csrc/autograd/engine.h"},
    "checkpoint/files.hpp": {"dirent.h", "fcntl.h", "signal.h", "sys/stat.h", "sys/types.h", "unistd.h"},
    "checkpoint": {"nlohmann/json.hpp", "xxhash.h"},
}

# They cost every translation unit seconds: only headers that launch have them.
DEVICE_LIBRARIES = ("cub/", "thrust/")

# Macros that a backend's library asks for by name.
FOREIGN_MACROS = {
    "comm/mpi/library.hpp": {"OMPI_SKIP_MPICXX", "MPICH_SKIP_MPICXX"},
    "checkpoint/checksum.hpp": {"XXH_INLINE_ALL", "XXH_NO_INLINE_HINTS"},
}

# What works with every backend includes none: of its own directory, it knows these rooms.
ROOMS = {"comm/decorators/": ("comm/decorators/", "comm/shared/")}

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:<([^>]+)>|"([^"]+)")')
# What a unit's flags change has them in its name; these two say how, and have no code.
WITHOUT_FLAGS = {"base/flags.hpp", "base/version.hpp"}
NAMESPACE = re.compile(r"^\s*(inline )?namespace (?P<name>.*\w)")
TAGGED = re.compile(r"zero::inline ZERO_(?P<shared>SHARED_)?NAMESPACE\b(?P<inner>.*)")
VERSION = re.compile(r"\bv\d+_\d+")
DEFINE = re.compile(r"^\s*#\s*define\s+(\w+)")


def directory_of(header):
    """The layer directory of a path relative to include/zero, or '' for a header at its top."""
    return header.split("/")[0] if "/" in header else ""


def layer_of(header):
    """The layer of a path relative to include/zero; None when the blueprint does not name it."""
    if "/" in header:
        return LAYER_OF_DIRECTORY.get(directory_of(header))
    return LAYER_OF_FILE.get(header)


def backend_headers(header):
    """What a header may include of the library that it is a backend for."""
    for prefix, names in BACKENDS.items():
        if header == prefix or header.startswith((prefix + ".", prefix + "/")):
            return names
    return set()


def wrong_include(header, target, known):
    """Why `header` may not include `target`, or None. Both relative to include/zero."""
    if target not in known:
        return f"zero/{target} does not exist"
    above, below = layer_of(header), layer_of(target)
    if above is None or below is None:
        return None  # the unknown place is reported once, for the header itself
    if below > above:
        return f"layer {above} includes zero/{target} of layer {below}: includes point downward"
    siblings = (directory_of(header), directory_of(target))
    for room, known_rooms in ROOMS.items():
        if header.startswith(room) and siblings[0] == siblings[1]:
            if not target.startswith(known_rooms):
                return f"{room} includes zero/{target}, which is of one backend"
    if (
        above == below == MODEL_LAYER
        and siblings[0] != siblings[1]
        and siblings not in ALLOWED_BETWEEN_SIBLINGS
    ):
        return f"{siblings[0]} includes its sibling zero/{target}: models do not know each other"
    return None


def check_header(header, text, known):
    """All violations in one header, as (line, message), and the zero headers it includes."""
    problems, edges = [], []
    if layer_of(header) is None:
        problems.append((1, "this place belongs to no layer; name it in cmake/check_layers.py"))
    if not re.search(r"^#pragma once$", text, re.MULTILINE):
        problems.append((1, "no '#pragma once'"))
    shared = False
    for number, line in enumerate(text.splitlines(), 1):
        if macro := DEFINE.match(line):
            foreign = FOREIGN_MACROS.get(header, set())
            if not macro[1].startswith("ZERO_") and macro[1] not in foreign:
                problems.append((number, f"macro {macro[1]} does not start with ZERO_"))
        if header not in WITHOUT_FLAGS and VERSION.search(line):
            problems.append((number, "names no flags: spell it ZERO_NAMESPACE"))
        if header not in WITHOUT_FLAGS and (namespace := NAMESPACE.match(line)):
            if tagged := TAGGED.match(namespace["name"]):
                shared = tagged["shared"] is not None
                if not re.search(r'^#include ["<]zero/base/config.hpp[">]', text, re.MULTILINE):
                    problems.append((number, "does not include zero/base/config.hpp"))
            elif namespace["name"].startswith("zero"):
                problems.append((number, f"namespace {namespace['name']} carries no flags"))
            if shared and (not tagged or tagged["inner"]):
                problems.append((number, "a namespace that is shared would be ambiguous"))
        if include := INCLUDE.match(line):
            target = include[1] or include[2]
            if target.startswith("zero/"):
                target = target.removeprefix("zero/")
                edges.append(target)
                if problem := wrong_include(header, target, known):
                    problems.append((number, problem))
            elif include[2]:
                problems.append((number, f'"{target}": spell it from the include root, "zero/..."'))
            elif target not in (
                STANDARD_HEADERS
                | INTRINSICS.get(directory_of(header), set())
                | backend_headers(header)
            ) and not (target.startswith(DEVICE_LIBRARIES) and header.endswith(".cuh")):
                problems.append((number, f"<{target}> is not of the C++20 standard library"))
    return problems, edges


def find_cycle(graph):
    """A list of headers that include each other in a ring, or []. '#pragma once' would hide it."""
    done = set()

    def visit(node, path):
        if node in path:
            return path[path.index(node):] + [node]
        if node in done:
            return []
        for target in graph.get(node, []):
            if ring := visit(target, path + [node]):
                return ring
        done.add(node)
        return []

    for node in sorted(graph):
        if ring := visit(node, []):
            return ring
    return []


def untested(headers, tests):
    """Headers with neither tests/unit/<path>_test.cpp nor a mention in any other test."""
    files = [f for f in tests.rglob("*") if f.suffix in {".cpp", ".hpp", ".cu"}] if tests.is_dir() else []
    mentioned = "\n".join(f.read_text(encoding="utf-8") for f in files)
    return [
        header
        for header in headers
        if not (tests / "unit" / (pathlib.PurePath(header).with_suffix("").as_posix() + "_test.cpp")).is_file()
        and f"zero/{header}" not in mentioned
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent.parent,
                        help="the repository; the default is the one this script lies in")
    parser.add_argument("--require-tests", action="store_true",
                        help="a header without a test is an error, not a warning")
    arguments = parser.parse_args()

    include = arguments.root / "include" / "zero"
    texts = {
        path.relative_to(include).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(include.rglob("*"))
        if path.is_file()
    }
    if not texts:
        print(f"{include}: no headers found")
        return 1

    failures, graph = [], {}
    for header, text in texts.items():
        if not header.endswith(".hpp") and header not in LAYER_OF_FILE and not (
            header.endswith(".cuh") and directory_of(header) == "device"
        ):
            failures.append(f"include/zero/{header}:1: only .hpp files, and .cuh in device, belong here")
            continue
        problems, graph[header] = check_header(header, text, texts.keys())
        failures += [f"include/zero/{header}:{line}: {problem}" for line, problem in problems]
    if ring := find_cycle(graph):
        failures.append("include/zero: a ring of includes: " + " -> ".join(ring))

    without_test = untested(sorted(graph), arguments.root / "tests")
    if arguments.require_tests:
        failures += [f"include/zero/{header}:1: no test" for header in without_test]
    else:
        for header in without_test:
            print(f"include/zero/{header}: warning: no test")

    for failure in failures:
        print(failure)
    print(f"{len(graph)} headers, {len(failures)} violations")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
