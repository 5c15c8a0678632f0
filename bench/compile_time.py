"""Measures what the library costs its users' compiler.

Prints processor seconds as a multiple of those of a translation unit that includes what a program
with threads includes anyway, at the same flags: of several runs in turn, the fastest of each, which
other work on the machine disturbs least. Exits with 1 if a goal is missed.

usage: compile_time.py [--compiler g++] [--mpi-compiler mpicxx] [--runs 5]
"""

import argparse
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile

INCLUDE = pathlib.Path(__file__).resolve().parent.parent / "include"

STANDARD = "".join(
    f"#include <{header}>\n"
    for header in "algorithm array atomic condition_variable functional memory mutex span string "
    "thread vector".split()
)

LOOP = """#include <zero/zero.hpp>
void train(COMMUNICATOR& comm);
void train(COMMUNICATOR& comm) {
  std::vector<zero::Tensor> const model{{.name = "w", .shape = {1000}}};
  zero::ShardedOptimizer opt{
      comm, model, zero::stage::PosG{}, zero::Mixed<zero::bf16>{}, zero::AdamW{.lr = 1e-3f}};
  opt.load_parameters([](zero::Tensor const&, std::size_t, std::span<float> values) {
    for (float& value : values) value = 0.f;
  });
  for (int const unit : opt.units()) {
    auto const weights = opt.parameters(unit);
    auto gradients = opt.gradients(unit);
    gradients["w"][0] = weights["w"][0];
    opt.reduce(std::move(gradients));
  }
  opt.step({.max_norm = 1.});
}
"""
THREADS = LOOP.replace("COMMUNICATOR", "zero::InProcess")
MPI = "#include <zero/comm/mpi.hpp>\n" + LOOP.replace("COMMUNICATOR", "zero::Mpi<>")

# Stands for what zero::compiled defines: its flags are those of the unit.
COMPILED = "-DZERO_COMPILED"

# name: (goal, flags, text); MPI's needs its compiler.
UNITS = {
    "zero.hpp, -O0": (1.5, ["-O0"], "#include <zero/zero.hpp>\n"),
    "a loop with threads, -O2": (6.0, ["-O2"], THREADS),
    "the same over zero::compiled": (3.6, ["-O2", COMPILED], THREADS),
    "a loop over MPI, -O2": (9.0, ["-O2"], MPI),
}


def children_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def compile_seconds(compiler, flags, source):
    before = children_seconds()
    subprocess.run(
        [compiler, "-std=c++20", *flags, f"-I{INCLUDE}", "-c", source, "-o", "/dev/null"], check=True
    )
    return children_seconds() - before


def flags_name(compiler, flags):
    source = "#include <zero/base/config.hpp>\nZERO_NAMESPACE\n"
    command = [compiler, "-std=c++20", *flags, f"-I{INCLUDE}", "-E", "-P", "-xc++", "-"]
    result = subprocess.run(command, input=source, capture_output=True, text=True, check=True)
    return result.stdout.split()[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--mpi-compiler", default="mpicxx")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    missed = False
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "unit.cpp"
        for name, (goal, flags, text) in UNITS.items():
            compiler = options.mpi_compiler if text is MPI else options.compiler
            if not shutil.which(compiler):
                print(f"{name:32} not measured: no {compiler}")
                continue
            name_of_flags = flags_name(compiler, flags)
            flags = [f"{COMPILED}_{name_of_flags}=1" if f == COMPILED else f for f in flags]
            standard, own = [], []
            for _ in range(options.runs):
                for seconds, unit in ((standard, STANDARD), (own, text)):
                    source.write_text(unit)
                    seconds.append(compile_seconds(compiler, flags, str(source)))
            ratio = min(own) / min(standard)
            verdict = "ok" if ratio <= goal else "MISSED"
            missed = missed or ratio > goal
            print(f"{name:32} {min(own):5.2f} s  {ratio:5.2f} x  goal {goal:.1f} x  {verdict}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
