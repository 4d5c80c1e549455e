#!/usr/bin/env python3
"""on_one_core.py FOLDER COMMAND...: runs a test on a core that no other such test has now; where all are taken, on any. FOLDER keeps their locks.

Workers that wait for each other's small messages all the time take less CPU time so, a sixth in a run of seven programs: who is woken need not be woken on another core. It is for tests
of numbers; those of races have all cores.
"""
import fcntl
import os
import sys

folder, *command = sys.argv[1:]
os.makedirs(folder, exist_ok=True)
for core in sorted(os.sched_getaffinity(0)):
    lock = os.open(os.path.join(folder, str(core)), os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        continue
    os.set_inheritable(lock, True)  # held until the command ends
    os.sched_setaffinity(0, {core})
    break
os.execvp(command[0], command)
