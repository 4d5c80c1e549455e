"""Trains one run of the study, and keeps the file of finished runs."""

import json
import os
import pathlib
import re
import subprocess
import tempfile
from dataclasses import dataclass

LIMIT = 1800  # the seconds that a run may take
# These values of an evaluation are kept, in this order: a study has hundreds of runs with tens of evaluations.
KEPT = {"step": 0, "seconds": 3, "bytes_sent": 0, "accuracy": 6, "loss": 6}  # and the digits kept


class Failed(Exception):
    """A run ended with an error; the text is the run's."""


@dataclass(frozen=True)
class Run:
    task: str
    hook: str  # as for brigade train, or "diloco=STEPS[:lr=OUTER,momentum=OUTER]+HOOK"
    place: str  # "loopback", a rate, or "HOSTSxRANKS:RATE"
    seed: int

    def words(self):
        """The words that this run adds to the task's arguments."""
        diloco = re.fullmatch(r"diloco=(\d+)(?::([^+]+))?\+(.+)", self.hook)
        words = ["--seed", str(self.seed), "--hook", diloco[3] if diloco else self.hook]
        if diloco:
            words += ["--diloco", diloco[1]]
            for name, value in re.findall(r"(\w+)=([^,]+)", diloco[2] or ""):
                words += [f"--outer-{name}", value]
        return words + self.place_words()

    def place_words(self):
        hosts = re.fullmatch(r"(\d+)x(\d+):(.+)", self.place)
        if hosts:
            return ["-n", str(int(hosts[1]) * int(hosts[2])), "--hosts", hosts[1], "--link", hosts[3]]
        return ["-n", "2"] + ([] if self.place == "loopback" else ["--link", self.place])

    def key(self, arguments):
        return json.dumps([self.task, self.hook, self.place, self.seed, list(arguments)])


def train(brigade, task, run, data):
    """Trains, and returns the line for the file of results. Throws Failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "out.json"
        words = [str(brigade), "train", *task.words(data), *run.words(), "--json", str(report)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, env=environment, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            raise Failed(f"{' '.join(words)}: not done after {LIMIT} s") from None
        if done.returncode:
            raise Failed(f"{' '.join(words)}: exit code {done.returncode}: {done.stderr.strip()[-500:]}")
        found = json.loads(report.read_text())
    last = found["evaluations"][-1]
    return {"key": run.key(task.arguments + (task.steps,)), "task": run.task, "hook": run.hook, "place": run.place, "seed": run.seed,
            "parameters": found["parameters"], "gradient_bytes": found["gradient_bytes"], "step_ms": found["step_ms"],
            "overlap": found["overlap"], "loss": last["loss"], "accuracy": last["accuracy"], "bytes": last["bytes_sent"], "machine": machine(),
            "evaluations": found["evaluations"], "replicas_identical": found["replicas_identical"]}


def machine():
    with open("/proc/cpuinfo") as info:
        model = next((text.split(":")[1].strip() for text in info if text.startswith("model name")), "?")
    return f"{os.cpu_count()} cores of {model}"


class Results:
    """JSON lines, appended as runs end; a run that has a line is not run again."""

    def __init__(self, path):
        self.path = path
        self.rows = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            for line in path.read_text().splitlines():
                try:
                    row = json.loads(line)
                except json.JSONDecodeError:
                    continue  # it was cut off when the study was ended
                row["evaluations"] = [dict(zip(KEPT, kept)) for kept in row["evaluations"]]
                self.rows[row["key"]] = row

    def add(self, row):
        self.rows[row["key"]] = row
        kept = [[round(one[name], digits) if digits else one[name] for name, digits in KEPT.items()] for one in row["evaluations"]]
        with open(self.path, "a+b") as file:
            # A killed study may have left a line without its end, to which this one would be appended.
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.write(json.dumps({**row, "evaluations": kept}, separators=(",", ":")).encode() + b"\n")
