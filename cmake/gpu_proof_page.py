#!/usr/bin/env python3
"""Writes the page of gpu_proof.sh, as text and as JSON.

usage: gpu_proof_page.py FOLDER

FOLDER has what the parts have left: `facts` and `rows`, which are lines of fields between tabs, and for a
part NAME what it printed, in NAME.out and NAME.err, and what it measured, in NAME.figures. The pages are
FOLDER.txt and FOLDER.json. Ends with 1 if a part failed.
"""

import argparse
import json
import pathlib
import re
import sys

# Of what failed, so many lines are in the page.
EXCERPT = 25
# What a test says that passes without having shown anything.
IMPOSSIBLE = re.compile(r"not possible here: .*")


def lines_of(path):
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8", errors="replace")
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def read(folder):
    """The page as JSON has it."""
    facts = dict(line.split("\t", 1) for line in lines_of(folder / "facts"))
    parts = []
    not_shown = []
    for line in lines_of(folder / "rows"):
        name, result, seconds, limit, said = line.split("\t", 4)
        part = {"name": name, "result": result, "seconds": int(seconds), "limit": int(limit), "said": said}
        figures = lines_of(folder / f"{name}.figures")
        if result == "failed":
            printed = ([] if figures else lines_of(folder / f"{name}.out")) + lines_of(folder / f"{name}.err")
            part["log"] = printed[-EXCERPT:]
        if result in ("skipped", "no time"):
            not_shown.append(f"{name}: {result if result == 'no time' else said}")
        for reason in dict.fromkeys(m[0] for m in map(IMPOSSIBLE.search, lines_of(folder / f"{name}.out")) if m):
            not_shown.append(f"{name}, in part: {reason}")
        if figures:
            part["figures"] = figures
        parts.append(part)
    page = {"failed": [part["name"] for part in parts if part["result"] == "failed"], "machine": facts,
            "parts": parts, "not_shown": not_shown}
    if topology := lines_of(folder / "topology.figures"):
        page["topology"] = topology
    return page


def block(title, lines):
    return ["", title, *(f"  {line}" for line in lines)]


def text_of(page):
    counts = {}
    for part in page["parts"]:
        counts[part["result"]] = counts.get(part["result"], 0) + 1
    parts = page["parts"]
    width = max([len(part["name"]) for part in parts], default=0)
    lines = ["zero: " + ", ".join(f"{count} {result}" for result, count in counts.items())]
    lines += block("machine", (f"{what}: {value}" for what, value in page["machine"].items()))
    lines += block("parts: result, seconds (limit), and what it said",
                   (f"{part['name']:{width}}  {part['result']:8} {part['seconds']:4} ({part['limit']:3})  "
                    f"{part['said']}" for part in parts))
    if page["not_shown"]:
        lines += block("not shown", page["not_shown"])
    for part in parts:
        if "log" in part:
            lines += block(f"{part['name']} failed; it printed last", part["log"])
    for part in parts:
        if "figures" in part:
            lines += block(part["name"], part["figures"])
    if "topology" in page:
        lines += block("topology", page["topology"])
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    page = read(folder)
    folder.with_suffix(".json").write_text(json.dumps(page, indent=1) + "\n", encoding="utf-8")
    folder.with_suffix(".txt").write_text(text_of(page), encoding="utf-8")
    return 1 if page["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
