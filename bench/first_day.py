#!/usr/bin/env python3
"""Measures a stranger's first day: the README's two commands on a bare system, from nothing, and then its
ways to get the library, each with the first program.

    python3 bench/first_day.py                     # Debian 12
    python3 bench/first_day.py --command demo      # one of the commands
    python3 bench/first_day.py --command install   # the ways to get the library alone
    python3 bench/first_day.py --release trixie --json first_day.json

Makes a bare system (debootstrap, minbase), puts the last commit there, asks apt what the packages of
a command are and how much it downloads for them, installs them, and runs the command. Nothing of this
machine is visible there. Prints a table. Needs root, debootstrap and git, 3 GB and about 25 minutes on
two cores. Commands run in the order in which they are named here, in the same system.
"""

import argparse
import json
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
ENTER = r"""
root=$1
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
exec chroot "$root" /usr/bin/env -i HOME=/root LANG=C.UTF-8 TERM=dumb \
  PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh -euc "cd /root/zero && $2"
"""

# The ways of the README to get the library, behind `install-deps.sh install`, with what a way needs besides.
# The program is the front page's.
WAYS_NEED = {"pkg-config": "pkg-config", "Conan": "make python3-venv"}
PROGRAM = "blocks=/tmp/blocks && python3 tests/readme/extract.py --root . --out $blocks README.md"
WAYS = {
    "fetched by CMake":
        "mkdir /tmp/fetched && cp $blocks/README_1.cmake /tmp/fetched/CMakeLists.txt && "
        "cp $blocks/README_2.cpp /tmp/fetched/main.cpp && cd /tmp/fetched && "
        "cmake -S . -B b -G Ninja -DFETCHCONTENT_SOURCE_DIR_ZERO=/root/zero && cmake --build b && "
        "./b/quickstart | diff - $blocks/README_3.txt",
    "installed by CMake":
        "cmake --workflow --preset install && "
        "mkdir /tmp/found && cp $blocks/README_2.cpp /tmp/found/main.cpp && "
        "sed 's/^include.*//; s/^FetchContent_Declare.*/find_package(zero REQUIRED)/; "
        "s/^FetchContent_Make.*//' $blocks/README_1.cmake >/tmp/found/CMakeLists.txt && "
        "cd /tmp/found && cmake -S . -B b -G Ninja && cmake --build b && ./b/quickstart | diff - $blocks/README_3.txt",
    "headers alone":
        "cmake --preset install -DZERO_BUILD_PROGRAMS=OFF -DCMAKE_INSTALL_PREFIX=/tmp/headers && "
        "cmake --build --preset install && test -e /tmp/headers/include/zero/zero.hpp",
    "pkg-config":
        "g++ -std=c++20 $blocks/README_2.cpp -o /tmp/by_flags $(pkg-config --cflags --libs zero) && "
        "/tmp/by_flags | diff - $blocks/README_3.txt",
    "one header":
        "mkdir -p /tmp/one/zero && python3 cmake/amalgamate.py -o /tmp/one/zero/zero.hpp && "
        "g++ -std=c++20 -I/tmp/one $blocks/README_2.cpp -o /tmp/by_header -pthread && "
        "/tmp/by_header | diff - $blocks/README_3.txt",
    "Conan":
        "python3 -m venv /tmp/venv && /tmp/venv/bin/pip install -q conan && "
        "export PATH=/tmp/venv/bin:$PATH && conan profile detect && conan create .",
}


def fail(text):
    sys.exit(f"zero: {text}")


class System:
    """A bare system in a folder."""

    def __init__(self, folder, release):
        self.root = folder / release
        print(f"zero: making a bare {release} in {self.root}", file=sys.stderr)
        made = subprocess.run(["debootstrap", "--variant=minbase", release, self.root],
                              capture_output=True, text=True, check=False)
        if made.returncode != 0:
            fail(made.stdout[-2000:] + made.stderr)
        # A mirror may keep a release longer than the release says that it is valid.
        (self.root / "etc/apt/apt.conf.d/99zero").write_text('Acquire::Check-Valid-Until "false";\n',
                                                             encoding="utf-8")
        shutil.copy("/etc/resolv.conf", self.root / "etc/resolv.conf")
        # Whom this machine trusts, such as a proxy, is trusted there; pip has a list of its own.
        trusted = pathlib.Path("/etc/ssl/certs/ca-certificates.crt")
        if trusted.exists():
            shutil.copy(trusted, self.root / "etc/trusted.crt")
            (self.root / "etc/pip.conf").write_text("[global]\ncert = /etc/trusted.crt\n", encoding="utf-8")
        checkout = self.root / "root/zero"
        checkout.mkdir(parents=True)
        archive = subprocess.run(["git", "-c", "safe.directory=*", "archive", "HEAD"], cwd=ROOT,
                                 stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "-x", "-C", checkout], input=archive.stdout, check=True)

    def run(self, command):
        """Output of a command, its wall time, and the processors' time of it and all it started."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.monotonic()
        done = subprocess.run(["unshare", "--mount", "--pid", "--fork", "sh", "-euc", ENTER, "enter",
                               self.root, command], stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        wall = time.monotonic() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode != 0:
            fail(f"'{command}' failed:\n{done.stdout[-4000:]}")
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return done.stdout, wall, cpu


def download(system, command):
    """Number and bytes of the packages that a command needs on the bare system."""
    uris, _, _ = system.run("apt-get install -qq --print-uris --no-install-recommends "
                            f"$(sh cmake/install-deps.sh {command} --print)")
    sizes = [int(found[1]) for found in re.finditer(r"^'\S+' \S+ (\d+) ", uris, re.MULTILINE)]
    return len(sizes), sum(sizes)


def measure_ways(system, ways):
    """Gets the library in ways of the README, and prints a table."""
    count, size = download(system, "install")
    system.run("sh cmake/install-deps.sh install && apt-get install -q -y --no-install-recommends python3")
    _, _, program = system.run(f"{PROGRAM} && g++ -std=c++20 -O2 -Iinclude $blocks/README_2.cpp -o /tmp/program "
                               "-pthread")
    print(f"`sh cmake/install-deps.sh install`: {count} packages, {size / 1e6:.0f} MB that were not there; the "
          f"README's program alone at -O2: {program:.1f} s of the processors\n")
    print("| way | needs besides | seconds | processors' time | over the program's |")
    print("|---|---|---|---|---|")
    for way in ways:
        command = WAYS[way]
        print(f"zero: {way}", file=sys.stderr)
        besides = WAYS_NEED.get(way, "")
        if besides:
            system.run(f"apt-get install -q -y --no-install-recommends {besides}")
        _, wall, cpu = system.run(f"{PROGRAM} && {command}")
        print(f"| {way} | {besides or '-'} | {wall:.0f} s | {cpu:.1f} s | {cpu / program:.1f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", default="bookworm", help="of Debian (bookworm)")
    parser.add_argument("--command", choices=["demo", "test", "install"], action="append",
                        help="that is run (demo and test)")
    parser.add_argument("--way", choices=WAYS, action="append", help="to get the library (all)")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "first_day",
                        help="for the system, which is removed afterwards")
    parser.add_argument("--json", type=pathlib.Path, help="file for the same numbers")
    options = parser.parse_args()
    for tool in ("debootstrap", "git", "unshare", "chroot"):
        if shutil.which(tool) is None:
            fail(f"{tool} is missing; on Debian: apt-get install debootstrap git util-linux")
    options.folder.mkdir(parents=True, exist_ok=True)
    rows = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        system = System(pathlib.Path(folder), options.release)
        system.run("apt-get update -q")
        wanted = options.command or ["demo", "test", "install"]
        commands = [command for command in wanted if command != "install"]
        needs = {command: download(system, command) for command in commands}
        for command in commands:
            print(f"zero: {command}", file=sys.stderr)
            _, installing, _ = system.run(f"sh cmake/install-deps.sh {command}")
            said, wall, cpu = system.run(f"cmake --workflow --preset {command}")
            verdict = re.findall(r"^(\d+% tests passed.*|losses and parameters are .*)$", said, re.MULTILINE)
            if not verdict:
                fail(f"'{command}' ended without its verdict:\n{said[-4000:]}")
            rows.append({"command": command, "packages": needs[command][0],
                         "megabytes": needs[command][1] / 1e6, "install_seconds": installing,
                         "seconds": wall, "cpu_minutes": cpu / 60,
                         "said": verdict[-1]})
        if "install" in wanted:
            measure_ways(system, options.way or WAYS)
    if not rows:
        return
    print(f"\n{options.release}, from a bare system; packages and download are each command's own\n")
    print("| command | packages | download | installing | then | processors' time | said |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(f"| {row['command']} | {row['packages']} | {row['megabytes']:.0f} MB "
              f"| {row['install_seconds']:.0f} s | {row['seconds']:.0f} s "
              f"| {row['cpu_minutes']:.1f} min | {row['said']} |")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
