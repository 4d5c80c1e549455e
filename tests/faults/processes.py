"""Reads from the kernel the processes, ports and network namespaces that a job could leave behind."""
import ctypes
import fcntl
import os
import pathlib
import signal
import socket
import struct

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_CHILD_SUBREAPER = 36
_CLONE_NEWNET = 0x40000000


def adopt_orphans():
    """Makes every process that loses its parent a child of this one, where `descendants` finds it."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")


def enter_own_network():
    """Enters a network namespace with loopback alone, where all ports are this process's own. False where that is not permitted."""
    if _libc.unshare(_CLONE_NEWNET) != 0:
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        up_and_running = 0x41
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", up_and_running))  # SIOCSIFFLAGS
    return True


def _read(path):
    try:
        return pathlib.Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _stat(pid):
    """The fields after the name: state, parent, …"""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def name_of(pid):
    return _read(f"/proc/{pid}/comm").strip()


def alive(pid):
    fields = _stat(pid)
    return bool(fields) and fields[0] not in "ZX"


def children(pid):
    """The living children, in the order in which they were started."""
    found = []
    try:
        for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
            found += [int(word) for word in _read(task / "children").split()]
    except OSError:
        pass
    started = {child: int(fields[19]) for child in found if (fields := _stat(child)) and fields[0] not in "ZX"}
    return sorted(started, key=lambda child: (started[child], child))


def descendants(pid):
    found = []
    for child in children(pid):
        found += [child, *descendants(child)]
    return found


def kill_descendants(pid):
    """Repeats itself, because a process may fork between the look and the kill."""
    while left := descendants(pid):
        for one in left:
            try:
                os.kill(one, signal.SIGKILL)
            except ProcessLookupError:
                pass
        reap()


def reap():
    """Reaps adopted children that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def listening_ports(pid="self"):
    """The listening TCP ports in the network namespace of a process."""
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in _read(f"/proc/{pid}/net/{table}").splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return sorted(ports)


def ports_of(pid):
    """The TCP ports on which a process itself listens."""
    sockets = set()
    try:
        for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            target = os.readlink(entry)
            if target.startswith("socket:["):
                sockets.add(target[8:-1])
    except OSError:
        pass
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in _read(f"/proc/{pid}/net/{table}").splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return sorted(ports)
