"""A rank of a Python job: torch's DistributedDataParallel with a hook of ours, checkpoints, and on request a fault.

It takes the options of `brigade train` that the driver uses. --fault NAME[@RANK]: the fault, on all ranks or on one.
"""
import argparse
import datetime
import hashlib
import json
import os
import pathlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import brigade


def arguments():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--bin")
    parser.add_argument("--hook", default="allreduce")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--checkpoint")
    parser.add_argument("--save-every", type=int, default=2)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--fault", default="")
    options = parser.parse_args()
    options.fault, _, rank = options.fault.partition("@")
    if rank and rank != os.environ["RANK"]:
        options.fault = ""
    return options


def make_model(fault):
    torch.manual_seed(1)
    width = 40 if fault == "width" else 32
    layers = [torch.nn.Linear(64, width, bias=False), torch.nn.Tanh(), torch.nn.Linear(width, 32, bias=False), torch.nn.Tanh(),
              torch.nn.Linear(32, 10, bias=False)]
    if fault == "layers":
        layers.insert(2, torch.nn.Linear(width, width, bias=False))
    model = torch.nn.Sequential(*layers)
    return model.double() if fault == "float64" else model


def failed_hook(fault):
    """The user's own hooks that are wrong."""
    def throws(state, bucket):
        raise RuntimeError("the hook's own words")

    def never(state, bucket):
        return torch.futures.Future()

    def wrong_size(state, bucket):
        done = torch.futures.Future()
        done.set_result(bucket.buffer()[:-1].clone())
        return done

    def wrong_dtype(state, bucket):
        done = torch.futures.Future()
        done.set_result(bucket.buffer().double())
        return done

    return {"throws": throws, "never": never, "wrong_size": wrong_size, "wrong_dtype": wrong_dtype}.get(fault)


def step_fault(fault, step):
    if step != 5:
        return
    if fault == "exit7":
        os._exit(7)
    if fault == "raises":
        raise ValueError("the worker's own words")
    if fault == "memory":
        torch.empty(1 << 50, dtype=torch.uint8)


def main():
    options = arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=float(os.environ["BRIGADE_TIMEOUT"])))
    rank = dist.get_rank()
    net = make_model(options.fault)
    # DDP lays the buckets out anew after the first step unless it looks for unused parameters: a resumed run would have another
    # layout for a step, and hooks that compress another result.
    model = DistributedDataParallel(net, bucket_cap_mb=0.0005, find_unused_parameters=True)
    hook = failed_hook(options.fault)
    if options.fault != "no_hook":
        brigade.set_hook(model, "bf16" if options.fault == "other_hook" else hook or options.hook)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    dtype = next(net.parameters()).dtype
    step = 0
    found = brigade.load_checkpoint(options.checkpoint, ["model", "optimizer"], ["hook"]) if options.resume else None
    if found:
        step = found.step
        net.load_state_dict(found.states["model"])
        optimizer.load_state_dict(found.states["optimizer"])
        brigade.load_state_dict(model, found.states["hook"])
    while step < options.steps:
        step_fault(options.fault, step)
        torch.manual_seed(1000 * step + rank)
        rows = torch.randn(8, 64, dtype=dtype)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(rows), rows[:, :10].argmax(1)).backward()
        optimizer.step()
        step += 1
        if step % options.save_every == 0 or step == options.steps:
            brigade.save_checkpoint(options.checkpoint, step, {"model": net.state_dict(), "optimizer": optimizer.state_dict()},
                                    {"hook": brigade.state_dict(model)})
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:16]
    digests = [None] * dist.get_world_size()
    dist.all_gather_object(digests, digest)
    if rank == 0:
        pathlib.Path(options.json).write_text(json.dumps({"fingerprints": digests}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
