"""The verbs of the table. Each returns an action: a function of the job and of the row's value (see Fault.each)."""
import os
import pathlib
import resource
import signal
import socket
import struct
import subprocess
import time

import processes
import strangers
from jobs import MASTER_PORT, PATIENT, Failure, wait_until


def start(job, value):
    job.start()


def start_only(*ranks):
    """Without a launcher: starts these ranks, not all."""
    return lambda job, value: job.start(only=ranks)


def start_more(name, rank, **environment):
    """Without a launcher: starts one more process that claims a rank."""
    def action(job, value):
        job.environment_of[rank] = {**job.environment_of.get(rank, {}), **environment}
        job.add(name, job.program(rank), rank)
    return action


def at_step(step):
    def action(job, value):
        job.await_step(step)
    action.verb = at_step
    return action


def as_soon_as_there(who):
    """Waits until the process exists: the ranks are about to connect."""
    def action(job, value):
        def there():
            try:  # before it has its name, the guardian looks like a rank
                return (not job.has_launcher() or job.watch()) and job.process(who)
            except IndexError:
                return None
        wait_until(there, 30 * job.setting.slack, f"{who} to be there")
    return action


def send(name, *who):
    """Sends a signal; without a name, the row's value."""
    def action(job, value):
        number = getattr(signal, f"SIG{name or value}")
        for pid in [job.process(one) for one in who]:
            os.kill(pid, number)
    return action


def pause(seconds):
    return lambda job, value: time.sleep(seconds)


def once_over(job, value):
    """Waits for the end of the job, whatever it is."""
    job.wait(60 * job.setting.slack)


# ---- how it is started

def with_args(*words):
    return lambda job, value: job.extra.extend(word.format(value) for word in words)


def with_args_of(rank, *words):
    return lambda job, value: job.extra_of.setdefault(rank, []).extend(word.format(value) for word in words)


def with_run_options(*words):
    return lambda job, value: job.run_options.extend(words)


def with_variables(**variables):
    return lambda job, value: job.environment.update(
        {name: text if text is None else text.format(value) for name, text in variables.items()})


def with_variables_of(rank, **variables):
    return lambda job, value: job.environment_of.setdefault(rank, {}).update(
        {name: text if text is None else text.format(value) for name, text in variables.items()})


def with_descriptors(job, value):
    """Allows at most `value` descriptors in every process."""
    job.prefix = ["prlimit", f"--nofile={value}:{value}"]


def with_stdout(kind):
    def action(job, value):
        if kind == "full":
            job.streams["stdout"] = os.open("/dev/full", os.O_WRONLY)
        if kind == "without a reader":
            ours, theirs = os.pipe()
            os.close(ours)
            job.streams["stdout"] = theirs
            job.streams["restore_signals"] = True
        if kind == "closed":
            job.streams["stdout"] = None
            job.prefix = ["bash", "-c", 'exec "$@" >&-', "bash"]
        if kind == "and stderr full":
            job.streams["stdout"] = job.streams["stderr"] = os.open("/dev/full", os.O_WRONLY)
    return action


def with_calls(rules):
    """Makes file calls of the job's processes fail or delays them, by rules of shim.c; {folder} is the case's own."""
    def action(job, value):
        job.environment.update(LD_PRELOAD=str(job.setting.shim), BRIGADE_FAULTS=rules.format(value, folder=job.folder))
    return action


def as_nobody(job, value):
    """Runs all processes as a user who may write only into the case's folder."""
    for folder in (job.folder.parent, job.folder, job.temporary):
        folder.chmod(0o777)
    job.prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


def locked_folder(name):
    """Makes a folder into which the process that reads it may not write."""
    return lambda job, value: (job.folder / name).mkdir(mode=0o555)


# ---- limits of a running process

def limit(what, who, amount=0):
    """Sets RLIMIT_…: for memory, the process's present size plus `amount`, else `amount`."""
    def action(job, value):
        pid = job.process(who)
        number = getattr(resource, f"RLIMIT_{what}")
        size = amount
        if what == "AS":
            size += int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
        resource.prlimit(pid, number, (size, size))
    return action


# ---- files

def saved(job, value):
    """A run of a few steps has saved a checkpoint first."""
    before = job.steps, job.limit
    job.steps, job.limit = 20, PATIENT
    job.start()
    job.wait(60 * job.setting.slack)
    job.steps, job.limit = before
    if any(member.code for member in job.members):
        raise Failure(f"the run that saves failed:\n{job.said()}")
    job.result.unlink(missing_ok=True)


def find(job, pattern):
    """A path, absolute or by a pattern in the case's folder."""
    if pattern.startswith("/"):
        return pathlib.Path(pattern)
    matches = sorted(job.folder.glob(pattern)) if "*" in pattern else []
    return matches[0] if matches else job.folder / pattern


def put(pattern, kind, content=b""):
    """Puts a thing of this kind in the place of the file; {} in either is the row's value."""
    def action(job, value):
        path = find(job, pattern.format(value))
        what = kind.format(value)
        path.parent.mkdir(parents=True, exist_ok=True)
        old = path.read_bytes() if path.is_file() else content
        path.unlink(missing_ok=True)
        if what == "FIFO":
            os.mkfifo(path)
        elif what == "folder":
            path.mkdir()
        elif what == "dangling link":
            path.symlink_to(job.folder / "nowhere")
        elif what == "link to itself":
            path.symlink_to(path)
        elif what == "link":
            aside = job.folder / f"aside-{path.name}"
            aside.write_bytes(old)
            path.symlink_to(aside)
        elif what.startswith("/dev/"):
            path.symlink_to(what)
            job.prefix = ["prlimit", f"--as={6 << 30}"]  # for a reader that does not notice
        elif what == "socket":
            with socket.socket(socket.AF_UNIX) as one:
                here = os.getcwd()
                os.chdir(path.parent)
                one.bind(path.name)
                os.chdir(here)
        elif what == "file":
            path.write_bytes(content)
        elif what == "empty file":
            path.write_bytes(b"")
        elif what == "half of it":
            path.write_bytes(old[:len(old) // 2])
        elif what == "byte changed":
            path.write_bytes(old[:len(old) // 2] + bytes([old[len(old) // 2] ^ 0x10]) + old[len(old) // 2 + 1:])
        elif what == "garbage":
            path.write_bytes(bytes(range(256)) * 16)
        elif what == "huge header":
            path.write_bytes(b"\xff\xff\xff\xff\xff\xff\xff\x7f{}")
        elif what != "nothing":
            raise Failure(f"no kind of file is named {what}")
    return action


def idx_files(job, value):
    """Makes twenty images of 4 x 4, to train and to test."""
    (job.folder / "idx").mkdir()
    for name in ("train", "t10k"):
        images = struct.pack(">4I", 2051, 20, 4, 4) + bytes(range(16)) * 20
        labels = struct.pack(">2I", 2049, 20) + bytes(range(10)) * 2
        (job.folder / f"idx/{name}-images-idx3-ubyte").write_bytes(images)
        (job.folder / f"idx/{name}-labels-idx1-ubyte").write_bytes(labels)


def small_disk(kilobytes):
    """Gives the checkpoint's folder only so much room."""
    def action(job, value):
        job.checkpoint.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", job.checkpoint], check=True)
    return action


def fill_disk(job, value):
    try:
        with (job.checkpoint / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
    except OSError:
        pass


def empty_disk(job, value):
    (job.checkpoint / "filler").unlink(missing_ok=True)


# ---- the network

def reset_connections(job, value):
    """Resets all established connections."""
    subprocess.run(["ss", "-K", "-t", "state", "established"], check=True, stdout=subprocess.DEVNULL)


# ---- the network between two hosts

def on_host(host, command):
    return lambda job, value: job.cable.on(host, command)


def deaf(host):
    """Drops what this host sends to the other one; it still hears."""
    return on_host(host, f"ip neigh replace {job_address(1 - host)} lladdr 02:00:00:00:00:99 nud permanent dev brg0")


def hears_again(host):
    return on_host(host, f"ip neigh del {job_address(1 - host)} dev brg0")


def job_address(host):
    return ("10.77.0.1", "10.77.0.2")[host]


# ---- foreign connections: see strangers.py

def stranger(kind, at):
    """at: "store", or the process whose ports it visits."""
    def action(job, value):
        if at == "store":
            ports = processes.ports_of(job.store_host())
        elif at == "master port":
            ports = [MASTER_PORT]
        else:
            ports = processes.ports_of(job.process(at))
        if not ports:
            raise IndexError(f"{at} listens nowhere")
        for visited, port in enumerate(ports):
            try:
                job.guests.append(strangers.visit(kind or value, port))
            except ConnectionError:
                if visited == 0:  # else the visit before may have ended the job
                    raise
    return action


def impostor(kind):
    """Makes another server listen on the master port."""
    def action(job, value):
        job.guests.append(strangers.listen(kind or value, MASTER_PORT))
    return action
