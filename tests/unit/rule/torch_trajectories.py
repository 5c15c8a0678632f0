#!/usr/bin/env python3
"""Writes torch_trajectories.hpp: where torch's optimizers go in 200 steps, in fp64 and in fp32.

usage: torch_trajectories.py [--check]

--check compares the file with what torch does now, and ends with 77 where there is no torch.
"""

import pathlib
import re
import sys

try:
    import torch
except ImportError as error:
    print(f"skipped: Python cannot import torch, with whose optimizers this test compares: {error}")
    sys.exit(77)

ELEMENTS = 64
SHOWN = 8  # one of every size of gradients; the norm of all shows the others
STEPS = 200
FILE = pathlib.Path(__file__).with_suffix(".hpp")

class NAdam:
    """torch.optim.NAdam of version 2. Before, it multiplied the momentum of the next step twice."""

    def __init__(self, parameters, lr, eps, weight_decay=0.0, momentum_decay=4e-3):
        (self.parameter,) = parameters
        self.lr, self.eps, self.decay, self.momentum_decay = lr, eps, weight_decay, momentum_decay
        self.mean, self.squares = (torch.zeros_like(self.parameter) for _ in range(2))
        self.product, self.steps = 1.0, 0

    @torch.no_grad()
    def step(self):
        self.steps += 1
        grad = self.parameter.grad
        if self.decay != 0:
            grad = grad.add(self.parameter, alpha=self.decay)
        here, then = (
            0.9 * (1.0 - 0.5 * 0.96 ** (step * self.momentum_decay))
            for step in (self.steps, self.steps + 1)
        )
        self.product *= here
        self.mean.mul_(0.9).add_(grad, alpha=1 - 0.9)
        self.squares.mul_(0.999).addcmul_(grad, grad, value=1 - 0.999)
        denominator = self.squares.div(1 - 0.999**self.steps).sqrt_().add_(self.eps)
        of_gradient = -self.lr * (1.0 - here) / (1.0 - self.product)
        self.parameter.addcdiv_(grad, denominator, value=of_gradient)
        of_mean = -self.lr * then / (1.0 - self.product * then)
        self.parameter.addcdiv_(self.mean, denominator, value=of_mean)


# Hyper-parameters that are floats are powers of two: they are the same numbers in fp32 and fp64.
LR = 2.0**-6
EPS = 2.0**-20
DECAY = 2.0**-5
OPTIM = torch.optim
NADAM = NAdam if int(torch.__version__.split(".")[0]) < 2 else OPTIM.NAdam
RUNS = {
    "sgd": (OPTIM.SGD, {"momentum": 0.875, "weight_decay": DECAY}),
    "sgd_nesterov": (OPTIM.SGD, {"momentum": 0.875, "nesterov": True, "maximize": True}),
    "sgd_dampening": (OPTIM.SGD, {"momentum": 0.875, "dampening": 0.25, "weight_decay": DECAY}),
    "plain_sgd": (OPTIM.SGD, {"weight_decay": DECAY, "maximize": True}),
    "adam": (OPTIM.Adam, {"eps": EPS, "weight_decay": DECAY}),
    "adam_maximize": (OPTIM.Adam, {"eps": EPS, "maximize": True}),
    "adamw": (OPTIM.AdamW, {"eps": EPS, "weight_decay": DECAY}),
    "adamw_maximize": (OPTIM.AdamW, {"eps": EPS, "weight_decay": DECAY, "maximize": True}),
    "amsgrad": (OPTIM.AdamW, {"eps": EPS, "weight_decay": DECAY, "amsgrad": True}),
    "amsgrad_coupled": (OPTIM.Adam, {"eps": EPS, "weight_decay": DECAY, "amsgrad": True,
                                     "maximize": True}),
    "adagrad": (OPTIM.Adagrad, {"eps": EPS, "lr_decay": 0.125, "weight_decay": DECAY}),
    "adagrad_initial": (OPTIM.Adagrad, {"eps": EPS, "initial_accumulator_value": 0.5,
                                        "maximize": True}),
    "rmsprop": (OPTIM.RMSprop, {"eps": EPS, "weight_decay": DECAY}),
    "rmsprop_momentum": (OPTIM.RMSprop, {"eps": EPS, "momentum": 0.875, "maximize": True}),
    "rmsprop_centered": (OPTIM.RMSprop, {"eps": EPS, "centered": True, "weight_decay": DECAY}),
    "rmsprop_both": (OPTIM.RMSprop, {"eps": EPS, "centered": True, "momentum": 0.875}),
    "nadam": (NADAM, {"eps": EPS}),
    "nadam_decay": (NADAM, {"eps": EPS, "weight_decay": DECAY, "momentum_decay": 0.03125}),
}  # fmt: skip


def number(element, step):
    """In [-1, 1], of 11 bits; rules_test.cpp has the same."""
    bits = (6364136223846793005 * (1000 * element + step + 1) + 1442695040888963407) % 2**64
    bits ^= bits >> 29
    bits = (bits * 0xBF58476D1CE4E5B9) % 2**64
    return ((bits >> 40) % 2049 - 1024) / 1024


def gradient(element, step):
    """A drift, so that means do not cancel; elements of many sizes."""
    return (number(element, step) + 0.25) * 2.0 ** -(element % 8)


def final(kind, options, dtype):
    values = [2 * number(i, 0) for i in range(ELEMENTS)]
    parameter = torch.tensor(values, dtype=dtype, requires_grad=True)
    optimizer = kind([parameter], lr=LR, **options)
    for step in range(1, STEPS + 1):
        slopes = [gradient(i, step) for i in range(ELEMENTS)]
        parameter.grad = torch.tensor(slopes, dtype=dtype)
        optimizer.step()
    return parameter.detach().double()


def trajectories():
    lines = [
        "// Written by torch_trajectories.py.",
        f"// Parameters after {STEPS} steps of torch's in fp64, and how far its fp32 is from them.",
        "#pragma once",
        "",
        "// clang-format off",
        "namespace torch_trajectories {",
        "",
        "struct Trajectory {",
        f"  double first[{SHOWN}];",
        f"  double norm;      // of all {ELEMENTS}",
        "  double distance;  // of fp32: l2 norm",
        "};",
        "",
    ]
    for name, (kind, options) in RUNS.items():
        exact = final(kind, options, torch.float64)
        distance = (final(kind, options, torch.float32) - exact).norm()
        rows = [exact[0 : SHOWN // 2], exact[SHOWN // 2 : SHOWN], [exact.norm(), distance]]
        rows = [", ".join(repr(float(value)) for value in row) for row in rows]
        lines.append(f"inline constexpr Trajectory {name}{{")
        lines.append(f"    {{{rows[0]},\n     {rows[1]}}},\n    {rows[2]}}};")
    return "\n".join([*lines, "", "}  // namespace torch_trajectories", ""])


def main():
    text = trajectories()
    if "--check" not in sys.argv[1:]:
        FILE.write_text(text, encoding="utf-8")
        return
    # Another version may round otherwise; what it computes it may not change.
    def numbers(of):
        return [float(n) for n in re.findall(r"-?\d+\.\d+(?:e-?\d+)?(?=[,}])", of)]

    written, now = numbers(FILE.read_text(encoding="utf-8")), numbers(text)
    if len(written) != len(now) or any(abs(a - b) > 1e-5 for a, b in zip(written, now)):
        sys.exit(f"torch {torch.__version__} goes elsewhere than {FILE.name} says")
    print(f"torch {torch.__version__}: {len(now)} numbers agree")


if __name__ == "__main__":
    main()
