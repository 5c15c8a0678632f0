#!/usr/bin/env python3
"""Does the preset `test` find what the preset `full` finds? Breaks the library in one place at a time.

    python3 tests/mutants.py                # all, in build/mutants: about 40 minutes on two cores
    python3 tests/mutants.py --list
    python3 tests/mutants.py --only 3,7

Each mutant is one changed line in one room of include/zero, such as somebody could write it. It is
applied to a copy of the last commit and tested with the preset `test`: the programs of its room first,
until a test fails. A mutant that passes everything there is tried with `full`. Prints a table as it
goes. Fails if `test` misses more than one of those that `full` finds.
"""

import argparse
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What it is, the file, what stands there once, and what stands there instead.
MUTANTS = [
    ("bf16 rounds ties away from zero", "base/float16.hpp",
     "(bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16", "(bits + 0x8000u) >> 16"),
    ("an exact sum loses its last carry", "base/exact_sum.hpp",
     "words_[top] += carry;", "words_[top] += 0 * carry;"),
    ("a gradient pool of one slot for each unit", "layout/memory_plan.hpp",
     "elements.gradient_slots = (std::min)(reductions_in_flight, untied);",
     "elements.gradient_slots = untied;"),
    ("a loss scale grows a step late", "precision/loss_scale.hpp",
     "if (++streak_ < options_.growth_interval) return;",
     "if (++streak_ <= options_.growth_interval) return;"),
    ("AdamW's decay without the rate", "rule/adamw.hpp",
     "p = math::mul_add(-(s.learning_rate * s.weight_decay), p, p);",
     "p = math::mul_add(-s.weight_decay, p, p);"),
    ("a sum leaves out the last of three ranks", "kernel/reduce.hpp",
     "  if (rank < ranks) {\n    T const* const last", "  if (rank + 1 < ranks) {\n    T const* const last"),
    ("counts without elements", "comm/decorators/counting.hpp",
     "elements += other.elements;", "elements += 0 * other.elements;"),
    ("a share of an all-reduce that begins early", "comm/shared/shares.hpp",
     "std::size_t const first = share_begin(op.count, share, buffers.size) + begin;",
     "std::size_t const first = share_begin(op.count, share > 1 ? share - 1 : share, buffers.size) + begin;"),
    ("clipping divides by the limit", "optimizer/step/decision.hpp",
     "terms.grad_norm > max_norm ? max_norm / terms.grad_norm : scale",
     "terms.grad_norm > max_norm ? terms.grad_norm / max_norm : scale"),
    ("a gathered unit counts no second reader", "optimizer/step/gather.hpp",
     "if (slot == nullptr || --slot->readers > 0) return;", "if (slot == nullptr || --slot->readers < 0) return;"),
    ("headers are not held against the manifest", "checkpoint/manifest.hpp",
     "checksum(text.data(), text.size()) != saved->header_sum) {",
     "checksum(text.data(), text.size()) == 0 && saved->header_sum != 0) {"),
    ("shares of activations begin one further", "activations/activation_layout.hpp",
     "(std::min)(all, share * static_cast<std::uint64_t>(rank));",
     "(std::min)(all, share * static_cast<std::uint64_t>(rank) + 1);"),
    ("free neighbours stay two blocks", "memory/memory_reservation.hpp",
     "holes.emplace(next->first - begin, begin);",
     "holes.emplace(next->first - at, at);"),
    ("what was enqueued while a group ended runs on", "comm/nccl/caller.hpp",
     "if (family_->failed()) family_->drain();", ""),
    ("what an abort may use for ever is freed", "comm/nccl/family.hpp",
     "leaks_ = leaks_ || !done;", ""),
    ("a handle that has ended is taken", "c/handle_table.hpp",
     "return slot.generation == number >> generation_shift ? &slot : nullptr;", "return &slot;"),
    ("virtual links are never free early", "../../examples/plan/simulate/timeline.hpp",
     "links_ = by_ranks_ ? end : end - cost.free;", "links_ = end;"),
]


# Labels of tests by what is tested there most directly; the first that a file's path begins with.
NEAREST = {
    "activations/": "activations", "c/": "c_api", "checkpoint/": "checkpoint", "comm/nccl/": "nccl",
    "optimizer/": "contracts", "": "unit",
}
TARGETS = {
    "unit": "zero_unit_tests", "contracts": "zero_contracts_tests", "checkpoint": "zero_checkpoint_tests",
    "activations": "zero_activations_tests", "nccl": "zero_nccl_tests", "c_api": "zero_c_api_tests",
}


def run(folder, *command):
    return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False)


def first_failure(folder, preset, target, *selection):
    """The compiler, the first test that fails, or '' for nothing."""
    if run(folder, "cmake", "--build", "--preset", preset, *target).returncode != 0:
        return "the compiler"
    done = run(folder, "ctest", "--preset", preset, "--stop-on-failure", "--timeout", "120", *selection)
    if done.returncode == 0:
        return ""
    failed = [line.split(" - ")[1] for line in done.stdout.splitlines() if line.startswith("\t")
              and " - " in line and "Skipped" not in line]
    return failed[0].split(" ")[0] if failed else "a test"


def found_by(folder, preset, file=None):
    """What finds a mutant; with a file, what is nearest to it is built and run first."""
    if file is not None:
        label = next(label for room, label in NEAREST.items() if file.startswith(room))
        near = first_failure(folder, preset, ["--target", TARGETS[label]], "-L", f"^{label}$",
                             "-E", "unit[.](bench|rule.torch_now)")
        if near:
            return near
    return first_failure(folder, preset, [])


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="what is broken, and nothing else")
    parser.add_argument("--only", help="numbers, such as 3,7")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "mutants")
    options = parser.parse_args()
    chosen = [int(n) for n in options.only.split(",")] if options.only else range(1, len(MUTANTS) + 1)
    for number in chosen:
        what, file, before, _ = MUTANTS[number - 1]
        text = (ROOT / "include/zero" / file).read_text(encoding="utf-8")
        if text.count(before) != 1:
            sys.exit(f"mutant {number}: {file} has '{before}' {text.count(before)} times")
        if options.list:
            print(f"{number:2} {file}: {what}")
    if options.list:
        return
    folder = options.folder
    if not folder.exists():
        run(ROOT, "git", "clone", "--quiet", str(ROOT), str(folder))
    run(folder, "git", "fetch", "--quiet")
    run(folder, "git", "checkout", "--quiet", "--force", "--detach",
        run(ROOT, "git", "rev-parse", "HEAD").stdout.strip())
    run(folder, "cmake", "--preset", "test")
    failure = found_by(folder, "test")
    if failure:
        sys.exit(f"without a mutant the preset test does not pass: {failure}")
    missed = 0
    print("| | room and mutant | test | full | minutes |\n|---|---|---|---|---|", flush=True)
    for number in chosen:
        what, file, before, after = MUTANTS[number - 1]
        path = folder / "include/zero" / file
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(before, after), encoding="utf-8")
        began = time.monotonic()
        quick, whole = found_by(folder, "test", file), "-"
        if not quick:
            run(folder, "cmake", "--preset", "full")
            whole = found_by(folder, "full")
            missed += 1 if whole else 0
        path.write_text(text, encoding="utf-8")
        print(f"| {number} | {file}: {what} | {quick or 'missed'} | {whole or 'missed'} "
              f"| {(time.monotonic() - began) / 60:.1f} |", flush=True)
    if missed > 1:
        sys.exit(f"{missed} are found by full alone")


if __name__ == "__main__":
    main()
