#!/usr/bin/env python3
"""Distributes headers over few translation units, so that each still has to compile by itself.

What a header includes anyway may come before it without lending it anything. So a chain of headers,
each of which includes the one before, directly or not, is one translation unit. Only includes above
all code and outside of conditions count: those are there whatever the flags.

A header that has moved consists of an error that says so, and is left out. A header that needs a library, because it or one below it includes that library's header, is left out
where the library is not there. Which it is, the includes say, in conditions or not: there is no list
of headers to keep.

Writes one file for each chain, named after its last header. Prints a line "header <name>" for each
that is not left out, "needs <library>" for each library that these need, and "source <file>" for
each file, or "torch <file>" where all headers of the file include LibTorch's.
"""

import argparse
import functools
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "cmake"))
import check_layers  # noqa: E402  # knows the standard library's headers

INCLUDE = re.compile(r'#include [<"](zero/[^>"]+)[>"]')
ANY_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
MOVED = re.compile(r'^#error "zero: .* moved to ', re.MULTILINE)

# Whose header it is, by the components that CMakeLists.txt looks for.
LIBRARY_OF = {
    "benchmark/benchmark.h": "bench",
    "cuda_runtime.h": "cuda",
    "cuda_runtime_api.h": "cuda",
    "mpi.h": "mpi",
    "nccl.h": "nccl",
    "nlohmann/json.hpp": "checkpoint",
    "torch/torch.h": "libtorch",
    "torch/csrc/autograd/engine.h": "libtorch",
    "xxhash.h": "checkpoint",
}
# Comes with the system or its compiler.
SYSTEM = {"dirent.h", "dlfcn.h", "fcntl.h", "io.h", "signal.h", "stdint.h", "string.h", "sys/mman.h",
          "sys/stat.h", "sys/types.h", "unistd.h"}.union(
    *check_layers.INTRINSICS.values())


def includes(text):
    """The project's headers that a text includes in any case."""
    depth = 0
    for line in text.splitlines():
        if line.startswith("namespace"):
            return
        if re.match(r"\s*#\s*if", line):
            depth += 1
        elif re.match(r"\s*#\s*endif", line):
            depth -= 1
        elif depth == 0 and (found := INCLUDE.match(line)):
            yield found[1]


def libraries(headers, text_of):
    """The libraries that each header needs, itself or through what it includes."""

    @functools.cache
    def needs(header):
        found = set()
        for name in ANY_INCLUDE.findall(text_of(header)):
            if name.endswith(".cuh"):
                continue  # nvcc alone reads it
            if name.startswith("zero/"):
                found |= needs(name)
            elif name in LIBRARY_OF:
                found.add(LIBRARY_OF[name])
            elif name not in check_layers.STANDARD_HEADERS | SYSTEM:
                sys.exit(f"{header} includes <{name}>; name its library in {__file__}")
        return found

    return {header: needs(header) for header in headers}


def chains(headers, text_of):
    """Lists of headers, each after those that it includes; every header is in one.

    A compiler reads for each chain what its last header includes. So those with most text below get one
    that includes them after them, before others do; who has one may be given another, where that makes
    room (a greatest matching, by augmenting paths).
    """

    @functools.cache
    def below(header):
        direct = set(includes(text_of(header)))
        return direct.union(*map(below, direct))

    def weight(header):
        return sum(len(text_of(each)) for each in below(header) | {header}), header

    before, after = {}, {}

    def place(header, asked):
        for other in who_includes[header]:
            if other in asked:
                continue
            asked.add(other)
            if other not in before or place(before[other], asked):
                before[other], after[header] = header, other
                return True
        return False

    heaviest = sorted(headers, key=weight, reverse=True)
    who_includes = {header: [other for other in reversed(heaviest) if header in below(other)]
                    for header in headers}
    for header in heaviest:
        place(header, set())
    for header in heaviest:
        if header not in before:
            chain = [header]
            while chain[-1] in after:
                chain.append(after[chain[-1]])
            yield chain


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--include", type=pathlib.Path, required=True, help="where headers are found")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="where files are written")
    parser.add_argument("--have", action="append", default=[], metavar="LIBRARY",
                        help="a library that is there; may be given several times")
    parser.add_argument("--only", action="append", default=[], metavar="LIBRARY",
                        help="leave out what needs none of these; may be given several times")
    parser.add_argument("headers", nargs="+")
    args = parser.parse_args()

    @functools.cache
    def text_of(header):
        return (args.include / header).read_text(encoding="utf-8")

    needs = libraries(args.headers, text_of)
    headers = [header for header in args.headers if needs[header] <= set(args.have)
               and not MOVED.search(text_of(header))
               and (not args.only or needs[header] & set(args.only))]
    for header in headers:
        print("header", header)
    for library in sorted(set().union(*(needs[header] for header in headers))):
        print("needs", library)
    # A header that includes LibTorch's takes half a minute, so that file is compiled beforehand: in
    # chains of headers that all include it, that lends nothing.
    torch = {header for header in headers if "libtorch" in needs[header]}
    found = [("source", chain) for chain in chains(set(headers) - torch, text_of)]
    found += [("torch", chain) for chain in chains(torch, text_of)]
    for kind, chain in found:
        # Twice: a header may be included again.
        text = "".join(f"#include <{header}>\n" * 2 for header in chain)
        path = (args.out / chain[-1]).with_suffix(".cpp")
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
        print(kind, path)


if __name__ == "__main__":
    main()
