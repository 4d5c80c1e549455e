"""Starts jobs of two ranks in several ways, and observes them while they run.

    run       brigade run -n 2 brigade train       C++, with the launcher
    train     brigade train -n 2                   C++, a program that is its own launcher
    bare      RANK=… brigade train, twice          C++, without a launcher
    py-run    brigade run -n 2 worker.py           torch's DDP with a hook of ours, with the launcher
    py-bare   RANK=… worker.py, twice              the same without
    hosts     brigade run --nnodes 2, twice        C++, in two network namespaces with a cable between them
    py-hosts  brigade run --nnodes 2, twice        Python
"""
import json
import os
import pathlib
import re
import subprocess
import time

import processes

HERE = pathlib.Path(__file__).resolve().parent
STEPS = 160
MASTER_PORT = 29500
PATIENT = 60  # seconds: the library's time limit where none is meant to be reached


class Failure(Exception):
    """A case does not do what the table says."""


class TooEarly(Failure):
    """The job ended before the fault: the machine is busy, and the ranks did not connect in time."""


def wait_until(condition, limit, what):
    end = time.monotonic() + limit
    while not (found := condition()):
        if time.monotonic() > end:
            raise Failure(f"{what}: not within {limit:g} s")
        time.sleep(0.005)
    return found


def replaced(words, more):
    """Returns `words` with `more` in place of the options of the same names."""
    for option in [word for word in more if word.startswith("--") and word in words]:
        at = words.index(option)
        words = words[:at] + words[at + 2:]
    return words + more


class Member:
    """A process that the driver itself started: a launcher, or a rank without one."""

    def __init__(self, name, command, environment, folder, **more):
        self.name = name
        self.output = folder / f"{name.replace(' ', '')}.log"
        self.command = command
        more.setdefault("stdin", subprocess.DEVNULL)
        with self.output.open("ab") as log:
            more.setdefault("stdout", log)
            more.setdefault("stderr", log)
            self.process = subprocess.Popen(command, env=environment, cwd=folder, **more)

    @property
    def pid(self):
        return self.process.pid

    @property
    def code(self):
        return self.process.poll()

    def said(self):
        return self.output.read_text(errors="replace")


class Cable:
    """Two network namespaces with a cable between them, each held by a process."""

    ADDRESSES = ("10.77.0.1", "10.77.0.2")

    def __init__(self):
        self.holders = [subprocess.Popen(["unshare", "-n", "sleep", "infinity"]) for _ in self.ADDRESSES]
        mine = os.readlink("/proc/self/ns/net")
        for holder in self.holders:
            wait_until(lambda: processes.name_of(holder.pid) == "sleep" and os.readlink(f"/proc/{holder.pid}/ns/net") != mine,
                       10, "a network namespace")
        self.on(0, f"ip link add brg0 type veth peer name brg0 netns {self.holders[1].pid}")
        for host, address in enumerate(self.ADDRESSES):
            self.on(host, f"ip addr add {address}/24 dev brg0")
            self.on(host, "ip link set lo up")
            self.on(host, "ip link set brg0 up")

    def enter(self, host):
        return ["nsenter", "-t", str(self.holders[host].pid), "-n"]

    def on(self, host, command):
        done = subprocess.run(self.enter(host) + command.split(), capture_output=True, text=True)
        if done.returncode:
            raise Failure(f"host {host}: {command}: {done.stderr.strip()}")

    def close(self):
        for holder in self.holders:
            holder.kill()
            holder.wait()


class Job:
    def __init__(self, way, hook, folder, setting, steps=STEPS, limit=PATIENT):
        self.way, self.hook, self.folder, self.setting, self.steps, self.limit = way, hook, folder, setting, steps, limit
        self.python = way.startswith("py-")
        self.kind = way.removeprefix("py-")
        self.checkpoint = folder / "checkpoint"
        self.result = folder / "result.json"
        self.temporary = folder / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self.extra = []  # more arguments for all ranks
        self.extra_of = {}  # … for one rank; only without a launcher
        self.run_options = []  # … for brigade run
        self.environment = {}
        self.environment_of = {}  # by rank; only without a launcher
        self.prefix = []  # before every command, such as prlimit's
        self.streams = {}  # for Popen
        self.members = []
        self.cable = None

    # ---- starting

    def has_launcher(self):
        return self.kind != "bare"

    def seconds_to_start(self):
        """The time that ranks need to connect, which is longer in Python because of torch."""
        return 20 if self.python else 5

    def program(self, rank=None):
        if self.python:
            words = [str(HERE / "worker.py")] if self.has_launcher() else [self.setting.python, str(HERE / "worker.py")]
            words += [f"--bin={self.setting.bin}"]
        else:
            words = [str(self.setting.brigade), "train", "--model", "mlp", "--width", "32", "--bucket-mb", "0.004",
                     "--evaluate-every", "0", "--batch", "8"]
            if self.kind == "train":
                words += ["-n", "2"]
        words += ["--hook", self.hook, "--steps", str(self.steps), "--checkpoint", str(self.checkpoint), "--save-every", "2",
                  "--resume", "--json", str(self.result)]
        for more in (self.extra, self.extra_of.get(rank, [])):
            words = replaced(words, more)
        return words

    def variables(self, rank=None):
        dropped = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "BRIGADE_JOB"}
        kept = {name: value for name, value in os.environ.items() if name not in dropped}
        ours = {"OMP_NUM_THREADS": "1", "BRIGADE_TIMEOUT": str(self.limit), "BRIGADE_GRACE": "2", "TMPDIR": str(self.temporary),
                "RES_OPTIONS": "timeout:1 attempts:1", "PYTHONDONTWRITEBYTECODE": "1"}
        if self.setting.python:
            ours |= {"PYTHON_EXEC": self.setting.python, "PYTHONPATH": str(self.setting.bin.parent / "python")}
        if self.python and self.kind == "hosts":  # torch's own groups listen at the host name's address
            ours |= {"GLOO_SOCKET_IFNAME": "brg0"}
        if rank is not None:
            ours |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(MASTER_PORT)}
        return {name: value for name, value in {**kept, **ours, **self.environment, **self.environment_of.get(rank, {})}.items()
                if value is not None}

    def start(self, only=None):
        """`only`: starts these ranks, without a launcher."""
        self.members = []
        run = [str(self.setting.brigade), "run", *self.run_options]
        if self.kind == "bare":
            for rank in only or (0, 1):
                self.add(f"rank {rank}", self.program(rank), rank)
        elif self.kind == "run":
            self.add("launcher", [*run, "-n", "2", *self.program()])
        elif self.kind == "train":
            self.add("launcher", self.program())
        else:
            self.cable = self.cable or Cable()
            for host in (0, 1):
                where = ["--nnodes", "2", "--node-rank", str(host), "--master-addr", Cable.ADDRESSES[0],
                         "--master-port", str(MASTER_PORT)]
                self.add(f"launcher {host}", [*self.cable.enter(host), *run, *where, "-n", "1", *self.program()])

    def add(self, name, command, rank=None):
        self.members.append(Member(name, [*self.prefix, *command], self.variables(rank), self.folder, **self.streams))
        return self.members[-1]

    # ---- looking

    def step(self):
        """The step of the last checkpoint file that was begun; -1: none yet."""
        try:
            names = os.listdir(self.checkpoint)
        except FileNotFoundError:
            return -1
        return max((int(found[1]) for name in names if (found := re.match(r"step-(\d+)-", name))), default=-1)

    def await_step(self, step, limit=60):
        def there():
            if self.step() >= step:
                return True
            if all(member.code is not None for member in self.members):
                raise TooEarly(f"the job ended before step {step}")
            return False

        wait_until(there, limit * self.setting.slack, f"step {step}")

    def rank(self, rank):
        """The process of a rank."""
        if self.kind == "bare":
            return self.members[rank].pid
        if self.kind == "hosts":
            return self.workers(self.members[rank].pid)[0]
        return self.workers(self.members[0].pid)[rank]

    @staticmethod
    def workers(launcher):
        return [child for child in processes.children(launcher) if processes.name_of(child) != "brigade-watch"]

    def watch(self, launcher=0):
        watches = [child for child in processes.children(self.members[launcher].pid)
                   if processes.name_of(child) == "brigade-watch"]
        if not watches:
            raise IndexError("there is no brigade-watch")
        return watches[0]

    def store_host(self):
        """The process that hosts the store."""
        return self.members[0].pid

    def process(self, who):
        """The process by its name in the table: "rank 1", "launcher", "launcher 1", "watch"."""
        role, _, number = who.partition(" ")
        if role == "rank":
            return self.rank(int(number))
        if role == "watch":
            return self.watch(int(number or 0))
        return self.members[int(number or 0)].pid

    def running(self):
        return any(member.code is None for member in self.members)

    def wait(self, limit):
        wait_until(lambda: not self.running(), limit, "the job's end")

    def said(self):
        return "".join(f"--- {member.name}, {'running' if member.code is None else f'exit code {member.code}'}\n{member.said()}"
                       for member in self.members)

    def hash(self):
        """The hash of the parameters at the end, the same on all ranks."""
        try:
            found = json.loads(self.result.read_text())
        except (OSError, ValueError) as error:
            raise Failure(f"no result: {error}\n{self.said()}") from error
        prints = set(found["fingerprints"])
        if len(prints) != 1:
            raise Failure(f"the ranks have drifted apart: {found['fingerprints']}")
        return prints.pop()
