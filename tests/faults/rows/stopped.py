"""Processes that stop for longer and for less than the time limit T of 3 s."""
from actions import as_soon_as_there, at_step, pause, send, start
from faults import LAUNCHED, Ends, Fault, TrainsOn

_LONG = 6  # T + 2 s, and the launcher's time to end the stopped one

ROWS = [
    Fault("rank {} is stopped for good in a step", (start, at_step(8), lambda job, value: send("STOP", f"rank {value}")(job, value)),
          lambda value: Ends(launcher=(None, f"rank {value}(, which stood still| of 2 did not come.*stopped|: stopped| came, but did not go on)"),
                             rank0=(None, ""), rank1=(None, ""), within=_LONG + 2),
          jobs=LAUNCHED, each=("1", "0")),
    Fault("rank 1 is stopped for good in a step, without a launcher",
          (start, at_step(8), send("STOP", "rank 1"), pause(6), send("KILL", "rank 1")),
          Ends(rank0=(None, "heard of rank 1|rank 1 of 2 did not come|rank 1 came, but|rank 1 is gone"), rank1=(-9, "")), jobs=("bare", "py-bare"), quick=("bare",)),
    Fault("rank 0, which has the store, is stopped for good, without a launcher",
          (start, at_step(8), send("STOP", "rank 0"), pause(6), send("KILL", "rank 0")),
          Ends(rank0=(-9, ""), rank1=(None, "rank 0|within|timed out|Timed out|store")), jobs=("bare", "py-bare")),
    Fault("rank 1 is stopped for a second", (start, at_step(8), send("STOP", "rank 1"), pause(1), send("CONT", "rank 1")), TrainsOn(),
          quick=("run",)),
    Fault("all ranks are stopped for a second",
          (start, at_step(8), send("STOP", "rank 0", "rank 1"), pause(1), send("CONT", "rank 0", "rank 1")), TrainsOn()),
    Fault("the launcher is stopped for a second", (start, at_step(8), send("STOP", "launcher"), pause(1), send("CONT", "launcher")),
          TrainsOn(), jobs=LAUNCHED),
    Fault("the launcher is stopped for longer than the limit",
          (start, at_step(8), send("STOP", "launcher"), pause(7), send("CONT", "launcher")),
          Ends(launcher=(1, "does not answer")), jobs=LAUNCHED),
    Fault("brigade-watch is stopped for good", (start, at_step(8), send("STOP", "watch")), TrainsOn(), jobs=LAUNCHED,
          quick=("train",)),
    Fault("brigade-watch is stopped, and then a rank killed",
          (start, at_step(8), send("STOP", "watch"), send("KILL", "rank 1")), Ends(launcher=(137, "rank 1.*SIGKILL|SIGKILL")),
          jobs=LAUNCHED),
    Fault("rank 1 is stopped for good before the ranks have met", (start, as_soon_as_there("rank 1"), send("STOP", "rank 1")),
          Ends(launcher=(None, "rank 1"), within=_LONG + 3), jobs=LAUNCHED),
    Fault("rank 1 is stopped before the ranks have met, without a launcher",
          (start, as_soon_as_there("rank 1"), send("STOP", "rank 1"), pause(7), send("KILL", "rank 1")),
          Ends(rank0=(None, "rank 1|within|timed out|Timed out"), rank1=(-9, "")), jobs=("bare", "py-bare")),
    Fault("rank 0, which has the store, is stopped before the ranks have met, without a launcher",
          (start, as_soon_as_there("rank 1"), send("STOP", "rank 0"), pause(7), send("KILL", "rank 0")),
          Ends(rank0=(-9, ""), rank1=(None, "127.0.0.1|within|timed out|Timed out")), jobs=("bare", "py-bare")),
    Fault("rank 1 is stopped for a second before the ranks have met",
          (start, as_soon_as_there("rank 1"), send("STOP", "rank 1"), pause(1), send("CONT", "rank 1")), TrainsOn()),
]
