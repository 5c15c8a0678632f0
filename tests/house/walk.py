"""Holds what a step, a gather and a transfer walk through against limits: functions, and their files.

usage: walk.py STEP [--compiler ID] [--launcher COMMAND] [--list] [--map CONTRIBUTING [--update]]

STEP, built by GCC without optimisation, prints the functions that it enters. A function counts if it
has code on five lines or more: the first and the last one count, so a shorter one only passes on. It
is what stands in the source: instantiations of a template are one, and a lambda belongs to the
function that it is written in. Files of `base`, `kernel` and `rule` are the ground that others walk
on, and do not count. --list prints those that count, in the order in which they are entered.

--map holds the first table behind "A map of the house" against the files of a step, in the order in
which they are entered, with the first sentence of each; --update writes it there.
"""

import argparse
import bisect
import dataclasses
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

# The most functions and files.
LIMITS = {"step": (60, 17), "gather": (28, 8), "transfer": (40, 11)}
LEAST_LINES = 5
COMPILER = "GNU 12"
INCLUDE = pathlib.Path(__file__).parents[2] / "include/zero"
GROUND = ("base/", "kernel/", "rule/")


def without_templates(name):
    """A demangled name without template arguments, parameters and the library's namespaces."""
    name = re.sub(r"operator(<=>|<<|>>|<=|>=|->|<|>)", "operator?", name)
    while True:
        shorter = re.sub(r"<[^<>]*>", "", name)
        if shorter == name:
            break
        name = shorter
    name = re.sub(r"operator\(\)", "operator_call", name)
    name = name.split("(")[0].split(" ")[-1].replace("operator_call", "operator()")
    name = re.sub(r"^zero::v\d+_\d+\w*::", "", name)
    return "::".join(part for part in name.split("::") if part != "detail")


@dataclasses.dataclass(eq=False)
class Function:
    """One that stands in the source."""

    name: str
    file: str
    lines: set

    def counts(self, with_ground):
        ground = self.file.startswith(GROUND)
        return len(self.lines) >= LEAST_LINES and (with_ground or not ground)


def require_tools():
    """Ends the test where one of the tools is missing."""
    if missing := [tool for tool in ("nm", "objdump", "addr2line") if not shutil.which(tool)]:
        print(f"skipped: there is no {missing[0]}")
        sys.exit(77)


def output(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout


def symbols(program):
    """{address: (size, demangled name)} of functions."""
    found = re.findall(r"^([0-9a-f]+) ([0-9a-f]+) [tTwWu] (.*)$",
                       output("nm", "-C", "-S", "--defined-only", program), re.MULTILINE)
    return {int(address, 16): (int(size, 16), name) for address, size, name in found}


def entered(program, launcher):
    """{walk: the addresses of functions that each rank enters, by rank and in order}."""
    known = next(at for at, (_, name) in symbols(program).items() if name == "__cyg_profile_func_enter")
    walks = {}
    for line in output(*launcher, program).splitlines():
        walk, rank, beside = line.split()
        ranks = walks.setdefault(walk, ([], []))
        ranks[int(rank)].append(known + int(beside))
    return walks


def functions(program, addresses):
    """{address: its Function} of those in include/zero."""
    known = symbols(program)
    table = output("objdump", "-W", "--dwarf=decodedline", program)
    starts = sorted({int(at, 16) for at in re.findall(r"^\S+ +\d+ +0x([0-9a-f]+)", table, re.MULTILINE)})
    code = {address: starts[bisect.bisect_left(starts, address):
                            bisect.bisect_left(starts, address + known[address][0])]
            for address in addresses if address in known}
    asked = [at for places in code.values() for at in places]
    told = output("addr2line", "-f", "-e", program, input="".join(f"{at:#x}\n" for at in asked))
    place = dict(zip(asked, re.findall(r"^(.*)\n(.*?):(\d+|\?).*$", told, re.MULTILINE)))
    found, of_address, lambdas = {}, {}, []
    for address, places in code.items():
        name, path, first = place[places[0]] if places else ("", "", 0)
        _, inside, file = path.rpartition("include/zero/")
        if not inside:
            continue
        # What is inlined even here is another function's.
        lines = {int(place[at][2]) for at in places if place[at][:2] == (name, path)}
        full_name = known[address][1]
        if "{lambda(" in full_name:
            lambdas.append((file, lines))
            continue
        function = found.setdefault((file, first), Function(without_templates(full_name), file, set()))
        function.lines |= lines
        of_address[address] = function
    for file, lines in lambdas:
        around = [function for function in found.values() if function.file == file
                  and min(function.lines) <= min(lines) and max(lines) <= max(function.lines)]
        if around:
            min(around, key=lambda function: max(function.lines) - min(function.lines)).lines |= lines
    return of_address


def in_order(ranks):
    """What any rank enters, once: where the first rank does, others behind what came before them."""
    order = []
    for walked in ranks:
        before = -1
        for function in dict.fromkeys(walked):
            if function not in order:
                order.insert(before + 1, function)
            before = order.index(function)
    return order


def first_sentence(file):
    """What a header says that it is."""
    text = (INCLUDE / file).read_text().partition("/// @file\n")[2].partition("\n#pragma")[0]
    return re.split(r"[.:] ", text.replace("\n/// ", " ").removeprefix("/// "))[0].rstrip(".")


def map_of(counting):
    """The table: a row for each file, in the order in which a step enters them."""
    rows = ["| file | what is there | functions of a step, in order |", "|---|---|---|"]
    for file in dict.fromkeys(function.file for function in counting):
        names = dict.fromkeys(f"`{function.name}`" for function in counting if function.file == file)
        rows.append(f"| `{file}` | {first_sentence(file)} | {', '.join(names)} |")
    return "\n".join(rows) + "\n"


def hold_map(path, table, update):
    """Whether the document has the table; in which order threads enter functions may differ."""
    def words(rows):
        return sorted(sorted(re.split(r", | \| ", row.strip("| "))) for row in rows.splitlines())

    text = path.read_text()
    found = re.search(r"(?<=\n## A map of the house\n).*?\n\n(?P<table>\|.*?\n)(?=\n)", text, re.DOTALL)
    if words(found.group("table")) == words(table):
        return True
    if update:
        path.write_text(text[:found.start("table")] + table + text[found.end("table"):])
        return True
    print(f"{path} has another map; this is it, and --update writes it:\n{table}")
    return False


def size(walked):
    return f"{len(walked)} functions in {len({function.file for function in walked})} files"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("step")
    parser.add_argument("--compiler", default=COMPILER, help="CMake's name of it, and the first number of its version")
    parser.add_argument("--launcher", type=shlex.split, default=[], help="what starts STEP on its ranks")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--map", type=pathlib.Path, help="the document that has it")
    parser.add_argument("--update", action="store_true", help="write the map there")
    options = parser.parse_args()
    if options.compiler != COMPILER:
        print(f"skipped: the lines with code are counted as {COMPILER} counts them, and this is {options.compiler}")
        return 77
    require_tools()
    walks = entered(options.step, options.launcher)
    of_address = functions(options.step, {a for ranks in walks.values() for rank in ranks for a in rank})
    failed = False
    for walk in walks:
        most_functions, most_files = LIMITS[walk]
        order = in_order([[of_address[a] for a in rank if a in of_address] for rank in walks[walk]])
        counting = [function for function in order if function.counts(False)]
        with_ground = [function for function in order if function.counts(True)]
        if options.list:
            for function in counting:
                print(f"{function.name:50} {function.file}:{min(function.lines)} ({len(function.lines)})")
        print(f"{walk}: {size(counting)}, with the ground {size(with_ground)}, of any length "
              f"{size(order)}")
        if options.map and walk == "step" and not hold_map(options.map, map_of(counting), options.update):
            failed = True
        files = {function.file for function in counting}
        if not files:
            print(f"{walk}: no function is of include/zero")
            failed = True
        if len(counting) > most_functions or len(files) > most_files:
            print(f"{walk}: more than {most_functions} functions in {most_files} files")
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
