"""The cable between two hosts (network namespaces) is cut, one-way, slow or lossy, and repaired in time or not."""
from actions import at_step, deaf, hears_again, on_host, pause, send, start, with_variables
from faults import HOSTS, Ends, Fault, TrainsOn

_LOST = Ends(within=12)  # T + 2 s to notice; then the launchers settle, or wait for each other in vain


def _loss(percent):
    return [on_host(host, command) for host in (0, 1)
            for command in ("nft add table ip faults", "nft add chain ip faults in {type filter hook input priority 0;}",
                            f"nft add rule ip faults in numgen random mod 100 < {percent} drop")]


ROWS = [
    Fault("the cable is pulled", (start, at_step(8), on_host(0, "ip link set brg0 down")), _LOST, jobs=HOSTS, needs=("root",)),
    Fault("the cable is pulled for a second", (start, at_step(8), on_host(1, "ip link set brg0 down"), pause(1),
          on_host(1, "ip link set brg0 up")), TrainsOn(), jobs=HOSTS, needs=("root",), quick=("hosts",)),
    Fault("the cable is gone", (start, at_step(8), on_host(0, "ip link del brg0")), _LOST,
          jobs=("hosts",), needs=("root",)),
    Fault("host {} is not heard any more", (start, at_step(8), lambda job, value: deaf(value)(job, value)), _LOST, jobs=HOSTS, each=(0, 1),
          needs=("root",)),
    Fault("host {} is not heard for a second", (start, at_step(8), lambda job, value: deaf(value)(job, value), pause(1),
          lambda job, value: hears_again(value)(job, value)), TrainsOn(), jobs=HOSTS, each=(0, 1), needs=("root",)),
    Fault("host 1 loses its address", (start, at_step(8), on_host(1, "ip addr del 10.77.0.2/24 dev brg0")),
          _LOST, jobs=("hosts",), needs=("root",)),
    Fault("host 1 loses its address for a second", (start, at_step(8), on_host(1, "ip addr del 10.77.0.2/24 dev brg0"), pause(1),
          on_host(1, "ip addr add 10.77.0.2/24 dev brg0")), TrainsOn(), jobs=("hosts",), needs=("root",)),
    Fault("a link of 1 Mbit/s", (start, at_step(8), on_host(0, "tc qdisc add dev brg0 root tbf rate 1mbit burst 5kb latency 50ms")),
          TrainsOn(within=60), jobs=("hosts",), needs=("root",)),
    Fault("packets become smaller in a step", (start, at_step(8), on_host(0, "ip link set brg0 mtu 600"),
          on_host(1, "ip link set brg0 mtu 600")), TrainsOn(), jobs=("hosts",), needs=("root",)),
    Fault("1 of 100 packets is lost", (start, at_step(8), *_loss(1)), TrainsOn(within=60), jobs=("hosts",), needs=("root", "nft")),
    # Two lost requests for a connection take the kernel 3 s: more time than the usual limit.
    Fault("10 of 100 packets are lost", (with_variables(BRIGADE_TIMEOUT="60"), start, at_step(8), *_loss(10)), TrainsOn(within=180),
          jobs=("hosts",), needs=("root", "nft")),
    Fault("the launcher of host {} gets SIGKILL", (start, at_step(8), lambda job, value: send("KILL", f"launcher {value}")(job, value)),
          Ends(within=10), jobs=HOSTS, each=(0, 1), needs=("root",)),
    Fault("the rank of host {} gets SIGKILL", (start, at_step(8), lambda job, value: send("KILL", f"rank {value}")(job, value)),
          lambda value: Ends(launcher=(137, f"rank {value} failed: signal SIGKILL"), within=8), jobs=HOSTS, each=(0, 1), needs=("root",)),
    Fault("the watch of host {} gets SIGKILL", (start, at_step(8), lambda job, value: send("KILL", f"watch {value}")(job, value)),
          TrainsOn(), jobs=("hosts",), each=(0, 1), needs=("root",)),
    Fault("the launcher of host 1 is stopped for a second", (start, at_step(8), send("STOP", "launcher 1"), pause(1),
          send("CONT", "launcher 1")), TrainsOn(), jobs=("hosts",), needs=("root",)),
    # Training may be over before the loss is noticed; then the other launcher has ended well.
    Fault("the launcher of host {} is stopped for longer than the limit", (start, at_step(8),
          lambda job, value: send("STOP", f"launcher {value}")(job, value), pause(8),
          lambda job, value: send("CONT", f"launcher {value}")(job, value)), Ends(launcher=None, within=12), jobs=("hosts",), each=(0, 1),
          needs=("root",)),
    Fault("launcher and rank of host {} are stopped for longer than the limit", (start, at_step(8),
          lambda job, value: send("STOP", f"rank {value}")(job, value), lambda job, value: send("STOP", f"launcher {value}")(job, value), pause(8),
          lambda job, value: send("CONT", f"launcher {value}")(job, value)), Ends(within=12), jobs=("hosts",), each=(0, 1),
          needs=("root",)),
]
