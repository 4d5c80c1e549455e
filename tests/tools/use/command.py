"""The brigade command in real processes, with a pseudo-terminal where needed. The words of the command line are BRIGADE [PYTHON]:
PYTHON has torch, or is missing.
"""
import fcntl
import json
import os
import pathlib
import pty
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

BRIGADE = sys.argv[1]
PYTHON = sys.argv[2] if len(sys.argv) > 2 else ""
ROOT = os.geteuid() == 0


def environment(**more):
    cleared = {"LD_LIBRARY_PATH", "OMP_NUM_THREADS", "NO_COLOR", "RANK", "WORLD_SIZE"}
    kept = {key: value for key, value in os.environ.items() if key not in cleared}
    return {**kept, "OMP_NUM_THREADS": "1", "BRIGADE_GRACE": "2", **more}


def descendants(pid):
    """The descendants of a process, without itself."""
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(word) for word in task.read_text().split()]
        except OSError:
            continue
        for child in children:
            found += [child] + descendants(child)
    return found


def workers_of(pid):
    """The workers, without the launcher's guardian, which has another name."""
    def name(of):
        try:
            return pathlib.Path(f"/proc/{of}/comm").read_text().strip()
        except OSError:
            return ""

    return [child for child in descendants(pid) if name(child) == "brigade"]


def running(pids):
    def alive(pid):
        try:
            return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
        except OSError:
            return False

    return [pid for pid in pids if alive(pid)]


def wait_until(condition, limit=60):
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def idx(sizes, values):
    """A file of numbers, in the form of MNIST's."""
    return struct.pack(f">HBB{len(sizes)}I", 0, 8, len(sizes), *sizes) + bytes(values)


class InFolder(unittest.TestCase):
    """Every test has an empty folder."""

    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)

    def run_it(self, *words, limit=120, **more):
        return subprocess.run(
            [BRIGADE, *map(str, words)], capture_output=True, text=True, timeout=limit, cwd=self.folder, env=environment(**more)
        )

    def good(self, *words, **more):
        done = self.run_it(*words, **more)
        self.assertEqual(done.returncode, 0, f"{words}\n{done.stdout}{done.stderr}")
        return done

    def json_of(self, *words, **more):
        self.good(*words, "--json", "out.json", **more)
        return json.loads((self.folder / "out.json").read_text())

    def refused(self, code, says, *words, leaves=(), **more):
        """Expects one clear error, and nothing left in the folder except `leaves`."""
        before = {path.name for path in self.folder.iterdir()}
        done = self.run_it(*words, **more)
        self.assertEqual(done.returncode, code, f"{words}\n{done.stdout}{done.stderr}")
        self.assertEqual(done.stderr.count("\n"), 1, f"{words}: more than one line:\n{done.stderr}")
        self.assertTrue(done.stderr.startswith(f"brigade {words[0]}: "), done.stderr)
        self.assertIn(says, done.stderr)
        self.assertEqual({path.name for path in self.folder.iterdir()} - before, set(leaves), done.stderr)
        return done

    def write(self, name, content):
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def on_terminal(self, *words, columns=100, **more):
        """Returns what appears on a terminal, and the exit code."""
        pid, master = pty.fork()
        if pid == 0:
            # This comes before the program looks at it.
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
            os.chdir(self.folder)
            os.execve(BRIGADE, [BRIGADE, *map(str, words)], environment(TERM="xterm", LANG="C.UTF-8", **more))
        seen = b""
        try:
            while block := os.read(master, 65536):
                seen += block
        except OSError:  # its other end is closed
            pass
        os.close(master)
        return seen.decode(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
