#!/usr/bin/env python3
"""Takes the code blocks out of Markdown files, so that none of them is left untested.

    extract.py --root DIR --out DIR DOCUMENT...

Documents are named relative to the repository's root. Writes one file per block into the directory
of --out, and blocks.cmake with one call per block:

    readme_block(<name> <kind> <file> <argument>)

A comment directly above a block says what becomes of it, '<!-- test: KIND ARGUMENT -->':

| language | kind    | meaning                                                                    |
|----------|---------|----------------------------------------------------------------------------|
| cpp      | program | a complete program; it is run                                              |
| cpp      | body    | what every rank does with its communicator `comm`; it is run on two        |
|          |         | ranks. With the argument 'types', it has the last block of that kind       |
|          |         | before it                                                                  |
| cpp      | types   | declarations at namespace scope                                            |
| cpp      | doctest | test cases                                                                 |
| cpp      | bench   | a program over zero/bench.hpp; it is run briefly, and has the code of the    |
|          |         | example that the argument names before it                                  |
| cpp      | cuda    | a translation unit for nvcc that is compiled where it and the component    |
|          |         | that the argument names are there                                          |
| cpp, c   | quote   | lines of the file that the argument names, found from the document; blank  |
|          |         | lines and '...' stand for what lies between them                           |
| sh       | ci      | every command is one of .ci/run, or a workflow of CMakePresets.json        |
| sh       | run     | run in a directory that has the root's include and examples                |
| cmake    | project | a consumer's CMakeLists.txt, of the next two; where it has a path to the   |
|          |         | library, the tests have their own                                          |
| cpp      | main    | its main.cpp; nothing else is there                                        |
| text     | printed | all that the program prints                                                |
| text     | output  | appears in the output of the program that the argument names               |
| text     | session | lines that begin with '$ ' run the program that the argument names; all    |
|          |         | other lines are what it prints, '...' any of them                          |

A block without such a line, a line without a block and a relative link that leads nowhere are
errors: 'document:line: what is wrong'. Of what --links names only links are looked at.
"""

import argparse
import json
import pathlib
import re
import sys

KINDS = {
    "cpp": ("program", "body", "types", "doctest", "bench", "cuda", "quote", "main"),
    "c": ("quote",),
    "sh": ("ci", "run"),
    "cmake": ("project",),
    "text": ("output", "session", "printed"),
}
SUFFIX = {"cpp": ".cpp", "c": ".c", "sh": ".sh", "cmake": ".cmake", "text": ".txt"}
NEEDS_ARGUMENT = ("output", "session", "cuda", "quote")
MARKER = re.compile(r"<!-- test: (\w+) ?(.*?) -->$")
FENCE = re.compile(r"\s*(```+|~~~+)\s*(\w*)\s*$")
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
INCLUDE = re.compile(r"\s*#include ")

PROLOGUE = """#include <zero/zero.hpp>

#include "trainer.hpp"
"""


class Problem(Exception):
    """Something in a document that no test could stand for."""


class Block:
    """One fenced block: where it is, what it says, what is to be done with it."""

    def __init__(self, document, number, line, language, marker, lines):
        self.where = f"{document}:{line}"
        self.name = re.sub(r"\W+", "_", str(document.with_suffix(""))) + f"_{number}"
        self.document = document
        self.line = line + 1
        self.language = language
        self.lines = lines
        self.types = ""  # that come before it
        if language not in KINDS:
            raise Problem(f"{self.where}: blocks in '{language}' are not tested")
        if marker is None:
            raise Problem(f"{self.where}: the block has no line '<!-- test: ... -->' above it")
        self.kind, self.argument = marker
        if self.kind not in KINDS[language]:
            raise Problem(f"{self.where}: '{self.kind}' is no test of a block in '{language}'")
        allowed = self.kind == "bench" or marker == ("body", "types")
        if not allowed and (self.kind in NEEDS_ARGUMENT) != bool(self.argument):
            raise Problem(f"{self.where}: '{self.kind}' and its argument do not fit")

    def text(self):
        """What is compiled or run; errors point at the document."""
        body = "\n".join(self.lines) + "\n"
        here = f'#line {self.line} "{self.document}"\n'
        if self.kind == "bench" and self.argument:
            return ('#pragma GCC diagnostic ignored "-Wreturn-type"  // of a main that is none\n'
                    f'#define main example_main\n#include "examples/{self.argument}.cpp"\n'
                    f"#undef main\n{here}{body}")
        if self.kind in ("program", "bench", "doctest", "bench", "cuda"):
            return here + body
        if self.kind == "types":
            return PROLOGUE + here + body + "\nint main() {}\n"
        if self.kind != "body":
            return body
        includes = "\n".join(line for line in self.lines if INCLUDE.match(line))
        inside = "\n".join("" if INCLUDE.match(line) else line for line in self.lines)
        # A fragment may define anew what the others find defined. Those of a page may share a program.
        return (f"{includes}\n{PROLOGUE}\n{self.types}"
                '#pragma GCC diagnostic ignored "-Wshadow"\n'
                "#ifndef BLOCK\n#define BLOCK main\n#endif\nint BLOCK() {\n"
                f"zero::run_ranks(2, []([[maybe_unused]] zero::InProcess& comm) {{\n"
                f"{here}{inside}\n}});\nreturn 0;\n}}\n")

    def take_types(self, before):
        """What comes before a block that says so: the last types of its document."""
        types = [block for block in before if block.kind == "types"]
        if (self.kind, self.argument) != ("body", "types"):
            return
        if not types:
            raise Problem(f"{self.where}: no block has types before this one")
        self.types = f'#line {types[-1].line} "{self.document}"\n' + "\n".join(types[-1].lines) + "\n"

    def check_quotes(self, root):
        """Every line is one of the file's, in its order."""
        path = root / self.document.parent / self.argument
        if not path.is_file():
            raise Problem(f"{self.where}: there is no {self.argument}")
        source = iter(line.strip() for line in path.read_text(encoding="utf-8").splitlines())
        for line in (line.strip() for line in self.lines):
            if line not in ("", "...") and line not in source:
                raise Problem(f"{self.where}: {self.argument} has no line '{line}' there")

    def check_commands(self, ci, workflows):
        """Every command is one that continuous integration runs, or at least exists."""
        for line in self.lines:
            line = line.split(" #")[0].strip()
            for command in filter(None, (part.strip() for part in line.split("&&"))):
                words = command.split()
                if words[:3] == ["cmake", "--workflow", "--preset"] and words[3:] == words[3:4]:
                    known = words[3] in workflows
                else:
                    end = r"\s*($|&|;|\||\)|2>)"
                    known = re.search(rf"(^|\s){re.escape(command)}{end}", ci, re.M) is not None
                if not known:
                    raise Problem(f"{self.where}: nobody runs '{command}'")


def anchors_of(page):
    """What links to the headings of a page end with, as GitHub makes it of their words."""
    headings = HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check_links(root, document, line, text):
    """Relative links of one line lead to files, and to headings of pages."""
    for target, part in LINK.findall(text):
        page = root / (document.parent / target if target else document)
        if "://" in target:
            continue
        if not page.exists():
            raise Problem(f"{document}:{line}: the link to '{target}' leads nowhere")
        if part and page.suffix == ".md" and part not in anchors_of(page):
            raise Problem(f"{document}:{line}: '{target}' has no heading '#{part}'")


def blocks_of(root, document):
    """The document's blocks; also checks its links."""
    marker, marker_line, fence = None, 0, None
    number = 0
    texts = (root / document).read_text(encoding="utf-8").splitlines()
    for line, text in enumerate(texts, start=1):
        match = FENCE.match(text)
        if fence is not None:
            if match and match[1] == fence and not match[2]:
                number += 1
                yield Block(document, number, start, language, marker, lines)
                marker, fence = None, None
            else:
                lines.append(text)
            continue
        if match:
            fence, language, start, lines = match[1], match[2], line, []
            continue
        if marker is not None:
            raise Problem(f"{document}:{marker_line}: no block follows this line")
        if found := MARKER.match(text):
            marker, marker_line = (found[1], found[2]), line
        elif "<!-- test" in text:
            raise Problem(f"{document}:{line}: this line is not '<!-- test: KIND ... -->'")
        check_links(root, document, line, text)
    if fence is not None or marker is not None:
        raise Problem(f"{document}: the last block does not end")


def write_if_changed(path, text):
    """Keeps the time of a file that stays the same, so that nothing is compiled again."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--links", type=pathlib.PurePosixPath, action="append", default=[],
                        metavar="DOCUMENT", help="of which only the links are looked at")
    parser.add_argument("documents", type=pathlib.PurePosixPath, nargs="+")
    arguments = parser.parse_args()

    ci = (arguments.root / ".ci/run").read_text(encoding="utf-8")
    presets = json.loads((arguments.root / "CMakePresets.json").read_text(encoding="utf-8"))
    workflows = {preset["name"] for preset in presets.get("workflowPresets", [])}
    arguments.out.mkdir(parents=True, exist_ok=True)
    calls = []
    for document in arguments.links:
        text = (arguments.root / document).read_text(encoding="utf-8")
        for line, words in enumerate(text.splitlines(), start=1):
            check_links(arguments.root, document, line, words)
    for document in arguments.documents:
        before = []
        for block in blocks_of(arguments.root, document):
            block.take_types(before)
            before.append(block)
            if block.kind == "ci":
                block.check_commands(ci, workflows)
            if block.kind == "quote":
                block.check_quotes(arguments.root)
            suffix = ".cu" if block.kind == "cuda" else SUFFIX[block.language]
            path = arguments.out / (block.name + suffix)
            write_if_changed(path, block.text())
            calls.append(f'readme_block({block.name} {block.kind} "{path}" "{block.argument}")\n')
    if not calls:
        raise Problem("there is no block at all")
    write_if_changed(arguments.out / "blocks.cmake", "".join(calls))


if __name__ == "__main__":
    try:
        main()
    except Problem as problem:
        sys.exit(str(problem))
