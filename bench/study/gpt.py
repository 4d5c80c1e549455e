#!/usr/bin/env python3
"""Trains a GPT of about 120 M parameters over characters, in bf16, by two ranks on one GPU, under one hook after the other; prints a Markdown table.

gpt.py --text FILE [--brigade build/bin/brigade] [--hooks "allreduce;noop;..."] [--json FILE]

The ranks talk over NCCL's sockets and share the GPU under MPS, which this starts if it does not run. Exposed time is a step's time beyond that of
noop, which sends nothing.
"""
import argparse
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
HOOKS = ["allreduce", "noop", "fp16", "int8", "int4", "powersgd:rank=4,start=10"]
RANKS, BATCH, CONTEXT = 2, 16, 256
WORDS = ["--device", "cuda", "--precision", "bf16", "--width", "768", "--layers", "17", "--context", str(CONTEXT), "--batch", str(BATCH), "--bucket-mb", "25",
         "--optimizer", "adamw:lr=0.0003", "--schedule", "cosine:warmup=20", "--evaluate-every", "0", "--check-every", "100", "-n", str(RANKS)]


@contextlib.contextmanager
def mps():
    """Runs MPS, without which the GPU gives the ranks turns of milliseconds, and times mean nothing."""
    control = shutil.which("nvidia-cuda-mps-control")
    if "CUDA_MPS_PIPE_DIRECTORY" in os.environ or not control:
        if not control:
            print("no MPS here: times are those of time slices", file=sys.stderr)
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in ("pipe", "log"):
            os.mkdir(f"{folder}/{name}")
            os.environ[f"CUDA_MPS_{name.upper()}_DIRECTORY"] = f"{folder}/{name}"
        subprocess.run([control, "-d"], check=True, timeout=30)
        try:
            yield
        finally:
            subprocess.run([control], input="quit\n", text=True, timeout=60, stdout=subprocess.DEVNULL)
            for name in ("PIPE", "LOG"):
                del os.environ[f"CUDA_MPS_{name}_DIRECTORY"]


def train(options, hook):
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "out.json"
        words = [options.brigade, "train", "--data", f"text:{options.text}", "--steps", str(options.steps), "--hook", hook, *WORDS, "--json", report]
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL)
        if done.returncode:
            sys.exit(f"{hook}: exit code {done.returncode}: {done.stderr.strip()[-2000:]}")
        return json.loads(report.read_text())


def row(hook, found, plain):
    last = found["evaluations"][-1]
    tokens = RANKS * BATCH * CONTEXT / found["step_ms"] * 1000
    exposed = f"{found['step_ms'] - plain:.0f}" if plain is not None else ""
    sent = last["bytes_sent"] / last["step"] / 1e6
    return f"| `{hook}` | {tokens:,.0f} | {found['step_ms']:.0f} | {exposed} | {sent:.1f} | {last['loss']:.3f} | {'yes' if found['replicas_identical'] else '**no**'} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brigade", type=pathlib.Path, default=ROOT / "build/bin/brigade", help="the command")
    parser.add_argument("--text", type=pathlib.Path, required=True, help="any text of some hundred kilobytes")
    parser.add_argument("--hooks", default=";".join(HOOKS), help="by semicolon")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", type=pathlib.Path, help="write what was found to this file as well")
    options = parser.parse_args()
    found = {}
    with mps():
        for hook in options.hooks.split(";"):
            found[hook] = train(options, hook)
            print(f"{hook}: {found[hook]['step_ms']:.0f} ms a step", file=sys.stderr, flush=True)
    if options.json:
        options.json.write_text(json.dumps(found))
    plain = found["noop"]["step_ms"] if "noop" in found else None
    print(f"{next(iter(found.values()))['parameters']:,} parameters, {options.steps} steps of {RANKS} x {BATCH} x {CONTEXT} characters\n")
    print("| hook | tokens/s | step ms | exposed ms | MB a step and rank | test loss | replicas identical |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for hook, one in found.items():
        print(row(hook, one, plain))


if __name__ == "__main__":
    main()
