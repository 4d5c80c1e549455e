"""Jobs that train on command: several ranks, each driven through its stdin and answering in JSON."""

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("BRIGADE_BUILD", ROOT / "build"))
PROGRAMS = {
    "brigade": [str(BUILD / "bin/step_bench")],
    "torch": [sys.executable, str(ROOT / "bench/torch_step.py")],
    "package": [sys.executable, str(ROOT / "bench/torch_step.py"), "package=brigade"],
}
PATIENCE = 180  # seconds for one command


class WrongResult(Exception):
    """The results are wrong, so the benchmark has no speed."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Team:
    """The ranks of one job. `hosts`: the words before each rank's command; `variables`: additions to its environment."""

    def __init__(self, kind, ranks, arguments, hosts=None, address="127.0.0.1", interface="lo", variables=None):
        self.name = f"{kind} {' '.join(arguments)}, {ranks} ranks"
        port = str(free_port())
        self.errors = [tempfile.TemporaryFile("w+") for _ in range(ranks)]
        self.ranks = []
        for rank in range(ranks):
            local = 1 if hosts else ranks
            environment = os.environ | {
                "RANK": str(rank), "WORLD_SIZE": str(ranks),
                "LOCAL_RANK": str(rank % local), "LOCAL_WORLD_SIZE": str(local),
                "MASTER_ADDR": address, "MASTER_PORT": port,
                "GLOO_SOCKET_IFNAME": interface, "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(BUILD / "python"),
            }
            environment |= variables[rank] if variables else {}
            if kind == "brigade" and ranks == 1:  # started alone, it makes a group of one
                for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
                    environment.pop(name)
            before = hosts[rank] if hosts else []
            self.ranks.append(subprocess.Popen(
                before + PROGRAMS[kind] + arguments, env=environment, text=True, bufsize=1,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors[rank]))
        try:
            self.started = self._answers()
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.ranks:
            process.stdin.close()
        for process in self.ranks:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
        for file in self.errors:
            file.close()

    def ask(self, command):
        for process in self.ranks:
            process.stdin.write(command + "\n")
        return self._answers()

    def turn(self, steps):
        """Trains, and returns rank 0's answer. Throws WrongResult when the replicas differ."""
        answers = self.ask(f"turn {steps}")
        if len({answer["replica"] for answer in answers}) != 1:
            raise WrongResult(f"{self.name}: the replicas differ")
        return answers[0]

    def verify(self, tolerance):
        error = max(answer["error"] for answer in self.ask("verify"))
        if not error <= tolerance:
            raise WrongResult(f"{self.name}: gradients are off by {error:.2g}, expected {tolerance:.2g}")
        return error

    def _answers(self):
        return [json.loads(self._line(rank)) for rank in range(len(self.ranks))]

    def _line(self, rank):
        stream = self.ranks[rank].stdout
        if select.select([stream], [], [], PATIENCE)[0]:
            line = stream.readline()
            if line:
                return line
        self.errors[rank].seek(0)
        raise RuntimeError(f"{self.name}: rank {rank} gave no answer\n" + self.errors[rank].read()[-2000:])
