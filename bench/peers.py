"""Trains the same GPT with train_gpt and with PyTorch's sharded optimizers, on the processors of this machine.

    python3 bench/peers.py build/release/examples/gpt/train_gpt_mpi
    python3 bench/peers.py build/release/examples/gpt/train_gpt --ranks 2 --rounds 9 --json peers.json

Every row of PyTorch has the same layers, channels, context, batch and optimizer (AdamW in fp32, gradients
clipped to norm 1) on as many processes over gloo, one thread each: DistributedDataParallel with AdamW,
DistributedDataParallel with ZeroRedundancyOptimizer, and FSDP2's fully_shard, once keeping parameters after
the forward pass and once gathering them again. PyTorch's AdamW is the fused one. Programs run
alternately, one round after the other. Prints the medians of tokens/s and of the ratio, with the smallest
and the largest ratio of a round. The GPT's products come from Eigen here and from oneDNN or MKL there, so a
ratio says how long a run takes, and not which sharding costs less. Needs torch 2.6 or newer.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

# Which stage holds what a peer holds.
PEERS = {
    "DDP, AdamW": "replicated",
    "DDP, ZeroRedundancyOptimizer": "pos",
    "FSDP2, parameters kept after forward": "pos+g",
    "FSDP2": "pos+g+p",
}


def gpt(torch, shape):
    """The model of examples/gpt: bytes, learned positions, pre-norm blocks, a head tied to the embedding."""
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            channels = shape["channels"]
            self.norm_1, self.norm_2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
            self.qkv, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
            self.wide, self.narrow = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)

        def forward(self, x):
            batch, length, channels = x.shape
            heads = shape["heads"]
            q, k, v = (part.view(batch, length, heads, channels // heads).transpose(1, 2)
                       for part in self.qkv(self.norm_1(x)).chunk(3, dim=2))
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, channels))
            return x + self.narrow(functional.gelu(self.wide(self.norm_2(x)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(256, shape["channels"])
            self.places = nn.Embedding(shape["context"], shape["channels"])
            self.blocks = nn.ModuleList(Block() for _ in range(shape["layers"]))
            self.norm = nn.LayerNorm(shape["channels"])

        def forward(self, batch, targets):
            x = self.tokens(batch) + self.places(torch.arange(batch.shape[1]))
            for block in self.blocks:
                x = block(x)
            logits = functional.linear(self.norm(x), self.tokens.weight)
            return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return Gpt()


def worker(rank, peer, shape, rendezvous, result):
    """One process of PyTorch; rank 0 writes the median of the seconds of a step."""
    import torch
    from torch import distributed
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.set_num_threads(1)
    ranks = shape["ranks"]
    distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    torch.manual_seed(1)
    model = gpt(torch, shape)
    settings = {"lr": 1e-3, "betas": (0.9, 0.95), "weight_decay": 0.1}
    if peer.startswith("FSDP2"):
        mesh = distributed.device_mesh.init_device_mesh("cpu", (ranks,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=peer == "FSDP2")
        fully_shard(model, mesh=mesh, reshard_after_forward=False)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True, **settings)
    else:
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        optimizer = (ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, parameters_as_bucket_view=True,
                                             fused=True, **settings)
                     if "Zero" in peer else torch.optim.AdamW(model.parameters(), fused=True, **settings))
    generator = torch.Generator().manual_seed(rank)
    times = []
    for _ in range(shape["steps"] + 2):
        text = torch.randint(256, (shape["batch"], shape["context"] + 1), generator=generator)
        distributed.barrier()
        began = time.monotonic()
        model(text[:, :-1], text[:, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        distributed.barrier()
        times.append(time.monotonic() - began)
    if rank == 0:
        pathlib.Path(result).write_text(json.dumps(statistics.median(times[2:])), encoding="utf-8")
    distributed.destroy_process_group()


def tokens(shape):
    return shape["ranks"] * shape["batch"] * shape["context"]


def run_peer(peer, shape):
    """The median of the seconds of a step."""
    import torch.multiprocessing

    with tempfile.TemporaryDirectory() as scratch:
        result = os.path.join(scratch, "result")
        torch.multiprocessing.spawn(worker, (peer, shape, os.path.join(scratch, "rendezvous"), result),
                                    nprocs=shape["ranks"])
        return json.loads(pathlib.Path(result).read_text(encoding="utf-8"))


def run_zero(options, stage, shape):
    """The same of train_gpt."""
    command = [options.trainer, "--stage", stage, "--steps", str(shape["steps"] + 2)]
    if options.trainer.name.endswith("_mpi"):
        command = [options.mpiexec, *options.flags.split(), "-n", str(shape["ranks"]), *command]
    else:
        command += ["--ranks", str(shape["ranks"])]
    for name in ("layers", "heads", "channels", "context", "batch"):
        command += [f"--{name}", str(shape[name])]
    with tempfile.TemporaryDirectory() as scratch:
        result = pathlib.Path(scratch) / "run.json"
        done = subprocess.run([*command, "--json", result], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{command}: {done.stdout}{done.stderr}")
        return statistics.median(json.loads(result.read_text(encoding="utf-8"))["stages"][0]["step_seconds"][1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainer", type=lambda name: pathlib.Path(name).resolve(),
                        help="train_gpt, whose ranks are threads, or train_gpt_mpi, whose ranks are processes")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--channels", type=int, default=512)
    parser.add_argument("--context", type=int, default=64, help="tokens of a sequence")
    parser.add_argument("--batch", type=int, default=2, help="sequences of a rank and step")
    parser.add_argument("--steps", type=int, default=10, help="that are timed in a round, after two that are not")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mpiexec", default="mpiexec")
    parser.add_argument("--flags", default="", help="of mpiexec")
    parser.add_argument("--json", type=pathlib.Path, help="write the rows here as well")
    options = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        sys.exit("zero: Python cannot import torch; pip install torch")
    shape = {name: getattr(options, name)
             for name in ("ranks", "layers", "heads", "channels", "context", "batch", "steps")}
    seconds = {(who, peer): [] for peer in PEERS for who in ("zero", "peer")}
    for turn in range(options.rounds):
        for peer, stage in PEERS.items():
            print(f"round {turn + 1} of {options.rounds}: {stage} and {peer}", file=sys.stderr)
            seconds["zero", peer].append(run_zero(options, stage, shape))
            seconds["peer", peer].append(run_peer(peer, shape))
    print(f"{'zero, tokens/s':>22} {'PyTorch, tokens/s':>18} {'zero is faster by':>18}  peer")
    rows = []
    for peer, stage in PEERS.items():
        ours, theirs = seconds["zero", peer], seconds["peer", peer]
        ratios = sorted(b / a for a, b in zip(ours, theirs))
        rows.append({"stage": stage, "peer": peer, "zero": tokens(shape) / statistics.median(ours),
                     "pytorch": tokens(shape) / statistics.median(theirs), "ratio": statistics.median(ratios),
                     "bounds": [ratios[0], ratios[-1]]})
        row = rows[-1]
        print(f"{stage:>11} {row['zero']:10,.0f} {row['pytorch']:18,.0f} {row['ratio']:6.2f} "
              f"({ratios[0]:.2f}-{ratios[-1]:.2f})  {peer}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
