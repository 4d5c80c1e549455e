"""Two network namespaces with a cable between them, shaped to a given rate; gone at the end."""

import os
import subprocess


class Link:
    """`hosts` are the words that run a command on either end, `address` is the first end's."""

    address = "10.78.0.1"
    interface = "brg0"

    def __init__(self, rate):
        self.names = [f"brgbench{os.getpid()}{side}" for side in "lr"]
        self.hosts = [["ip", "netns", "exec", name] for name in self.names]
        self.rate = rate

    @staticmethod
    def missing():
        """Why there can be none here; empty when there can."""
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
                self._run(f"tc -n {name} qdisc add dev brg0 root tbf rate {self.rate} burst 256kb latency 50ms")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    @staticmethod
    def _run(command):
        subprocess.run(command.split(), check=True, capture_output=True)
