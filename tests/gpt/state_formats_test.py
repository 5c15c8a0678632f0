"""Runs bench/state_formats.py at a tiny size, and computes one of its rows again.

usage: state_formats_test.py STATE_FORMATS_PY TRAIN_GPT
"""

import json
import pathlib
import subprocess
import sys
import tempfile

SMALL = ["--layers", "1", "--heads", "2", "--channels", "32", "--context", "16", "--batch", "1"]
STEPS, LAST, SEEDS = 5, 2, 2


def row(trainer, precision, text):
    """[(mean loss of the last steps, bytes of a parameter)] of all seeds."""
    found = []
    for seed in range(1, SEEDS + 1):
        path = text.parent / "run.json"
        subprocess.run([trainer, "--precision", precision, "--rule", "adamw", "--ranks", "1", "--stage", "replicated",
                        "--steps", str(STEPS), "--seed", str(seed), "--json", path, "--text", text, *SMALL],
                       check=True, capture_output=True)
        (stage,) = json.loads(path.read_text())["stages"]
        found.append((sum(stage["losses"][-LAST:]) / LAST, stage["bytes_per_parameter"]))
    return found


def main():
    script, trainer = sys.argv[1:]
    with tempfile.TemporaryDirectory() as scratch:
        text = pathlib.Path(scratch) / "text"
        text.write_text("what is learnt is what is read again and again\n" * 99)
        command = [sys.executable, script, trainer, "--ranks", "1", "--steps", str(STEPS), "--last", str(LAST), "--seeds",
                   str(SEEDS), "--", "--text", text, *SMALL]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        rows = {tuple(line.split()[:2]): line.split() for line in done.stdout.splitlines()[2:]}
        for precision in ("bf16", "bf16-rest16", "bf16-rest8", "bf16-sr"):
            assert (precision, "adamw") in rows, done.stdout
        for pair in (("bf16-rest16", "adamw8bit"), ("bf16-rest8", "adamw8bit"), ("bf16-rest8", "lamb")):
            assert rows[pair][5] == "%", done.stdout
        base, short = row(trainer, "bf16", text), row(trainer, "bf16-rest8", text)
        said = rows["bf16-rest8", "adamw"]
        assert said[2] == f"{short[0][1]:.2f}", (said, short)
        assert said[3] == f"{sum(loss for loss, _ in short) / SEEDS:.4f}", (said, short)
        more = [100 * (one / other - 1) for (one, _), (other, _) in zip(short, base)]
        assert said[4:] == [f"{sum(more) / SEEDS:+.2f}", "%", f"({min(more):+.2f}", "to", f"{max(more):+.2f})"], (said, more)
        assert rows["bf16", "adamw"][4:] == ["-"], done.stdout
        wrong = subprocess.run([*command, "--heads", "3"], capture_output=True, text=True, check=False)
        assert wrong.returncode == 1 and "heads" in wrong.stderr and "Traceback" not in wrong.stderr, wrong


main()
