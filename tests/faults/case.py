#!/usr/bin/env python3
"""Runs one case of the table: case.py --bin build/bin [--python PYTHON] NAME WAY HOOK. run.py starts it for each; by hand it says why one fails.

The case has its own process, network namespace, mount namespace and folder, adopts every orphan of the job, and looks at the end for what is
left of it. Its last line is JSON.
"""
import argparse
import fcntl
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import actions  # noqa: E402
import processes  # noqa: E402
import table  # noqa: E402
from faults import EndsOrTrains, TrainsOn, TrainsWithout  # noqa: E402
from jobs import STEPS, Failure, Job, TooEarly  # noqa: E402


class Setting:
    """Where the programs are, and the factor on all promised times."""

    def __init__(self, bin_folder, python, slack, work):
        self.bin = pathlib.Path(bin_folder).resolve()
        self.brigade = self.bin / "brigade"
        self.python = python
        self.slack = slack
        self.work = pathlib.Path(work).resolve()
        self.shim = next(iter(sorted(self.bin.parent.glob("**/libfault_shim.so"))), None)


def undisturbed_hash(way, hook, setting, steps=STEPS):
    """The hash of a run without a fault, computed once for all cases with this language and hook."""
    kind = "py-run" if way.startswith("py-") else "train"
    name = re.sub(r"\W", "_", f"{kind}_{hook}_{steps}")
    with (setting.work / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = setting.work / f"{name}.hash"
        if not known.exists():
            with tempfile.TemporaryDirectory(dir=setting.work) as folder:
                job = Job(kind, hook, pathlib.Path(folder), setting, steps)
                job.start()
                job.wait(60 * setting.slack)
                known.write_text(job.hash())
        return known.read_text()


def check_member(member, wanted):
    code, text = wanted
    codes = code if isinstance(code, tuple) else (code,)
    good = member.code not in (0, None) if code is None else member.code in codes
    if not good:
        raise Failure(f"{member.name} ended with {member.code}, not {'with a failure' if code is None else code}")
    if not re.search(text, member.said()):
        raise Failure(f"{member.name} does not say '{text}'")


def check_ends(job, see):
    for member in job.members:
        role = member.name.partition(" ")[0]
        wanted = see.launcher if role == "launcher" else {"rank 0": see.rank0, "rank 1": see.rank1}.get(member.name)
        if wanted:
            check_member(member, wanted)
    if see.resumes:
        check_resumes(job)


def check_resumes(job):
    """Runs the same command again, without the fault; it must end with the parameters of a run without a fault."""
    again = Job(job.way, job.hook, job.folder, job.setting)
    again.undisturbed = job.undisturbed
    if job.cable:  # a new one, because the faults of the old one stay with it
        job.cable.close()
    again.start()
    job.cable = again.cable
    again.wait(60 * job.setting.slack)
    job.resumed = again
    check_trained(again)


def check_trained(job, same=True):
    for member in job.members:
        if member.code != 0:
            raise Failure(f"{member.name} ended with {member.code}")
    if same and job.hash() != job.undisturbed():
        raise Failure(f"the parameters are {job.hash()}, those of an undisturbed run {job.undisturbed()}")


def check(job, see):
    if isinstance(see, TrainsOn):
        check_trained(job, see.same)
    elif isinstance(see, TrainsWithout):
        refused = [member for member in job.members if member.code != 0]
        if len(refused) != 1:
            raise Failure(f"{len(refused)} processes failed, not one")
        check_member(refused[0], (1, see.text))
        job.members.remove(refused[0])
        check_trained(job)
    elif isinstance(see, EndsOrTrains):
        failed = [member for member in job.members if member.code != 0]
        if not failed:
            check_trained(job)
        else:  # if one host has finished its part, it may end well all the same
            job.members = failed
            check_ends(job, see.ends)
    else:
        check_ends(job, see)


def check_nothing_left(job):
    processes.reap()
    holders = {holder.pid for holder in job.cable.holders} if job.cable else set()
    left = [pid for pid in processes.descendants(os.getpid()) if pid not in holders]
    if left:
        raise Failure("processes are left: " + ", ".join(f"{pid} {processes.name_of(pid)}" for pid in left))
    for where in ["self", *holders] if job.own_network else []:
        if ports := processes.listening_ports(where):
            raise Failure(f"ports are left: {ports}")
    # A temporary folder of torch's own, in Python, is ignored.
    if found := [path.name for path in job.temporary.iterdir() if not path.name.startswith("torchinductor")]:
        raise Failure(f"files are left in TMPDIR: {found}")
    if job.checkpoint.is_dir() and (found := [path.name for path in job.checkpoint.glob("*partial*")]):
        raise Failure(f"files are left in the checkpoint's folder: {found}")


def execute(fault, value, job, see):
    """Returns the seconds from the last action to the end of the job."""
    try:
        for action in fault.do:
            action(job, value)
    except (IndexError, ProcessLookupError, ConnectionError) as gone:
        raise TooEarly(f"whom the fault was meant for had gone: {gone!r}") from gone
    begin = time.monotonic()
    # A fault that was there before the job counts from the job's start.
    at_start = actions.at_step not in [getattr(action, "verb", None) for action in fault.do]
    within = (see.within or max(fault.limit + 2, 5)) + (job.seconds_to_start() if at_start else 0)
    job.wait(within * job.setting.slack)
    seconds = time.monotonic() - begin
    for guest in job.guests:
        guest.close()
    check(job, see)
    check_nothing_left(job)
    return seconds


def attempt(fault, value, way, hook, setting, folder, own_network):
    """Returns whether it was good, the seconds, and why not; None if the job ended before the fault."""
    job = Job(way, hook, folder, setting, limit=fault.limit)
    job.undisturbed = functools.cache(lambda: undisturbed_hash(way, hook, setting))
    job.guests, job.own_network = [], own_network
    see = fault.see(value) if callable(fault.see) else fault.see
    try:
        return {"good": True, "seconds": execute(fault, value, job, see), "why": ""}
    except TooEarly as early:
        return {"good": False, "seconds": None, "early": True, "why": f"{early}\n{job.said()}"}
    except Failure as failure:
        resumed = f"\nresumed:\n{job.resumed.said()}" if hasattr(job, "resumed") else ""
        return {"good": False, "seconds": None, "why": f"{failure}\n{job.said()}{resumed}"}
    except Exception:
        return {"good": False, "seconds": None, "why": f"{traceback.format_exc()}\n{job.said()}"}
    finally:
        processes.kill_descendants(os.getpid())


def run(fault, value, way, hook, setting, work):
    processes.adopt_orphans()
    own_network = os.geteuid() == 0 and processes.enter_own_network()
    for _ in range(3):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="case_", dir=work))
        result = attempt(fault, value, way, hook, setting, folder, own_network)
        subprocess.run(["umount", "-q", folder / "checkpoint"], stderr=subprocess.DEVNULL)
        shutil.rmtree(folder, ignore_errors=True)
        if not result.pop("early", False):
            break
    return result


def in_own_mounts(words):
    """Runs this again in a mount namespace, so that a small disk goes with the case."""
    os.execvp("unshare", ["unshare", "-m", "--propagation", "private", sys.executable, *words])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, help="the folder of the brigade program")
    parser.add_argument("--python", default="", help="an interpreter that has torch")
    parser.add_argument("--slack", type=float, default=2, help="how many times the promised time is allowed")
    parser.add_argument("--work", help="a folder, kept; otherwise a temporary one")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("name")
    parser.add_argument("way")
    parser.add_argument("hook")
    options = parser.parse_args()
    if os.geteuid() == 0 and not options.inside:
        in_own_mounts([__file__, "--inside", *sys.argv[1:]])
    fault, value = table.find(options.name)
    work = pathlib.Path(options.work or tempfile.mkdtemp(prefix="faults_"))
    result = run(fault, value, options.way, options.hook, Setting(options.bin, options.python, options.slack, work), work)
    if not options.work:
        shutil.rmtree(work, ignore_errors=True)
    print(json.dumps(result) if options.work else f"{'good' if result['good'] else 'BAD'} {result['seconds']}\n{result['why']}")
    return 0 if result["good"] else 1


if __name__ == "__main__":
    sys.exit(main())
