"""Pages and comments name what there is: files as `path/name.ext`, and members as `Class::name`."""

import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Written in backticks, or as the text or target of a link.
FILE = re.compile(r"(?<![\w./<{$*-])((?!_)(?:[\w-]+/)*[\w-]+\.(?:hpp|cuh|h|cpp|cu|c|py|md|sh|cmake|pml))(?![\w/(*-])")
MEMBER = re.compile(r"`(?:zero::)?(?:\w+::)*([A-Z]\w*)::(\w+)(?:\(\))?`")
FOLDER = re.compile(r"`((?:[\w-]+/)+)`")
COMMENT = re.compile(r"^\s*(?:///?|#)(.*)$", re.MULTILINE)
SOURCES = ("include/", "examples/", "tests/", "bench/", "cmake/", ".ci/")
CODE = (".hpp", ".cuh", ".h", ".cpp", ".cu", ".c")

# Files that are a trainer's, the system's, or made by a command.
NOT_OURS = {
    "main.cpp", "main.cu", "zero.h", "mpi.h", "nccl.h", "mine.hpp", "cuda_runtime.h", "cuda_runtime_api.h",
    "torch/torch.h", "xxhash.h", "windows.h", "nlohmann/json.hpp", "optimizers.cpp", "trainer.c", "name.cpp",
    "name_test.cpp", "llm.c", "rcache.c", "TorchConfig.cmake", "blocks.cmake", "scripts/train/benchmarking/README.md",
}
# Stand for a name that somebody chooses.
CHOSEN = re.compile(r"(^|/)(name|NN_idea|question)(_test|_fuzz|_bench)?[.]\w+$")
# Namespaces and classes of others.
OTHERS = {"F::linear", "SGD::step", "Eigen::MatrixXd"}
# Checks of checks, over files that they make up.
INVENTED = ("tests/tooling/", "tests/readme/")
# Folders that commands of the page make.
MADE = ("build/", "carried/", "run/")
# Changes name what there was.
HISTORY = {"CHANGELOG.md"}


def tracked():
    """The repository's files, in a checkout that belongs to another user as well."""
    done = subprocess.run(["git", "-c", "safe.directory=*", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.splitlines()


def prose(path, text):
    """What a page says beside its blocks of code, or a source file in its comments."""
    if path.endswith(".md"):
        return re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), text,
                      flags=re.MULTILINE | re.DOTALL)
    if path.endswith(".py"):
        parts = text.split('"""')
        for i in range(0, len(parts), 2):  # code; its comments stay
            parts[i] = re.sub(r"^[^#\n]*", "", parts[i], flags=re.MULTILINE)
        return "".join(parts)
    lines = (COMMENT.match(line) for line in text.splitlines())
    return "\n".join(line[1] if line else "" for line in lines)


def unknown_files(path, text, files):
    """(line, name) of what is named and is not there, under any folder."""
    found = []
    for number, line in enumerate(prose(path, text).splitlines(), 1):
        for name in FILE.findall(line):
            if name in NOT_OURS or CHOSEN.search(name):
                continue
            if not any(file == name or file.endswith("/" + name) for file in files):
                found.append((number, name))
        for name in FOLDER.findall(line):
            if not name.startswith(MADE) and not any("/" + name in "/" + file for file in files):
                found.append((number, name))
    return found


def unknown_members(path, text, words):
    """(line, Class::name) where no file that defines the class has the name."""
    found = []
    for number, line in enumerate(prose(path, text).splitlines(), 1):
        for owner, member in MEMBER.findall(line):
            name = f"{owner}::{member}"
            if name not in OTHERS and not any(member in names for names in words.get(owner, ())):
                found.append((number, name))
    return found


def definitions(files):
    """{class: the words of each file that defines it}."""
    found = {}
    for file in files:
        if file.endswith(CODE):
            text = (ROOT / file).read_text(encoding="utf-8")
            names = set(re.findall(r"\w+", text))
            for owner in re.findall(r"(?:class|struct|enum class|union|using)(?: alignas[(]\d+[)])? ([A-Z]\w*)", text):
                found.setdefault(owner, []).append(names)
    return found


class Words(unittest.TestCase):
    def setUp(self):
        self.files = tracked()
        if not self.files:
            self.skipTest("this is no checkout of git")

    def test_what_is_found(self):
        page = "See `room/a.hpp` in `room/` and `hall/`, [b](b.md).\n```cpp\n#include \"c.hpp\"\n```\nand d.py, `One::x`, `Two::y`.\n"
        self.assertEqual(unknown_files("page.md", page, ["room/a.hpp", "x/b.md"]), [(1, "hall/"), (5, "d.py")])
        self.assertEqual(unknown_files("c.hpp", "// as e.hpp\nint f;  // g.hpp\n", []), [(1, "e.hpp")])
        self.assertEqual(unknown_members("page.md", page, {"One": [{"One", "y"}], "Two": [{"y"}]}),
                         [(5, "One::x")])
        self.assertEqual(unknown_members("page.md", page, {"Two": [{"y"}]}), [(5, "One::x")])

    def test_pages_and_comments(self):
        words = definitions(self.files)
        wrong = []
        for path in self.files:
            known = path.endswith(".md") or (path.startswith(SOURCES) and path.endswith((*CODE, ".py", ".cmake")))
            if not known or path in HISTORY or path.startswith(INVENTED):
                continue
            text = (ROOT / path).read_text(encoding="utf-8")
            wrong += [f"{path}:{line}: there is no {name}"
                      for line, name in unknown_files(path, text, self.files) + unknown_members(path, text, words)]
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
