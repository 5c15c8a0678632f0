#!/usr/bin/env python3
"""What nvcc makes of the kernels of a step, where no GPU is at hand to time them.

None may spill registers, nor keep anything in memory of its threads: a device sets that aside for
every thread that it can run. Those that work element by element must access 16 bytes at once: the
compiler takes vectors apart, and does not always put them together again. The update must have
asked for its first elements before it waits for the step's scalars, the norm for several vectors
before it works on one.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

KERNELS = ["update", "sum_ranks_and_square", "sum_ranks", "add_squares", "add_hash", "call", "gather_ranks"]
WIDE = r"v4\.[bfsu]32|v2\.[bfsu]64"
VECTOR = r"v[24]\."


def compiled(arguments, architecture):
    """Of every kernel: its name for people, its PTX, and what ptxas says of it."""
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            [arguments.nvcc, "-std=c++20", "--expt-relaxed-constexpr", f"-arch=sm_{architecture}",
             "-Xptxas=-v", "--keep", "--keep-dir", folder, "-I", arguments.include, "-cubin",
             arguments.source, "-o", f"{folder}/kernels.cubin"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if run.returncode != 0:
            sys.exit(run.stdout)
        text = "".join(path.read_text() for path in pathlib.Path(folder).glob("*.ptx"))
    remarks = run.stdout.split("Compiling entry function")[1:]
    for remark in remarks:
        mangled = re.match(r"\s*'(\S+)'", remark)[1]
        body = re.search(r"\.entry " + re.escape(mangled) + r"\(.*?\n}\n", text, re.S)[0]
        name = re.search(rf"kernels\d+({'|'.join(KERNELS)})", mangled)
        yield (name[1] if name else mangled), mangled, body, remark


def problems_of(name, body, remark):
    if not re.search(r"\b0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads", remark):
        yield "has a stack or spills registers"
    if "3cub" in name:
        return  # not ours: what else it is like, its authors judge by measuring
    if name == "call":
        # One thread: more would only be loops taken apart that are in nobody's way.
        if int(re.search(r"Used (\d+) registers", remark)[1]) > 64:
            yield "uses more than 64 registers"
        return
    if name == "add_hash":
        return  # once in a training
    if name == "add_squares":
        vectors = re.findall(rf"ld\.global\S*(?:{WIDE}|v4\.u32)", body.split("shfl")[0])
        if len(vectors) < 4:
            yield f"asks for {len(vectors)} vectors of 16 bytes before it works on the first"
        return
    if name == "gather_ranks" and "Lm4E" not in body:
        return  # for what is not aligned
    loads = re.findall(r"ld\.global\S*", body)
    stores = re.findall(r"st\.global\S*", body)
    # Where element types differ, the narrower arrays have shorter vectors.
    if not any(re.search(WIDE, access) for access in loads + stores):
        yield "never accesses 16 bytes at once"
    for kind, accesses in ("loads", loads), ("stores", stores):
        if not any(re.search(VECTOR, access) for access in accesses):
            yield f"{kind} no vectors"
    # One loop over vectors and one over what is left: more single stores are vectors taken apart.
    narrow = sum(not re.search(VECTOR, store) for store in stores)
    if 2 * narrow > len(stores):
        yield f"{narrow} of {len(stores)} stores are of single elements"
    if name == "update":
        before = body.split("bar.sync")[0]
        if len(re.findall(r"ld\.global\S*v4\.", before)) < 4:
            yield "waits for the scalars before it loads"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--include", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--architectures", nargs="+", default=["80", "90"])
    arguments = parser.parse_args()
    failures = 0
    for architecture in arguments.architectures:
        seen = set()
        for name, mangled, body, remark in compiled(arguments, architecture):
            seen.add(name)
            for problem in problems_of(name, body, remark):
                failures += 1
                print(f"sm_{architecture}: {mangled} {problem}")
        missing = set(KERNELS) - seen
        if missing:
            failures += 1
            print(f"sm_{architecture}: not found: {', '.join(sorted(missing))}")
    print(f"{failures} problems")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
