"""Runs bench/peers.py at a tiny size; 77 where PyTorch is not.

usage: peers_test.py PEERS_PY TRAIN_GPT
"""

import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile

SMALL = ["--layers", "1", "--heads", "2", "--channels", "32", "--context", "16", "--steps", "1", "--rounds", "2"]


def main():
    script, trainer = sys.argv[1:]
    if importlib.util.find_spec("torch") is None:
        done = subprocess.run([sys.executable, script, trainer, *SMALL], capture_output=True, text=True, check=False)
        assert done.returncode == 1 and "cannot import torch" in done.stderr, done
        print("skipped: Python cannot import torch")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as scratch:
        written = pathlib.Path(scratch) / "peers.json"
        done = subprocess.run([sys.executable, script, trainer, *SMALL, "--json", written], capture_output=True,
                              text=True, check=False)
        assert done.returncode == 0, done.stderr
        rows = json.loads(written.read_text(encoding="utf-8"))
    assert [row["stage"] for row in rows] == ["replicated", "pos", "pos+g", "pos+g+p"], rows
    for row in rows:
        assert row["peer"] in done.stdout, done.stdout
        assert row["zero"] > 0 and row["pytorch"] > 0, row
        assert row["bounds"][0] <= row["ratio"] <= row["bounds"][1], row
    wrong = subprocess.run([sys.executable, script, trainer, *SMALL, "--heads", "3"], capture_output=True, text=True,
                           check=False)
    assert wrong.returncode == 1 and "heads" in wrong.stderr, wrong


main()
