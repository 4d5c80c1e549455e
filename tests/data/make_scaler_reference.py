#!/usr/bin/env python3
"""Writes scaler_reference.txt: the results of Python's torch.amp.GradScaler in twelve steps of SGD with momentum on two
float parameters of four elements. A line has the steps that overflow ('-': none), the options, and how the scaler is
used; for each step whether the optimizer stepped, the scale and the count of steps without overflow after update(); and
the final parameters.

Run with the Python that has torch 2.11:  python make_scaler_reference.py
"""
import itertools
import pathlib

import torch

STEPS = 12
OVERFLOWS = [(), (0, 1, 2), (7,), (3, 5, 6, 11)]


def factor(step, overflows):
    """The loss is the sum of the parameters' squares times this: in float its scaled gradient overflows at 1e38."""
    return 1e38 if step in overflows else 0.5 + 0.25 * step


def run(init_scale, growth, backoff, interval, overflows, way):
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_factor=growth, backoff_factor=backoff,
                                  growth_interval=interval)
    parameters = [torch.linspace(-1 + i, 1, 4).requires_grad_() for i in range(2)]
    optimizers = [torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in parameters] if way == "two" else \
        [torch.optim.SGD(parameters, lr=0.1, momentum=0.9)]
    words = [",".join(map(str, overflows)) or "-", init_scale, growth, backoff, interval, way]
    for step in range(STEPS):
        before = [p.detach().clone() for p in parameters]
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = sum((p * p).sum() * factor(step, overflows) for p in parameters)
        scaler.scale(loss).backward()
        if way == "unscale":
            scaler.unscale_(optimizers[0])
            torch.nn.utils.clip_grad_value_(parameters, 0.7)
        for optimizer in optimizers:
            scaler.step(optimizer)
        if way == "set" and step == 4:
            scaler.update(512.0)
        else:
            scaler.update()
        stepped = int(any(not torch.equal(a, b) for a, b in zip(before, parameters)))
        words += [stepped, scaler.get_scale(), scaler.state_dict()["_growth_tracker"]]
    words += [f"{value:.9g}" for p in parameters for value in p.tolist()]
    return " ".join(map(str, words))


def main():
    cases = itertools.product([(65536.0, 2.0, 0.5), (1024.0, 1.5, 0.25)], [1, 3, 2000], OVERFLOWS,
                              ["plain", "unscale", "two", "set"])
    lines = [run(*scale, interval, overflows, way) for scale, interval, overflows, way in cases]
    pathlib.Path(__file__).with_name("scaler_reference.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
