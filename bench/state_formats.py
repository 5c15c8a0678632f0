"""Trains the GPT with every state format that train_gpt has, and says what that does to the loss.

    python3 bench/state_formats.py build/release/examples/gpt/train_gpt
    python3 bench/state_formats.py build/release/examples/gpt/train_gpt --steps 200 --seeds 1 -- --layers 2

Each format is compared with fp32 states and fp32 master weights beside bf16 parameters, which have the
same rule, learning rate, batches and initial values: run by run of the same seed, since seeds differ by
more than formats do. Prints the mean loss of the last steps, how much more than the baseline's that is, in
percent, on average and from the smallest to the largest of the seeds, and the bytes per parameter by the
plan. What follows -- are options of train_gpt. Run it in the root of the repository, whose headers are the
text.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

# (precision, rule), and the pair whose states and masters are fp32.
FORMATS = {
    ("bf16-rest16", "adamw"): ("bf16", "adamw"),
    ("bf16-rest8", "adamw"): ("bf16", "adamw"),
    ("bf16-sr", "adamw"): ("bf16", "adamw"),
    ("bf16-rest16", "adamw8bit"): ("bf16", "adamw"),
    ("bf16-rest8", "adamw8bit"): ("bf16", "adamw"),
    # With whole masters, results would be those of bf16-rest16 but for the rounding of ties.
    ("bf16-rest8", "lamb"): ("bf16-rest16", "lamb"),
}


def train(options, pair, seed):
    """The mean loss of the last steps, and the bytes of a parameter."""
    with tempfile.TemporaryDirectory() as scratch:
        written = pathlib.Path(scratch) / "run.json"
        # Every rank has everything, so that its bytes are all there are.
        done = subprocess.run(
            [options.train_gpt, "--precision", pair[0], "--rule", pair[1], "--ranks", str(options.ranks), "--stage",
             "replicated", "--steps", str(options.steps), "--seed", str(seed), "--json", written, *options.more],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            sys.exit(done.stderr.splitlines()[-1] if done.stderr else f"{options.train_gpt} failed")
        (stage,) = json.loads(written.read_text(encoding="utf-8"))["stages"]
    return statistics.fmean(stage["losses"][-options.last:]), stage["bytes_per_parameter"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="What comes after -- are options of train_gpt.")
    parser.add_argument("train_gpt", help="the program")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--last", type=int, default=100, help="steps whose losses count")
    parser.add_argument("--seeds", type=int, default=3)
    words = sys.argv[1:]
    own = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:own])
    options.more = words[own + 1:]
    seeds = range(1, options.seeds + 1)
    print(f"{options.steps} steps, mean loss of the last {min(options.last, options.steps)}, seeds 1 to {options.seeds}")
    print(f"{'precision':12} {'rule':10} {'bytes/parameter':>15} {'loss':>8} {'over fp32 states and masters':>30}")
    found = {}
    for pair in [*dict.fromkeys(FORMATS.values()), *FORMATS]:
        found[pair] = [train(options, pair, seed) for seed in seeds]
        losses = [loss for loss, _ in found[pair]]
        over = "-"
        if pair in FORMATS:
            more = [100 * (loss / base - 1) for loss, (base, _) in zip(losses, found[FORMATS[pair]])]
            over = f"{statistics.fmean(more):+.2f} % ({min(more):+.2f} to {max(more):+.2f})"
        print(f"{pair[0]:12} {pair[1]:10} {found[pair][0][1]:15.2f} {statistics.fmean(losses):8.4f} {over:>30}", flush=True)


main()
