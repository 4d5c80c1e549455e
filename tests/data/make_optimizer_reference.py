#!/usr/bin/env python3
"""Writes optimizer_reference.txt: the values of one float64 parameter in ten steps of Python's torch.optim, for every
optimizer of brigade/optim with its options on and off. A line has optimizer, our spec, count, values.

Run with the Python that has torch 2.11:  python make_optimizer_reference.py
"""
import itertools
import pathlib

import torch

STEPS = 10
ROWS, COLUMNS = 3, 5

# For each optimizer: torch's class, and for each of its options the values to try, by our name.
OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": [0.05], "momentum": [0, 0.9], "dampening": [0, 0.3], "weight_decay": [0, 0.1],
                              "nesterov": [0, 1], "maximize": [0, 1]}),
    "adam": (torch.optim.Adam, {"lr": [0.05], "beta1": [0.9, 0.8], "beta2": [0.99], "eps": [1e-8, 1e-3],
                                "weight_decay": [0, 0.1], "amsgrad": [0, 1], "maximize": [0, 1]}),
    "adamw": (torch.optim.AdamW, {"lr": [0.05], "beta1": [0.9, 0.8], "beta2": [0.99], "eps": [1e-8, 1e-3],
                                  "weight_decay": [0, 0.1], "amsgrad": [0, 1], "maximize": [0, 1]}),
    "adagrad": (torch.optim.Adagrad, {"lr": [0.05], "lr_decay": [0, 0.1], "weight_decay": [0, 0.1],
                                      "initial_accumulator_value": [0, 0.5], "eps": [1e-10, 1e-3],
                                      "maximize": [0, 1]}),
    "rmsprop": (torch.optim.RMSprop, {"lr": [0.05], "alpha": [0.99, 0.9], "eps": [1e-8, 1e-3],
                                      "weight_decay": [0, 0.1], "momentum": [0, 0.9], "centered": [0, 1],
                                      "maximize": [0, 1]}),
    "adadelta": (torch.optim.Adadelta, {"lr": [1.0, 0.5], "rho": [0.9, 0.8], "eps": [1e-6, 1e-3],
                                        "weight_decay": [0, 0.1], "maximize": [0, 1]}),
    "adamax": (torch.optim.Adamax, {"lr": [0.05], "beta1": [0.9, 0.8], "beta2": [0.99, 0.9], "eps": [1e-8, 1e-3],
                                    "weight_decay": [0, 0.1], "maximize": [0, 1]}),
    "rprop": (torch.optim.Rprop, {"lr": [0.05, 0.01], "eta_minus": [0.5, 0.3], "eta_plus": [1.2, 1.5],
                                  "step_min": [1e-6, 0.02], "step_max": [50, 0.06], "maximize": [0, 1]}),
}
PAIRS = {"betas": ("beta1", "beta2"), "etas": ("eta_minus", "eta_plus"), "step_sizes": ("step_min", "step_max")}
FLAGS = {"nesterov", "maximize", "amsgrad", "centered"}


def start():
    row = torch.arange(ROWS, dtype=torch.double).unsqueeze(1)
    column = torch.arange(COLUMNS, dtype=torch.double)
    return torch.sin(row * 1.1 + column * 0.7)


def gradient(step):
    row = torch.arange(ROWS, dtype=torch.double).unsqueeze(1)
    column = torch.arange(COLUMNS, dtype=torch.double)
    return torch.cos(row * 0.9 + column * 1.7 + step * 1.3)


def python_options(options):
    given = {name: bool(value) if name in FLAGS else value for name, value in options.items()}
    for whole, parts in PAIRS.items():
        if parts[0] in given:
            given[whole] = tuple(given.pop(part) for part in parts)
    return given


def run(kind, options):
    parameter = torch.nn.Parameter(start())
    optimizer = kind([parameter], foreach=False, **python_options(options))
    for step in range(STEPS):
        parameter.grad = gradient(step)
        optimizer.step()
    return parameter.detach().flatten().tolist()


def main():
    with open(pathlib.Path(__file__).parent / "optimizer_reference.txt", "w") as out:
        for name, (kind, choices) in OPTIMIZERS.items():
            for values in itertools.product(*choices.values()):
                options = dict(zip(choices, values))
                if options.get("nesterov") and (not options["momentum"] or options["dampening"]):
                    continue  # refused
                spec = name + ":" + ",".join(f"{key}={value!r}" for key, value in options.items())
                numbers = run(kind, options)
                print(spec, len(numbers), *map(repr, numbers), file=out)


if __name__ == "__main__":
    main()
