#!/usr/bin/env python3
"""What nvcc makes of the kernels of a step, where no GPU is at hand to time them.

    python3 tests/cuda/kernels_test.py --include include --source tests/cuda/kernels.cu --table

None may spill registers, nor keep anything in memory of its threads: a device sets that aside for
every thread that it can run. None may be longer than the caches for instructions, or wait in a loop
of compare-and-swap. Those that pass over arrays are held against what an A100 and an H100 need to
move bytes as fast as their memories can:

- slots: instructions that the device can issue in the time that its memory takes for what they move.
- bytes in flight: what the threads of a multiprocessor have asked for while they wait.

Both must be 1.3 times what is needed. The way through a loop, or through a kernel that has none, is
the one that moves most bytes at once. For that nvdisasm must be in the PATH, beside nvcc, or come from
PyPI's nvidia-cuda-nvdisasm; else only what ptxas says is judged, and a line says so.
"""

import argparse
import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import machine_code

MARGIN = 1.3
LONGEST = 1500  # instructions of a kernel
MOST_RANDOM = 80  # instructions for each element of a kernel that rounds stochastically
# Of one whose states are codes: two are decoded, and encoded with a root each. A rule's own root and division take 20 of
# them, random bits 8, addresses and accesses 7; and masters of 24 bits 22 more, some of them for random bits as well.
MOST_CODED, MOST_CODED_OF_SHORT_RESTS = 108, 130
# Out of its way are a slice that begins in the middle of a block of random bits, and elements that are not aligned.
LONGEST_CODED = 1850
# Of slots, for masters of 24 bits: an H100 could move their few bytes faster than it can issue these instructions.
CODED_MARGIN = 0.75
BLOCK_THREADS = 256
CODED_WIDTH = 8  # elements of a group that a thread updates
# A block of an update over 25 MiB on 8 ranks may take so long before it asks for its first elements.
EARLY = 0.03
CYCLES = 4  # of an instruction that waits for the one before
# Which code each is compiled from. Where it is the same, it is read once.
BUILDS = {"75": ["75", "86", "89", "120"], "80": ["80"], "90": ["90"]}
RESIDENT = {"75": 1024, "80": 2048, "86": 1536, "89": 1536, "90": 2048, "120": 1536}
# Multiprocessors, clock, bytes a second, seconds until bytes are there.
DEVICES = {"80": ("A100", 108, 1.41e9, 1.555e12, 600e-9), "90": ("H100", 132, 1.755e9, 3.35e12, 700e-9)}
UPDATES = ("update", "update_with_random_bits", "update_codes")
RULES = (*UPDATES, "measure")
PASSES = (*RULES, "sum_ranks", "sum_ranks_and_square", "add_squares", "gather_ranks")
OTHERS = ("add_hash", "find_unrounded", "call")


class Kernel:
    def __init__(self, mangled, remark, architecture, code):
        found = re.search(rf"kernels\d+({'|'.join(sorted(PASSES + OTHERS, key=len, reverse=True))})(\w*)", mangled)
        self.name, self.architecture, self.code = (found[1] if found else "CUB's"), architecture, code
        self.mangled = mangled
        rest = found[2] if found else ""
        names = {"fp16": "fp16", "bf16": "bf16"}
        types = re.findall(r"\d(fp16|bf16|BufferList|BufferBlocks|AdamW|[A-Z][A-Za-z]+)(?=E|[A-Z])|(?<=[IE_])([fdijlhm]+)(?=E|NS)", rest)
        self.types = " ".join(names.get(a, a) or b for a, b in types)[:44]
        self.clean = re.search(r"\b0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads", remark)
        self.registers = int(re.search(r"Used (\d+) registers", remark)[1])
        shared = re.search(r"(\d+) bytes smem", remark)
        self.shared = int(shared[1]) if shared else 0
        # Its tiles are loops, and what comes before the first is no part of what an element takes.
        self.steps = (machine_code.loop if self.name == "update_codes" else machine_code.work)(code)

    @property
    def passes(self):
        """Does it pass over arrays that are aligned as the library's own?"""
        return self.name in PASSES and not (self.name == "gather_ranks" and "Lm4E" not in self.mangled)

    @property
    def threads(self):
        """That a multiprocessor runs at once."""
        per_block = -(-self.registers // 8) * 8 * BLOCK_THREADS
        return min(RESIDENT[self.architecture] // BLOCK_THREADS, 65536 // per_block) * BLOCK_THREADS

    @property
    def moved(self):
        return sum(step.wide_bytes for step in self.steps)

    @property
    def read(self):
        return sum(step.wide_bytes for step in self.steps if step.loads)

    def slots(self):
        """That there are, over those that are needed."""
        _, processors, clock, bandwidth, _ = DEVICES[self.architecture]
        return 4 * processors * clock / bandwidth * 32 * self.moved / len(self.steps)

    def flying(self):
        """Bytes that a multiprocessor has asked for, over those that it has to."""
        _, processors, _, bandwidth, latency = DEVICES[self.architecture]
        needed = latency * bandwidth / processors * self.read / self.moved
        return machine_code.in_flight(self.steps) * self.threads / needed

    def early(self):
        """Time before the first elements are asked for, over that of an update of 25 MiB on 8 ranks."""
        _, _, clock, bandwidth, _ = DEVICES[self.architecture]
        return machine_code.before_first_load(self.code) * CYCLES / clock / (28 * 25 * 2**20 / 4 / 8 / bandwidth)

    def for_an_element(self):
        """Instructions of the loop over the vectors of a thread."""
        width = re.search(r"random_bitsILm(\d+)E", self.mangled)
        return len(machine_code.loop(self.code)) / (int(width[1]) if width else CODED_WIDTH)

    def problems(self):
        if not self.clean:
            yield "has a stack or spills registers"
        if self.name == "CUB's" or not self.code:
            return  # what else CUB's are like, their authors judge by measuring
        if len(self.code) > (LONGEST_CODED if self.name == "update_codes" else LONGEST):
            yield f"has {len(self.code)} instructions"
        if any("CAS" in step.operation for step in self.code):
            yield "compares and swaps"
        if not self.passes:
            return
        if not self.steps:
            yield "moves no 8 bytes at once"
            return
        # Remainders of 8 bits are accessed in 4 bytes: as many elements as there are of 4 bytes in 16.
        words = "BasicRestOfMasterIh" in self.mangled
        narrow = [step for step in self.steps
                  if (step.loads or step.stores) and not (step.wide_bytes or step.told or step.predicate)
                  and not (words and not re.search(r"\.[US](8|16)\b", step.operation))]
        if self.name == "update_codes":  # reads a scale for each of two states
            narrow = narrow[sum(".U8" in step.operation and step.loads for step in narrow[:2]):]
        if narrow:
            yield f"has {len(narrow)} narrow accesses on its way"
        branches = sum(step.target is not None and bool(step.predicate) for step in self.steps)
        # A root and a division of a rule branch to what is rarely needed.
        if self.name not in RULES and branches > self.moved / 8:
            yield f"branches {branches} times for {self.moved} bytes"
        if self.architecture not in DEVICES:
            return
        if self.slots() < (CODED_MARGIN if self.name == "update_codes" and words else MARGIN):
            yield f"has {self.slots():.2f} times the slots that it needs"
        if self.flying() < MARGIN:
            yield f"has {self.flying():.2f} times the bytes in flight that it needs"
        if self.name in UPDATES and self.early() > EARLY:
            yield f"asks for its first elements after {self.early():.1%} of a small update"
        if self.name == "update_with_random_bits" and self.for_an_element() > MOST_RANDOM:
            yield f"has {self.for_an_element():.1f} instructions for an element"
        most = MOST_CODED_OF_SHORT_RESTS if words else MOST_CODED
        if self.name == "update_codes" and self.for_an_element() > most:
            yield f"has {self.for_an_element():.1f} instructions for an element"

    def row(self):
        cells = [self.name, self.types, str(self.registers), str(self.threads), str(len(self.code))]
        if self.passes and self.steps and self.architecture in DEVICES:
            cells += [f"{len(self.steps) * 16 / self.moved:.1f}", f"{self.slots():.1f}", f"{self.flying():.1f}",
                      str(machine_code.before_first_load(self.code))]
        return "| " + " | ".join(cells + ["-"] * (9 - len(cells))) + " |"


def disassembler(nvcc):
    beside = shutil.which("nvdisasm") or shutil.which("nvdisasm", path=str(pathlib.Path(shutil.which(nvcc) or nvcc).parent))
    if beside:
        return beside
    package = importlib.util.find_spec("nvidia")
    for folder in package.submodule_search_locations if package else []:
        for found in sorted(pathlib.Path(folder).glob("*/bin/nvdisasm")):
            found.chmod(found.stat().st_mode | 0o111)
            return str(found)
    return None


def compiled(arguments, virtual, real, disassemble):
    """The kernels as they are compiled for some architectures."""
    with tempfile.TemporaryDirectory() as folder:
        code = ",".join(f"sm_{one}" for one in real)
        run = subprocess.run(
            [arguments.nvcc, "-std=c++20", "--expt-relaxed-constexpr", f"-gencode=arch=compute_{virtual},code=[{code}]",
             "-Xptxas=-v", "--keep", "--keep-dir", folder, "-I", arguments.include, "-fatbin",
             arguments.source, "-o", f"{folder}/kernels.fatbin"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if run.returncode != 0:
            sys.exit(run.stdout)
        machine = {}
        for cubin in pathlib.Path(folder).glob("*.cubin") if disassemble else []:
            architecture = real[0] if len(real) == 1 else re.search(r"sm_(\d+)", cubin.name)[1]
            text = subprocess.run([disassemble, "-c", cubin], stdout=subprocess.PIPE, text=True, check=True).stdout
            machine[architecture] = dict(machine_code.kernels(text))
    for remark in run.stdout.split("Compiling entry function")[1:]:
        mangled, architecture = re.match(r"\s*'(\S+)' for 'sm_(\d+)", remark).groups()
        yield Kernel(mangled, remark, architecture, machine.get(architecture, {}).get(mangled, []))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--include", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--table", action="store_true", help="print what each kernel is like")
    arguments = parser.parse_args()
    disassemble = disassembler(arguments.nvcc)
    if disassemble is None:
        print("no nvdisasm: registers alone are judged, no instructions (pip install nvidia-cuda-nvdisasm)")
    failures = 0
    for virtual, real in BUILDS.items():
        kernels = list(compiled(arguments, virtual, real, disassemble))
        for architecture in real:
            mine = [kernel for kernel in kernels if kernel.architecture == architecture]
            if arguments.table and architecture in DEVICES:
                print(f"\n{DEVICES[architecture][0]} (sm_{architecture})\n")
                print("| kernel | types | registers | threads | instructions | for 16 bytes | slots | in flight | before the first load |")
                print("|---|---|---|---|---|---|---|---|---|")
                print("\n".join(kernel.row() for kernel in sorted(mine, key=lambda k: (k.name, k.types))))
            for kernel in mine:
                for problem in kernel.problems():
                    failures += 1
                    print(f"sm_{architecture}: {kernel.mangled} {problem}")
            missing = {*PASSES, *OTHERS} - {kernel.name for kernel in mine}
            if missing:
                failures += 1
                print(f"sm_{architecture}: not found: {', '.join(sorted(missing))}")
    print(f"{failures} problems")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
