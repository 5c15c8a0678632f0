#!/usr/bin/env python3
"""What a GPU shows of the GPT: losses, bits, memory and speed. Run in the repository's root.

    python3 bench/gpt_on_gpu.py TRAIN_GPT TRAIN_GPT_CUDA [--ranks 2] [--nccl] [--tiny] [--json FILE]

- losses: 50 steps in fp32 against the host's trainer, relative 1e-4
- bits: losses and parameters under all four stages, in fp32 and bf16
- memory: what the device says is gone, within 2 % and 64 MiB of what is held and computed with
- speed: tokens/s of a GPT-2 of 124 million parameters in bf16, and its share of the device's peak
- exposed: of a step, what the stream spends outside of the model: communication that nothing hides,
  the update, and the host's turn, which are all there is on one rank

--tiny is for an emulated device: small models, and no word about speed.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

# Floating-point operations a second in bf16, dense, by what nvidia-smi calls the device.
PEAKS = {"H100 PCIe": 756e12, "H100": 989e12, "H200": 989e12, "A100": 312e12, "B200": 2250e12, "L40S": 362e12}
SMALL = {"--layers": 4, "--heads": 4, "--channels": 128, "--context": 64, "--batch": 4}
GPT2 = {"--layers": 12, "--heads": 12, "--channels": 768, "--context": 1024, "--batch": 8}
TINY = {"--layers": 1, "--heads": 2, "--channels": 16, "--context": 16, "--batch": 2}


def run(program, model, *arguments):
    """A run's own words about its stages."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "run.json"
        options = [str(word) for option in model.items() for word in option]
        done = subprocess.run([program, *options, "--json", path, *map(str, arguments)],
                              capture_output=True, text=True, check=False)
        if done.returncode != 0 or not path.exists():
            sys.exit(f"{program} {' '.join(map(str, arguments))}: {done.stderr.strip().splitlines()[-1:]}")
        return json.loads(path.read_text(encoding="utf-8"))


def peak():
    """Of the first device; None if nobody knows."""
    try:
        name = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True,
                              text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None
    return next((operations for part, operations in PEAKS.items() if part in name), None)


def operations(model):
    """Of a token, forward and backward: two for each weight of a matrix and pass, and of scores all."""
    channels, layers, context = model["--channels"], model["--layers"], model["--context"]
    return 6 * (12 * layers * channels**2 + 256 * channels) + 12 * layers * channels * context


def losses(arguments, model, steps):
    common = ("--ranks", arguments.ranks, "--steps", steps)
    (host,) = run(arguments.host, model, *common)["stages"]
    (device,) = run(arguments.device, model, *common, *arguments.over)["stages"]
    apart = max(abs(a - b) / abs(b) for a, b in zip(device["losses"], host["losses"], strict=True))
    assert apart < 1e-4, f"losses are {apart:.1e} apart"
    return {"relative": apart}


def bits(arguments, model, steps):
    for precision in ("fp32", "bf16"):
        common = ("--ranks", arguments.ranks, "--steps", steps, "--precision", precision, *arguments.over)
        result = run(arguments.device, model, "--compare", *common)
        assert result["bit_identical"], f"stages differ in {precision}"
    return {"stages": 4}


def memory(stage, ranks):
    own = sum(stage["bytes_per_rank"]["held"].values()) + stage["working_bytes_per_rank"]
    apart = stage["device_bytes"] - ranks * own
    allowed = 0.02 * ranks * own + (64 << 20)
    assert abs(apart) <= allowed, f"the device has given {apart} bytes more than are held"
    return {"held_and_computed_with": ranks * own, "device": stage["device_bytes"]}


def speed(arguments, model, steps):
    rows = []
    # Ranks that share a GPU are only shown to get along.
    stages = ("replicated", "pos", "pos+g", "pos+g+p") if arguments.over else ("pos", "pos+g+p")
    for ranks, stage in ((1, "replicated"), *((arguments.ranks, stage) for stage in stages)):
        over = arguments.over if ranks > 1 else ()
        (found,) = run(arguments.device, model, "--ranks", ranks, "--stage", stage, "--steps", steps, "--precision",
                       "bf16", *over)["stages"]
        step, busy = statistics.median(found["step_seconds"]), statistics.median(found["model_seconds"])
        # Ranks that share a device share its peak.
        devices = ranks if over else 1
        share = found["tokens_per_s"] * operations(model) / (devices * peak()) if peak() else None
        rows.append({"ranks": ranks, "stage": stage, "tokens_per_s": found["tokens_per_s"], "mfu": share,
                     "step_ms": 1e3 * step, "outside_ms": 1e3 * (step - busy),
                     "memory": memory(found, ranks if not over else 1)})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("host")
    parser.add_argument("device")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--nccl", dest="over", action="store_const", const=("--nccl",), default=())
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    found = {"losses": losses(arguments, TINY if arguments.tiny else SMALL, 10 if arguments.tiny else 50)}
    print(f"losses: relative {found['losses']['relative']:.1e} from the host's", flush=True)
    found["bits"] = bits(arguments, TINY if arguments.tiny else SMALL, 5 if arguments.tiny else 20)
    print("bits: equal under four stages in fp32 and bf16", flush=True)
    found["speed"] = speed(arguments, TINY if arguments.tiny else GPT2, 3 if arguments.tiny else 12)
    for row in found["speed"]:
        held, given = row["memory"]["held_and_computed_with"], row["memory"]["device"]
        print(f"memory: {row['ranks']} ranks, {row['stage']}: {held / 2**20:.0f} MiB held and computed with, "
              f"{given / 2**20:.0f} MiB given by the device", flush=True)
        if not arguments.tiny:
            share = "of an unknown peak" if row["mfu"] is None else f"{row['mfu']:.1%} MFU"
            print(f"speed: {row['ranks']} ranks, {row['stage']}: {row['tokens_per_s']:.0f} tokens/s, {share}, step "
                  f"{row['step_ms']:.1f} ms, {row['outside_ms']:.1f} ms of it outside of the model", flush=True)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


main()
