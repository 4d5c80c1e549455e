#!/usr/bin/env python3
"""Runs examples/wireguard between two hosts, and checks what a third one on the same link can see and reach.

wireguard_check.py BIN: BIN is the build's bin folder. Needs root, /dev/net/tun and Debian's wireguard-go and wireguard-tools (scripts/setup
--python), no kernel module. The hosts are network namespaces on a bridge. All of it happens in a separate process namespace: when that ends,
however it ends, the kernel ends every process in it, and namespaces and interfaces go with them.
"""
import contextlib
import ctypes
import ipaddress
import json
import os
import pathlib
import re
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

BIN = pathlib.Path(sys.argv[1]).resolve()
RECIPE = pathlib.Path(__file__).resolve().parents[2] / "examples/wireguard"
TUNNEL = ["10.90.0.1", "10.90.0.2"]
LINK = ["192.168.7.1", "192.168.7.2", "192.168.7.3"]
WIREGUARD = 51820
MASTER_PORT = 29500
TEXT = "gradients that everybody on the link can read"
LIMIT = 120  # seconds for each command
SILENCE = 2  # a port counts as not reached after this many seconds without an answer, where none is expected
HOLD = "ip link set lo up && mount -t tmpfs none /run && mount -t tmpfs none /etc/wireguard && echo ready && exec sleep infinity"


def why_not():
    """What the machine lacks that no package provides; empty: nothing."""
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except OSError as error:
        return f"needs /dev/net/tun ({error.strerror}); root makes it by: mkdir -p /dev/net && mknod /dev/net/tun c 10 200"
    refused = subprocess.run(["unshare", "-n", "-m", "-p", "-f", "true"], capture_output=True, text=True).stderr.strip()
    return refused and f"needs a root who may make network namespaces; {refused}"


WHY_NOT = why_not()


def enter_namespaces():
    """Starts this program again in namespaces, as a process that unshare itself started: killing unshare kills all."""
    if not os.environ.get("BRIGADE_APART"):
        os.environ["BRIGADE_APART"] = "1"
        os.environ["PATH"] += ":/usr/sbin:/sbin"
        os.execvp("unshare", ["unshare", "-n", "-p", "-f", "--mount-proc", "--kill-child", sys.executable, *sys.argv])


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=LIMIT, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise AssertionError(f"{command} exited with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def wait_until(condition, what):
    end = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {LIMIT} s")
        time.sleep(0.05)


def enter_network(descriptor):
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, 0) != 0:
        raise OSError(ctypes.get_errno(), "setns")


class Host:
    """A network namespace with a cable to the bridge, and its own /etc/wireguard and /run."""

    def __init__(self, number):
        self.number = number
        self.holder = subprocess.Popen(["unshare", "-n", "-m", "sh", "-c", HOLD], stdout=subprocess.PIPE, text=True)
        if self.holder.stdout.readline() != "ready\n":
            raise AssertionError(f"host {number}: no namespace; see above")
        run("ip", "link", "add", f"cable{number}", "type", "veth", "peer", "name", "eth0", "netns", self.holder.pid)
        run("ip", "link", "set", f"cable{number}", "master", "bridge0", "up")
        self.run("ip", "address", "add", f"{LINK[number]}/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")

    def inside(self, *command):
        return ["nsenter", "-n", "-m", "-t", str(self.holder.pid), *map(str, command)]

    def run(self, *command):
        return run(*self.inside(*command))

    def tunnel(self, *arguments):
        return self.run(RECIPE / "tunnel", *arguments).strip()

    @contextlib.contextmanager
    def sockets(self):
        """Sockets that are made inside it are this host's."""
        with open("/proc/self/ns/net") as home, open(f"/proc/{self.holder.pid}/ns/net") as there:
            enter_network(there.fileno())
            try:
                yield
            finally:
                enter_network(home.fileno())

    def bound(self, protocol, state):
        """The (address, port) of all its sockets of that protocol, in that state of /proc."""
        for family, table in ((socket.AF_INET, protocol), (socket.AF_INET6, f"{protocol}6")):
            for line in pathlib.Path(f"/proc/{self.holder.pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                address, port = fields[1].split(":")
                words = [int(address[at:at + 8], 16) for at in range(0, len(address), 8)]
                if fields[3] == state:
                    yield socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words)), int(port, 16)

    def listens(self):
        """The (address, port) pairs at which others could reach it by TCP."""
        return {(address, port) for address, port in self.bound("tcp", "0A") if not ipaddress.ip_address(address).is_loopback}

    def reaches(self, address, ports, within=LIMIT):
        """Returns the ports that accept a connection from here; ends as soon as all have answered."""
        poll, waiting, found = select.poll(), {}, []
        end = time.monotonic() + within
        with contextlib.ExitStack() as stack:
            with self.sockets():
                for port in ports:
                    one = stack.enter_context(socket.socket())
                    one.setblocking(False)
                    # Closing resets the connection, so that nothing of it is on the link later.
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    one.connect_ex((address, port))
                    waiting[one.fileno()] = one, port
                    poll.register(one, select.POLLOUT)
            while waiting and time.monotonic() < end:
                for descriptor, _ in poll.poll(100):
                    one, port = waiting.pop(descriptor)
                    poll.unregister(descriptor)
                    if one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                        found.append(port)
        return sorted(found)


class Capture:
    """Captures all frames on a host's cable, in both directions."""

    def __init__(self, host):
        every_protocol, receive_buffer_force = 3, 33
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self.socket.setsockopt(socket.SOL_SOCKET, receive_buffer_force, 256 << 20)
        self.socket.bind((f"cable{host.number}", every_protocol))
        self.socket.setblocking(False)

    def frames(self):
        """Ends the capture, which must have lost nothing, and returns the frames."""
        found = []
        with self.socket:
            with contextlib.suppress(BlockingIOError):
                while True:
                    found.append(self.socket.recv(1 << 17))
            sol_packet, packet_statistics = 263, 6
            _, lost = struct.unpack("II", self.socket.getsockopt(sol_packet, packet_statistics, 8))
        if lost:
            raise AssertionError(f"the capture lost {lost} frames")
        return found


def ip_flows(frames):
    """The (protocol, destination port) of the frames that carry IPv4."""
    for frame in frames:
        if frame[12:14] == b"\x08\x00":
            header = 14 + 4 * (frame[14] & 15)
            yield frame[23], int.from_bytes(frame[header + 2:header + 4], "big")


def bytes_from(host):
    """The number of bytes that its cable has carried away from it."""
    counters = re.search(rf"cable{host.number}:(.*)", pathlib.Path("/proc/self/net/dev").read_text())[1]
    return int(counters.split()[0])


def readme(command):
    """The line of README.md that begins with `command`, without its comment."""
    line, = re.findall(rf"^{re.escape(command)}.*?(?= *(?:#|$))", (RECIPE / "README.md").read_text(), re.MULTILINE)
    return line


class Job:
    """A program on both hosts, started by the lines of README.md; without the tunnel, the lines have another interface and address."""

    def __init__(self, program, folder, workers=1, interface="brigade0", master=TUNNEL[0]):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "BRIGADE_TIMEOUT": "60", "BRIGADE_GRACE": "5"}
        self.launchers, self.outputs = [], []
        for host in HOSTS[:2]:
            line = f"{readme('export')}\nexec {BIN}/{readme(f'brigade run -n 8 --nnodes 2 --node-rank {host.number}')}"
            for shown, used in (("-n 8", f"-n {workers}"), ("./train", program), ("brigade0", interface), (TUNNEL[0], master)):
                line = line.replace(shown, used)
            self.outputs.append(pathlib.Path(folder) / f"host{host.number}.log")
            with self.outputs[-1].open("w") as log:
                self.launchers.append(subprocess.Popen(host.inside("bash", "-c", line), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                       cwd=folder, env=environment))

    def end(self):
        for launcher in self.launchers:
            launcher.terminate()
        for launcher in self.launchers:
            try:
                launcher.wait(LIMIT)
            except subprocess.TimeoutExpired:
                launcher.kill()
                launcher.wait()

    def said(self):
        return "".join(f"--- {output.stem}\n{output.read_text()}" for output in self.outputs)

    def runs(self):
        if any(launcher.poll() is not None for launcher in self.launchers):
            raise AssertionError(f"the job has ended\n{self.said()}")
        return True

    def wait(self):
        """Waits until it has ended well."""
        try:
            for launcher in self.launchers:
                launcher.wait(LIMIT)
        finally:
            self.end()
        if any(launcher.returncode for launcher in self.launchers):
            raise AssertionError(f"the job has failed\n{self.said()}")


HOSTS, KEYS = [], []  # public keys


def setUpModule():
    """Hosts 0 and 1 have a tunnel. Host 2 is foreign: it is on the same link and has a key that nobody knows."""
    if WHY_NOT:
        return
    missing = [name for name in ("wg", "wg-quick", "wireguard-go", "nft") if not shutil.which(name)]
    if missing:
        raise AssertionError(f"not installed: {', '.join(missing)}; run scripts/setup --python")
    run("ip", "link", "add", "bridge0", "type", "bridge")
    run("ip", "link", "set", "bridge0", "up")
    HOSTS.extend(map(Host, range(3)))
    KEYS.extend(host.tunnel("key") for host in HOSTS)
    for number, other in ((0, 1), (1, 0)):
        shown = f"10.0.0.{other + 1}"
        line = readme(f"./tunnel up {number}").replace(f"KEY_OF_{shown}", KEYS[other]).replace(shown, LINK[other])
        HOSTS[number].run("bash", "-c", f"cd {RECIPE} && {line}")


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Jobs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())

    @classmethod
    def job(cls, *program, **more):
        job = Job(" ".join(map(str, program)), cls.folder, **more)
        cls.addClassCleanup(job.end)
        return job

    @classmethod
    def start_training(cls, **more):
        """Starts a job that trains until it is ended."""
        before = bytes_from(HOSTS[0])
        job = cls.job(BIN / "brigade", "train", "--hook", "int8", "--evaluate-every", 0, "--steps", 100_000_000, **more)
        wait_until(lambda: job.runs() and bytes_from(HOSTS[0]) > before + 1_000_000, "a megabyte of gradients")

    def places(self):
        """Both hosts, with their addresses in the tunnel and on the link, and their listening ports."""
        for host, inner, outer in zip(HOSTS, TUNNEL, LINK):
            ports = sorted({port for _, port in host.listens()})
            self.assertGreater(len(ports), 0)
            yield host, inner, outer, ports


class AJobInTheTunnel(Jobs):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.start_training()

    def test_nothing_listens_outside_it(self):
        self.assertIn((TUNNEL[0], MASTER_PORT), HOSTS[0].listens())
        for host, inner, _, _ in self.places():
            self.assertEqual({address for address, _ in host.listens()}, {inner})
            self.assertEqual({port for _, port in host.bound("udp", "07")}, {WIREGUARD})

    def test_the_other_host_reaches_its_ports(self):
        for host, inner, _, ports in self.places():
            self.assertEqual(HOSTS[1 - host.number].reaches(inner, ports), ports)

    def test_a_stranger_reaches_no_port_through_a_tunnel_of_its_own(self):
        stranger = HOSTS[2]
        for host, inner, outer, ports in self.places():
            # It takes the other host's address, but lacks that host's key.
            stranger.tunnel("up", 1 - host.number, outer, KEYS[host.number])
            self.assertIn("dev brigade0", stranger.run("ip", "route", "get", inner))
            self.assertEqual(stranger.reaches(inner, ports, SILENCE), [])
            _, received, sent = stranger.run("wg", "show", "brigade0", "transfer").split()
            self.assertGreater(int(sent), 0)
            self.assertEqual(int(received), 0)
            stranger.tunnel("down")
            self.assertNotIn("brigade0", stranger.run("ip", "link") + stranger.run("nft", "list", "tables"))

    def test_a_stranger_reaches_no_port_at_the_links_addresses(self):
        for _, _, outer, ports in self.places():
            self.assertEqual(HOSTS[2].reaches(outer, ports, SILENCE), [])

    def test_a_stranger_reaches_no_port_at_the_tunnels_addresses_past_the_tunnel(self):
        stranger = HOSTS[2]
        for host, inner, outer, ports in self.places():
            stranger.run("ip", "route", "add", inner, "via", outer)
            self.addCleanup(stranger.run, "ip", "route", "delete", inner)
            self.assertEqual(stranger.reaches(inner, ports, SILENCE), [])
            # The rule of brigade0.conf keeps the foreign host out.
            rule = host.run("nft", "list", "table", "inet", "brigade0")
            host.run("nft", "flush", "table", "inet", "brigade0")
            self.addCleanup(host.run, "nft", rule)
            self.assertEqual(stranger.reaches(inner, ports), ports)


class AJobWithoutTheTunnel(Jobs):
    def test_a_stranger_reaches_its_ports(self):
        self.start_training(interface="eth0", master=LINK[0])
        for _, _, outer, ports in self.places():
            self.assertEqual(HOSTS[2].reaches(outer, ports), ports)


class Training(Jobs):
    def frames(self, **more):
        """All frames on the link while a job trains whose gradients are TEXT."""
        capture = Capture(HOSTS[0])
        self.job(BIN / "text_gradient", f"'{TEXT}'", **more).wait()
        return capture.frames()

    def test_two_hosts_train_with_int8_over_the_tunnel(self):
        result = pathlib.Path(self.folder) / "result.json"
        self.job(BIN / "brigade", "train", "--hook", "int8", "--steps", 60, "--json", result, workers=2).wait()
        fingerprints = json.loads(result.read_text())["fingerprints"]
        self.assertEqual(len(fingerprints), 4)
        self.assertEqual(len(set(fingerprints)), 1)

    def test_gradients_that_are_read_on_the_link_are_not_read_with_the_tunnel(self):
        plain = self.frames(interface="eth0", master=LINK[0])
        self.assertGreater(sum(frame.count(TEXT.encode()) for frame in plain), 1000)
        tunnelled = self.frames()
        self.assertEqual(sum(frame.count(TEXT.encode()) for frame in tunnelled), 0)
        self.assertGreater(sum(map(len, tunnelled)), 0.9 * sum(map(len, plain)))
        self.assertEqual(set(ip_flows(tunnelled)), {(socket.IPPROTO_UDP, WIREGUARD)})


if __name__ == "__main__":
    if not WHY_NOT:
        enter_namespaces()
    unittest.main(argv=sys.argv[:1], verbosity=2)
