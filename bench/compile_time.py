"""Measures what the library costs its users' compiler.

Prints processor seconds (the fastest of several runs, which other work on the machine disturbs
least) for a translation unit that only includes zero/zero.hpp, at -O0, and for one with a
trainer's loop, which instantiates a typical optimizer, at -O2. Exits with 1 if a budget is exceeded.

usage: compile_time.py [--compiler g++] [--runs 5]
"""

import argparse
import pathlib
import resource
import subprocess
import sys
import tempfile

INCLUDE = pathlib.Path(__file__).resolve().parent.parent / "include"

UNITS = {
    "include zero/zero.hpp, -O0": (
        1.5,
        "-O0",
        "#include <zero/zero.hpp>\nint main() {}\n",
    ),
    "a trainer's loop, -O2": (
        4.0,
        "-O2",
        """#include <zero/zero.hpp>
void train(zero::InProcess& comm);
void train(zero::InProcess& comm) {
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
""",
    ),
}


def children_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def compile_seconds(compiler, flag, source):
    before = children_seconds()
    subprocess.run(
        [compiler, "-std=c++20", flag, f"-I{INCLUDE}", "-c", source, "-o", "/dev/null"], check=True
    )
    return children_seconds() - before


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    exceeded = False
    with tempfile.TemporaryDirectory() as folder:
        for name, (budget, flag, text) in UNITS.items():
            source = pathlib.Path(folder) / "unit.cpp"
            source.write_text(text)
            best = min(
                compile_seconds(options.compiler, flag, str(source)) for _ in range(options.runs)
            )
            verdict = "ok" if best <= budget else "EXCEEDED"
            exceeded = exceeded or best > budget
            print(f"{name:32} {best:5.2f} s  budget {budget:.1f} s  {verdict}")
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
