"""Processes that end: every process of a job, in every way."""
from actions import as_soon_as_there, at_step, pause, send, start, with_args, with_calls, with_run_options
from faults import LAUNCHED, PYTHON, Ends, Fault, TrainsOn

_CODES = {"KILL": 9, "SEGV": 11, "ABRT": 6, "BUS": 7, "TERM": 15, "INT": 2, "HUP": 1, "QUIT": 3}


def _of_rank(rank):
    """The launcher names rank and signal; without one the other rank says that its peer has gone."""
    def see(name):
        code = _CODES[name]
        echo = (None, f"peer|connection|Connection|store|rank {rank}|did not")
        own = (-code, "")
        return Ends(launcher=(128 + code, rf"rank {rank} failed: signal SIG{name}|worker {rank}.*SIG{name}"),
                    rank0=echo if rank else own, rank1=own if rank else echo)
    return see


def _of_launcher(name):
    """It cannot report anything, but the workers must still end."""
    return Ends(launcher=(-_CODES[name], ""))


ROWS = [
    Fault("rank 1 gets SIG{} in a step", (start, at_step(8), send("", "rank 1")), _of_rank(1),
          each=("KILL", "SEGV", "ABRT", "BUS", "TERM"), quick=("bare",)),
    Fault("rank 0 gets SIG{} in a step", (start, at_step(8), send("", "rank 0")), _of_rank(0),
          each=("KILL", "SEGV", "ABRT"), quick=("run", "bare")),
    Fault("all ranks get SIGKILL at once", (start, at_step(8), send("KILL", "rank 0", "rank 1")),
          Ends(launcher=(137, "SIGKILL"), rank0=(-9, ""), rank1=(-9, "")), quick=("train",)),
    Fault("rank {} gets SIGKILL before the ranks have met",
          (start, as_soon_as_there("rank 1"), lambda job, value: send("KILL", f"rank {value}")(job, value)),
          lambda value: Ends(launcher=(137, f"rank {value} failed: signal SIGKILL|SIGKILL")), each=("0", "1"),
          quick=("bare",)),
    Fault("the launcher gets SIG{}", (start, at_step(8), send("", "launcher")), _of_launcher, jobs=LAUNCHED,
          each=("KILL", "SEGV", "ABRT", "BUS"), quick=("run",)),
    Fault("the launcher gets SIG{} and ends its workers", (start, at_step(8), send("", "launcher")),
          lambda name: Ends(launcher=(128 + _CODES[name], f"interrupted by SIG{name}|SIG{name}")), jobs=LAUNCHED,
          each=("TERM", "INT", "HUP", "QUIT"), quick=("run",)),
    Fault("the launcher gets SIGKILL before the ranks have met", (start, as_soon_as_there("rank 1"), send("KILL", "launcher")),
          Ends(launcher=(-9, "")), jobs=LAUNCHED),
    Fault("launcher and ranks get SIGKILL at once", (start, at_step(8), send("KILL", "launcher", "rank 0", "rank 1")),
          Ends(launcher=(-9, "")), jobs=LAUNCHED),
    Fault("brigade-watch gets SIG{}", (start, at_step(8), send("", "watch")), TrainsOn(), jobs=LAUNCHED,
          each=("KILL", "SEGV", "ABRT", "TERM"), quick=("run",)),
    Fault("brigade-watch gets SIGKILL, then a rank", (start, at_step(8), send("KILL", "watch"), pause(0.1), send("KILL", "rank 1")),
          _of_rank(1)("KILL"), jobs=LAUNCHED),
    Fault("rank 1 gets SIGKILL, and the job may restart",
          (with_run_options("--max-restarts", "2"), start, at_step(8), send("KILL", "rank 1")), TrainsOn(), jobs=("run", "py-run"),
          quick=("run",)),
    Fault("rank 0 gets SIGKILL twice, and the job may restart",
          (with_run_options("--max-restarts", "2"), start, at_step(8), send("KILL", "rank 0"), at_step(80), send("KILL", "rank 0")),
          TrainsOn(), jobs=("run", "py-run")),
    Fault("rank 1 dies in its 5th {} of a checkpoint",
          (with_calls("call={},path={folder}/checkpoint/*,rank=1,nth=5,signal=9,once={folder}/once"), start),
          _of_rank(1)("KILL"), each=("open", "write", "fsync", "rename"), limit=8, needs=("shim",), quick=("run",)),
    Fault("rank 0 dies in its 9th {} of a checkpoint",
          (with_calls("call={},path={folder}/checkpoint/*,rank=0,nth=9,signal=9,once={folder}/once"), start),
          _of_rank(0)("KILL"), each=("open", "write", "fsync", "rename", "unlink"), limit=8, needs=("shim",)),
    Fault("rank 0 dies as it renames the manifest",
          (with_calls("call=rename,path=*manifest*,rank=0,nth=3,signal=9,once={folder}/once"), start), _of_rank(0)("KILL"),
          limit=8, needs=("shim",), quick=("bare",)),
    Fault("a rank leaves with exit code 7", (with_args("--fault", "exit7@1"), start),
          Ends(launcher=(7, "rank 1 failed: exit code 7"), rank0=(None, "peer|Connection|connection"), rank1=(7, "")),
          jobs=PYTHON, limit=8),
    Fault("a rank throws", (with_args("--fault", "raises@1"), start),
          Ends(launcher=(1, "rank 1 failed: exit code 1"), rank0=(None, ""), rank1=(1, "the worker's own words")), jobs=PYTHON, limit=8),
]
