"""A call that an error's text recommends is one that the optimizer which raises it has."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "include"
STRING = r'"(?:[^"\\\n]|\\.)*"'
CALL = re.compile(r"([\w:.]+)\(([^()]*)\)")

# Where a text gives no arguments, and none of the functions of that name can do without.
ARGUMENTS = {
    "bind": "lent, lent_gradients",
    "bind_gradients": "lent_gradients",
    "change_gradients": "fill",
    "fill_owned": "fill",
    "gradients": "unit",
    "load_parameters": "values",
    "parameters": "unit",
    "reduce": "std::move(guard)",
    "set_lr": "0.1",
    "set_rule": "rule",
    "visit_gradients": "fill",
    "without_gradient": "unit",
}
# Texts that not every optimizer raises, by a part of theirs.
LENT = ("once they are allocated", "memory is used before bind()", "not lent in this step",
        "gradients are written to all of them", "adopt_parameters() or load_parameters(): the master")
WHOLE = ("broadcast_parameters() gives all of them",)
# Calls of something else: of a communicator, of a rule, of the library's own modules, of Python's torch and LibTorch.
OTHERS = {"capture", "std::move", "comm.capture", "take_apart", "core", "has_value", "node.has_value", "close",
          "measure", "adjust"}
TORCH = {"clone", "contiguous", "forward", "set_data", "sparse", "to", "torch::load"}

PROGRAM = """
#include <zero/zero.hpp>
using namespace zero;
template <class Stage, class Memory>
using Optimizer = ShardedOptimizer<Self, Stage, Memory>;
inline constexpr auto values = [](Tensor const&, std::size_t, auto) {};
inline constexpr auto fill = [](auto const&...) {};
#define ZERO_ASK(optimizers, text, ...)                                                         \\
  template <class O>                                                                            \\
  concept CONCAT(Asked, __LINE__) =                                                             \\
      requires(O& optimizer, UnitGradients<O> guard, std::span<float> lent, AdamW const& rule,  \\
               std::span<float> lent_gradients, int unit) { optimizer.__VA_ARGS__; };           \\
  optimizers(CONCAT(Asked, __LINE__), text " recommends " #__VA_ARGS__)
#define CONCAT(a, b) CONCAT_(a, b)
#define CONCAT_(a, b) a##b
#define LENT(asked, text)                                        \\
  static_assert(asked<Optimizer<stage::Replicated, Borrowed<>>>, text); \\
  static_assert(asked<Optimizer<stage::Pos, Borrowed<>>>, text);        \\
  static_assert(asked<Optimizer<stage::PosG, Borrowed<>>>, text)
#define WHOLE(asked, text)                                    \\
  LENT(asked, text);                                          \\
  static_assert(asked<Optimizer<stage::Replicated, Owned<>>>, text); \\
  static_assert(asked<Optimizer<stage::Pos, Owned<>>>, text);        \\
  static_assert(asked<Optimizer<stage::PosG, Owned<>>>, text)
#define ALL(asked, text) \\
  WHOLE(asked, text);    \\
  static_assert(asked<Optimizer<stage::PosGP, Owned<>>>, text)
"""


def texts(source):
    """(line, text) of each literal that is no comment, pieces joined."""
    source = re.sub(r"//[^\n]*", "", source)
    for literal in re.finditer(rf"{STRING}(?:\s*{STRING})*", source):
        yield source.count("\n", 0, literal.start()) + 1, "".join(p[1:-1] for p in re.findall(STRING, literal[0]))


def calls(text):
    """(name, arguments) of what a text names as a call, but for the one that failed, which it begins with."""
    return [(call[1].lstrip("."), call[2]) for call in CALL.finditer(text) if text[:call.start()] not in ("", "zero: ")]


def raised_by(text):
    """Which optimizers raise it."""
    if any(part in text for part in LENT):
        return "LENT"
    return "WHOLE" if any(part in text for part in WHOLE) else "ALL"


def question(where, text, name, arguments):
    """One line of C++ that asks whether those optimizers have the call."""
    arguments = arguments.replace("unit, ...", "unit, std::span<std::span<float> const>()")
    if not arguments:
        arguments = ARGUMENTS.get(name, "")
    return f'ZERO_ASK({raised_by(text)}, "{where}", {name}({arguments}));'


def questions():
    """All of the headers' texts."""
    for path in sorted(INCLUDE.rglob("*.h*")):
        where = path.relative_to(INCLUDE)
        for line, text in texts(path.read_text(encoding="utf-8")):
            for name, arguments in calls(text):
                if name in OTHERS or ("adapt/libtorch" in str(where) and name in TORCH):
                    continue
                yield question(f"{where}:{line}", text, name, arguments)


def compiled(lines):
    """What a compiler says of the questions; nothing where all are answered with yes."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "advice.cpp")
        source.write_text(PROGRAM + "\n".join(lines), encoding="utf-8")
        done = subprocess.run([compiler, "-std=c++20", "-fsyntax-only", "-I", str(INCLUDE), str(source)],
                              capture_output=True, text=True, check=False)
    return [line for line in done.stderr.splitlines() if "error:" in line]


class Advice(unittest.TestCase):
    def test_what_is_found(self):
        source = '// "no()"\nfail({"no values: call a(values), " \n "b() or c(unit, ...)", x, "bind() while"});'
        found = list(texts(source))
        self.assertEqual(found, [(2, "no values: call a(values), b() or c(unit, ...)"), (3, "bind() while")])
        self.assertEqual(calls(found[0][1]), [("a", "values"), ("b", ""), ("c", "unit, ...")])
        self.assertEqual(calls(found[1][1]), [])

    def test_every_recommended_call(self):
        asked = list(questions())
        self.assertGreater(len(asked), 20)
        # One that a stage does not have, and one that nobody has: the compiler is asked in earnest.
        wrong = [question("here", "; call it first", name, "") for name in ("broadcast_parameters", "adopt_values")]
        found = compiled(asked + wrong)
        self.assertEqual(len([line for line in found if "here recommends broadcast_parameters()" in line]), 1)
        self.assertEqual(len([line for line in found if "here recommends adopt_values()" in line]), 7)
        others = [line for line in found if "here recommends" not in line]
        self.assertEqual(others, [], "\n" + "\n".join(others))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
