"""Two network namespaces with a cable of a given rate or latency between them, which are removed at the end."""

import os
import subprocess

from teams import BUILD


class Link:
    """`hosts` are the words that run a command on either end; `address` is the first end's."""

    address = "10.78.0.1"
    interface = "brg0"

    def __init__(self, rate):
        self.names = [f"brgbench{os.getpid()}{side}" for side in "lr"]
        self.hosts = [["ip", "netns", "exec", name] for name in self.names]
        self.rate = rate

    @staticmethod
    def missing():
        """Says why there can be no link here; empty when there can."""
        if os.geteuid() != 0:
            return "only root can make network namespaces"
        for tool in ("ip", "tc"):
            if subprocess.run(["which", tool], capture_output=True).returncode:
                return f"no '{tool}' command (package iproute2)"
        name = f"brgprobe{os.getpid()}"
        probe = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
        return f"no network namespaces here: {probe.stderr.strip()}" if probe.returncode else ""

    def __enter__(self):
        left, right = self.names
        try:
            for name in self.names:
                self._run(f"ip netns add {name}")
            self._run(f"ip -n {left} link add brg0 type veth peer name brg0 netns {right}")
            for place, name in enumerate(self.names):
                self._run(f"ip -n {name} addr add 10.78.0.{place + 1}/24 dev brg0")
                self._run(f"ip -n {name} link set lo up")
                self._run(f"ip -n {name} link set brg0 up")
                self._use_cubic(name, place)
                self._shape(name, "add")
        except BaseException:
            self.__exit__()
            raise
        return self

    def change(self, rate):
        """Changes the rate while jobs run on it."""
        self.rate = rate
        for name in self.names:
            self._shape(name, "change")

    @staticmethod
    def _use_cubic(name, place):
        """Uses Linux's own congestion control, whatever this machine is set to; a kernel without it keeps its own."""
        words = f"ip -n {name} route change 10.78.0.0/24 dev brg0 proto kernel scope link src 10.78.0.{place + 1} congctl cubic"
        subprocess.run(words.split(), capture_output=True)

    def _shape(self, name, action):
        self._run(f"tc -n {name} qdisc {action} dev brg0 root tbf rate {self.rate} burst 256kb latency 50ms")

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    @staticmethod
    def _run(command):
        subprocess.run(command.split(), check=True, capture_output=True)


class DelayedLink(Link):
    """The same without a rate limit: bench/delay_link.cpp, between the two, delays packets."""

    def __init__(self, microseconds):
        super().__init__("")
        self.names.append(f"brgbench{os.getpid()}m")
        self.microseconds = microseconds
        self.relay = None

    def __enter__(self):
        *ends, middle = self.names
        try:
            for name in self.names:
                self._run(f"ip netns add {name}")
            for place, name in enumerate(ends):
                self._run(f"ip -n {name} link add brg0 type veth peer name end{place} netns {middle}")
                self._run(f"ip -n {name} addr add 10.78.0.{place + 1}/24 dev brg0")
                self._run(f"ip -n {name} link set lo up")
                self._run(f"ip -n {name} link set brg0 up")
                self._use_cubic(name, place)
                self._run(f"ip -n {middle} link set end{place} up")
            # It has priority over all ranks: a packet that waited for the processor would be too late.
            command = ["ip", "netns", "exec", middle, "chrt", "-r", "20",
                       str(BUILD / "bin/delay_link"), "end0", "end1", str(self.microseconds)]
            self.relay = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            if self.relay.stdout.readline() != "ready\n":
                raise RuntimeError("delay_link did not start")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.relay:
            self.relay.stdin.close()
            self.relay.wait(5)
            self.relay.stdout.close()
        super().__exit__()
