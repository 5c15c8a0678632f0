#!/usr/bin/env python3
"""Compiles for other systems with the newest Clang and libc++, which the Python package ziglang has.

All headers that need the standard library only, and those of checkpoints and MPI where their
libraries' headers are here, are compiled for Linux, macOS and Windows, and so are examples. Unit
tests of number formats and of the update are built and run on Linux. Nothing of macOS or Windows is
run. Last, Clang is asked for flags whose macros names do not show: see check_target_macros.py.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import check_layers
import check_target_macros

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = ROOT / "include"
LINUX, WINDOWS, MACOS = "x86_64-linux-gnu", "x86_64-windows-gnu", "aarch64-macos"
TARGETS = (LINUX, "aarch64-linux-gnu", MACOS, WINDOWS)
EXAMPLES = ("02", "05", "07", "09", "11")
TESTS = ("base/float16", "kernel/convert", "kernel/update")
SYSTEM_HEADERS = {"dirent.h", "dlfcn.h", "fcntl.h", "io.h", "signal.h", "sys/mman.h", "sys/stat.h",
                  "sys/types.h", "unistd.h"}
STOP = re.compile(r'#if defined\(_WIN32\)\n#error "(zero: [^"]+)"\n#include ZERO_STOP\n')


def libraries(folder):
    """Links to headers of other libraries that are here, with none of this system's own beside them;
    returns their names and where they are found."""
    places = [folder]
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("doctest", "nlohmann", "xxhash.h", "xxh3.h"):
        link, there = folder / name, pathlib.Path("/usr/include", name)
        if there.exists() and not link.exists():
            link.symlink_to(there)
    if shutil.which("mpicxx.openmpi"):
        asked = subprocess.run(["mpicxx.openmpi", "--showme:incdirs"], capture_output=True, text=True)
        places += [pathlib.Path(each) for each in asked.stdout.split()]
    names = {"doctest/doctest.h", "nlohmann/json.hpp", "xxhash.h", "mpi.h"}
    return {name for name in names if any((place / name).exists() for place in places)}, places


def headers_within(texts, allowed):
    """Headers that include nothing but ours and what is allowed, with all ours that each includes."""
    includes = {
        name: {one[1] or one[2] for one in map(check_layers.INCLUDE.match, text.splitlines()) if one}
        for name, text in texts.items()
    }

    def reach(name, seen):
        if name not in seen:
            seen.add(name)
            for each in includes.get(name, ()):
                reach(each, seen)
        return seen

    reached = {name: reach(name, set()) for name in texts}
    return {name: all_of for name, all_of in reached.items() if all_of <= allowed | texts.keys()}


class Zig:
    """The compiler, with the warnings of our own code, and its caches in the build folder."""

    def __init__(self, program, work, places):
        self.program = program
        text = (ROOT / "cmake/dev_options.cmake").read_text(encoding="utf-8")
        warnings = re.search(r"zero_dev_options\s+INTERFACE((?:\s+-W[\w-]+)+)\)", text)[1].split()
        # Zig asks for the undefined-behaviour sanitizer by itself.
        self.flags = ["-std=c++20", "-fno-sanitize=undefined", *warnings, "-Werror", f"-I{INCLUDE}"]
        self.flags += [flag for place in places for flag in ("-isystem", str(place))]
        self.work = work
        self.environment = dict(os.environ, ZIG_GLOBAL_CACHE_DIR=str(work / "cache"),
                                ZIG_LOCAL_CACHE_DIR=str(work / "cache"))

    def __call__(self, target, *arguments):
        """Compiles; returns the exit status and what was said."""
        command = [self.program, "c++", "-target", target, *self.flags, *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr


def unit_tests(zig):
    """Builds them for Linux and runs them."""
    sources = [ROOT / f"tests/unit/{name}_test.cpp" for name in TESTS] + [ROOT / "tests/test_main.cpp"]
    program = str(zig.work / "unit_tests")
    # Zig's runtime (0.17) says that no processor has anything; GCC's asks it.
    gcc = subprocess.run(["gcc", "-print-libgcc-file-name"], capture_output=True, text=True).stdout.split()
    # doctest's macros use __COUNTER__, an extension that Clang warns of wherever they are used.
    own = ["-Wno-unknown-warning-option", "-Wno-c2y-extensions", f"-I{ROOT / 'tests'}", "-O1"]
    status, text = zig(LINUX, *own, *map(str, sources), *gcc, "-o", program)
    if status == 0:
        done = subprocess.run([program], capture_output=True, text=True)
        status, text = done.returncode, done.stdout + done.stderr
    return status, text


def macros(zig, target):
    """Are all macros of flags for this processor known?"""
    unknown, tried = check_target_macros.unknown_macros(
        [zig.program, "clang", f"--target={target}"], check_target_macros.FLAGS.read_text(encoding="utf-8"))
    lines = [f"{name}: {', '.join(flags)}" for name, flags in unknown.items()]
    return (1 if lines or tried < 20 else 0), "\n".join([f"{tried} flags", *lines])


def jobs(zig, texts, known):
    """What is to be compiled: (what, function that returns a status and a text)."""
    system = check_layers.STANDARD_HEADERS | check_layers.INTRINSICS["kernel"] | SYSTEM_HEADERS
    headers = headers_within(texts, system | known)
    stops = {name: found[1] for name, text in texts.items() if (found := STOP.search(text))}
    yield f"{LINUX}: unit tests, run", lambda: unit_tests(zig)
    for target in (MACOS, WINDOWS):
        for number in EXAMPLES:
            (source,) = (ROOT / "examples").glob(f"{number}_*.cpp")
            out = zig.work / f"{source.stem}.{target}"
            # What is linked on Windows takes two minutes to build, and the linker of macOS is the stricter.
            object_only = ["-c"] if target == WINDOWS else []
            yield (f"{target}: {source.name}",
                   lambda t=target, a=(*object_only, str(source), "-o", str(out)): zig(t, *a))
    for target in TARGETS:
        here = [name for name in headers if target != WINDOWS or not headers[name] & stops.keys()]
        source = zig.work / f"headers.{target}.cpp"
        source.write_text("".join(f"#include <{name}>\n" for name in here), encoding="utf-8")
        # Not -fsyntax-only: Zig looks for the object.
        yield (f"{target}: {len(here)} headers",
               lambda t=target, s=source: zig(t, "-c", str(s), "-o", str(s.with_suffix(".o"))))
    for name, sentence in stops.items():
        def refused(name=name, sentence=sentence):
            source = zig.work / f"refused.{pathlib.PurePath(name).stem}.cpp"
            source.write_text(f"#include <{name}>\n", encoding="utf-8")
            status, text = zig(WINDOWS, "-c", str(source), "-o", str(source.with_suffix(".o")))
            said = status != 0 and sentence in text and text.count("error: ") == 2
            return 0 if said else 1, text
        yield f"{WINDOWS}: {name} says '{sentence}'", refused
    for target in TARGETS[:2]:
        yield f"{target}: macros of flags", lambda t=target: macros(zig, t)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build/ziglang",
                        help="where caches and objects go")
    work = parser.parse_args().work.resolve()
    try:
        import ziglang
    except ImportError:
        print("zero: no Python package ziglang; nothing is compiled for macOS and Windows")
        return 0
    program = str(pathlib.Path(ziglang.__file__).parent / "zig")
    work.mkdir(parents=True, exist_ok=True)
    known, places = libraries(work / "include")
    texts = {path.relative_to(INCLUDE).as_posix(): path.read_text(encoding="utf-8")
             for path in sorted(INCLUDE.rglob("*.hpp"))}
    # A header that has moved is an error that says so.
    texts = {name: text for name, text in texts.items() if not re.search(r'^#error "zero: .* moved to ', text, re.M)}
    start = time.monotonic()
    zig = Zig(program, work, places)
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for what, job in [(what, pool.submit(run)) for what, run in jobs(zig, texts, known)]:
            status, text = job.result()
            print(f"{what}: {'ok' if status == 0 else 'FAILED'}", flush=True)
            if status != 0:
                print(text)
                failed += 1
    print(f"{time.monotonic() - start:.0f} s, {failed} failed; nothing of macOS or Windows was run")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
