"""Measures what the library costs its users' compiler.

Prints processor seconds as a multiple of those of a translation unit that includes what a program
with threads includes anyway, at the same flags: of several runs in turn, the fastest of each, which
other work on the machine disturbs least. Rows that begin with "further" compile the loop with threads
and one more choice of policies: their multiple is what the choice adds to the loop. "Declarations" are
what a unit sees that takes bodies from zero::compiled and zero::compiled_mpi. MB are the most memory that a compiler held.
Exits with 1 if a goal is missed.

    python3 bench/compile_time.py
    python3 bench/compile_time.py --list
    python3 bench/compile_time.py --runs 3 loop "loop, declarations" --json
"""

import argparse
import itertools
import json
import os
import pathlib
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
UMBRELLA = "#include <zero/zero.hpp>\n"

# What a trainer writes; `more` is how its own memory is lent.
LOOP = """void train_{name}({communicator}& comm);
void train_{name}({communicator}& comm) {{
  std::vector<zero::Tensor> const model{{{{.name = "w", .shape = {{1000}}}}}};
  zero::ShardedOptimizer opt{{comm, model, {policies}}};{more}
  opt.load_parameters([](zero::Tensor const&, std::size_t, std::span<float> values) {{
    for (float& value : values) value = 0.f;
  }});
  for (int const unit : opt.units()) {{
    auto const weights = opt.parameters(unit);
    auto gradients = opt.gradients(unit);
    gradients["w"][0] = weights["w"][0];
    opt.reduce(std::move(gradients));
  }}
  opt.step({{.max_norm = 1.}});
}}
"""
LENT = """
  std::vector<zero::bf16> parameters(1000), gradients(1000);
  opt.bind(std::span<zero::bf16>(parameters), std::span<zero::bf16>(gradients));"""
CHOICE = {
    "stage": "zero::stage::PosG{}",
    "precision": "zero::Mixed<zero::bf16>{}",
    "rule": "zero::AdamW{.lr = 1e-3f}",
}


def loop(communicator="zero::InProcess", name="first", more="", **other):
    policies = ", ".join((CHOICE | other).values())
    return LOOP.format(communicator=communicator, name=name, policies=policies, more=more)


def products():
    """A loop over each of 48 types."""
    stages = [f"zero::stage::{stage}{{}}" for stage in ("Replicated", "Pos", "PosG", "PosGP")]
    precisions = ["zero::Fp32{}", "zero::Mixed<zero::bf16>{}", "zero::Mixed<zero::fp16>{}"]
    rules = [f"zero::{rule}{{}}" for rule in ("AdamW", "Sgd", "Lion", "Adagrad")]
    return "".join(
        loop(name=f"{number}", stage=stage, precision=precision, rule=rule)
        for number, (stage, precision, rule) in enumerate(itertools.product(stages, precisions, rules))
    )


THREADS = UMBRELLA + loop()
MPI = "#include <zero/comm/mpi.hpp>\n" + UMBRELLA + loop("zero::Mpi<>")
FURTHER = {
    "stage": loop(name="second", stage="zero::stage::PosGP{}"),
    "AccumulateFull": loop(name="second", accumulation="zero::AccumulateFull{}"),
    "AccumulateShard": loop(name="second", accumulation="zero::AccumulateShard{}"),
    "Borrowed": loop(name="second", memory="zero::Borrowed{}", more=LENT),
    "rule": loop(name="second", rule="zero::Lion{}"),
    "precision": loop(name="second", precision="zero::Fp32{}"),
}
DECLARATIONS = ", declarations"
LOOP_ROW = {False: "loop", True: "loop" + DECLARATIONS}


def rows():
    """name: (flag, text, whether the unit sees declarations alone, the row it adds to)."""
    found = {}

    def add(name, text, flag="-O2", further=False, both=True):
        for declares in (False, True) if both else (False,):
            found[name + DECLARATIONS * declares] = (
                flag, text, declares, LOOP_ROW[declares] if further else None)

    add("zero.hpp", UMBRELLA, "-O0")
    add("loop", THREADS)
    for name, text in FURTHER.items():
        add(f"further {name}", THREADS + text, further=True)
    add("48 types", UMBRELLA + products(), both=False)
    add("loop over MPI", MPI)
    return found


# The most that is good enough; other rows have no goal.
GOALS = {"zero.hpp": 1.5, "zero.hpp, declarations": 1.5, "loop": 12.0, "loop, declarations": 2.5,
         "loop over MPI": 12.0, "loop over MPI, declarations": 3.5}
GOALS |= {f"further {name}{DECLARATIONS}": {"rule": 0.3, "precision": 0.6}.get(name, 0.2)
          for name in FURTHER}


def compile_once(compiler, flags, source):
    """Processor seconds and the largest process's MB."""
    command = [compiler, "-std=c++20", *flags, f"-I{INCLUDE}", "-c", source, "-o", os.devnull]
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)} failed")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def declarations(compiler, flag):
    """What zero::compiled and zero::compiled_mpi define for units of these flags."""
    source = "#include <zero/base/config.hpp>\nZERO_NAMESPACE\n"
    command = [compiler, "-std=c++20", flag, f"-I{INCLUDE}", "-E", "-P", "-xc++", "-"]
    result = subprocess.run(command, input=source, capture_output=True, text=True, check=True)
    return [f"-DZERO_COMPILED_{part}{result.stdout.split()[-1]}=1" for part in ("", "MPI_")]


def measure(units, compiler_of, runs):
    """The least seconds and MB of each unit and, as often measured, of the standard headers beside it."""
    least = {}
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "unit.cpp"

        def take(key, compiler, flags, text):
            source.write_text(text)
            found = compile_once(compiler, flags, str(source))
            least[key] = tuple(map(min, least.get(key, found), found))

        for _ in range(runs):
            for name, (flag, text, declares, _) in units.items():
                compiler = compiler_of(text)
                take(("standard", name), compiler, [flag], STANDARD)
                flags = [flag] + (declarations(compiler, flag) if declares else [])
                take(name, compiler, flags, text)
    return least


def results(units, least):
    """A row of figures for each unit."""
    for name, (_, _, _, base) in units.items():
        seconds, megabytes = least[name]
        standard = least["standard", name][0]
        own = seconds - (least[base][0] if base else 0)
        yield {"name": name, "seconds": seconds, "megabytes": megabytes, "ratio": own / standard,
               "standard_seconds": standard, "goal": GOALS.get(name)}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--mpi-compiler", default="mpicxx")
    parser.add_argument("--runs", type=int, default=5, help="of which the fastest counts")
    parser.add_argument("--json", action="store_true", help="print a list of rows instead of a table")
    parser.add_argument("--list", action="store_true", help="print the units' names")
    parser.add_argument("units", nargs="*", metavar="UNIT", help="those of these names alone")
    options = parser.parse_args()
    units = rows()
    if options.list:
        print("\n".join(units))
        return 0
    if wrong := [name for name in options.units if name not in units]:
        parser.error(f"no unit is called '{wrong[0]}'; --list says which there are")

    def compiler_of(text):
        return options.mpi_compiler if text is MPI else options.compiler

    wanted = options.units or list(units)
    # What a row adds is known where the loop is measured as well.
    wanted += [units[name][3] for name in wanted if units[name][3] not in (None, *wanted)]
    missing = [name for name in wanted if not shutil.which(compiler_of(units[name][1]))]
    for name in missing:
        print(f"{name}: not measured, there is no {compiler_of(units[name][1])}", file=sys.stderr)
    units = {name: unit for name, unit in units.items() if name in wanted and name not in missing}
    found = list(results(units, measure(units, compiler_of, options.runs)))
    missed = [row for row in found if row["goal"] is not None and row["ratio"] > row["goal"]]
    if options.json:
        print(json.dumps(found, indent=2))
        return 1 if missed else 0
    print(f"{'unit':32} {'seconds':>8} {'MB':>5} {'ratio':>6}")
    for row in found:
        line = f"{row['name']:32} {row['seconds']:8.2f} {row['megabytes']:5.0f} {row['ratio']:6.2f}"
        if row["goal"] is not None:
            line += f"  goal {row['goal']:.1f}  {'MISSED' if row in missed else 'ok'}"
        print(line)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
