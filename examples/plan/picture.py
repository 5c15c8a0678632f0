#!/usr/bin/env python3
"""Draws what each rank holds under the four stages, from the library's own plan.

    picture.py ZERO_PLAN examples/stages.svg           # writes the picture
    picture.py ZERO_PLAN examples/stages.svg --check   # fails if it is another one
"""

import argparse
import json
import pathlib
import subprocess
import sys

ARGUMENTS = ["memory", "--params", "7.5e9", "--ranks", "64", "--json", "-"]
STAGES = [("replicated", "Replicated"), ("pos", "Pos (ZeRO-1)"), ("pos+g", "Pos+g (ZeRO-2)"),
          ("pos+g+p", "Pos+g+p (ZeRO-3)")]
# Roles of the plan that are drawn as one, with a colour that differs in lightness as well.
PARTS = [("parameters", ["parameters"], "#1b3a57"),
         ("gradients", ["gradients"], "#3f7cac"),
         ("master weights and optimizer states", ["master", "state"], "#95bfdc"),
         ("buffers", ["gradient_pool", "gather_pool", "staging", "control"], "#e0a458")]
LEFT, WIDTH, BAR, STEP, TOP = 140, 560, 26, 40, 58


def text(x, y, words, anchor="start", size=13):
    return (f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="#222">{words}'
            "</text>")


def draw(plan):
    roles = {row["role"]: row for row in plan["bytes"]}
    most = max(sum(roles[role][key] for _, names, _ in PARTS for role in names if role in roles)
               for key, _ in STAGES)
    height = TOP + STEP * len(STAGES) + 40
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 {height}" '
             'font-family="sans-serif" role="img" '
             'aria-label="Bytes on each of 64 ranks under the four stages">',
             f'<rect width="800" height="{height}" fill="#fff"/>',
             text(20, 28, "Bytes on each of 64 ranks: a GPT of 7.5 billion parameters, mixed precision, "
                          "Adam", size=15)]
    for i, (key, label) in enumerate(STAGES):
        y = TOP + i * STEP
        lines.append(text(LEFT - 10, y + 18, label, "end"))
        x, total = float(LEFT), 0
        for _, names, colour in PARTS:
            held = sum(roles[role][key] for role in names if role in roles)
            width = WIDTH * held / most
            if width >= 0.05:
                lines.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" '
                             f'fill="{colour}"/>')
            x, total = x + width, total + held
        lines.append(text(round(x + 8), y + 18, f"{total / 1e9:.1f} GB"))
    x, y = 20, TOP + STEP * len(STAGES) + 8
    for name, _, colour in PARTS:
        lines.append(f'<rect x="{x}" y="{y}" width="13" height="13" fill="{colour}"/>')
        lines.append(text(x + 19, y + 11, name))
        x += 40 + 7 * len(name)
    return "\n".join([*lines, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("picture", type=pathlib.Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    done = subprocess.run([options.program, *ARGUMENTS], stdout=subprocess.PIPE, text=True, check=True)
    drawn = draw(json.loads(done.stdout))
    if not options.check:
        options.picture.write_text(drawn, encoding="utf-8")
    elif options.picture.read_text(encoding="utf-8") != drawn:
        sys.exit(f"{options.picture} is not what the plan says: run {sys.argv[0]} without --check")


if __name__ == "__main__":
    main()
