"""The rendezvous without other ranks, with the wrong ones, with foreign connections, or with wrong variables."""
from actions import (at_step, impostor, reset_connections, start, start_more, start_only, stranger, with_run_options, with_variables,
                     with_variables_of)
from faults import CPP, Ends, EndsOrTrains, Fault, TrainsOn, TrainsWithout, refuses

_VISITORS = ("garbage", "text", "zeros", "huge length", "a half message", "half-open", "slowloris", "reset", "many connections",
             "keys set", "keys deleted")
_BARE = ("bare",)
_WRONG = ("", "1x", "-1", "9223372036854775808", "1e3", " ")

ROWS = [
    Fault("rank 1 does not come", (start_only(0),), Ends(rank0=(1, "rank 1")), jobs=_BARE, quick=_BARE),
    Fault("rank 0 does not come", (start_only(1),), Ends(rank1=(1, "127.0.0.1")), jobs=_BARE),
    Fault("rank 1 does not come, in Python", (start_only(0),), Ends(), jobs=("py-bare",)),
    Fault("rank 1 comes twice", (start, start_more("rank 1 once more", 1)),
          TrainsWithout("rank 1 came twice"), jobs=_BARE, limit=20),
    Fault("a rank 2 of 2", (with_variables_of(1, RANK="2"), start), Ends(rank0=(1, "rank 1"), rank1=(2, "rank 2 of a world of 2")),
          jobs=_BARE, quick=_BARE),
    Fault("rank 1 takes the world for 3", (with_variables_of(1, WORLD_SIZE="3"), start), Ends(resumes=True), jobs=_BARE),
    Fault("the master port is taken by a {} server, for rank 0", (impostor(""), start_only(0)), Ends(rank0=(1, "29500")), jobs=_BARE,
          each=("mute", "garbage", "closing")),
    Fault("rank 1 meets a {} server", (impostor(""), start_only(1)), Ends(rank1=(1, "127.0.0.1:29500")), jobs=_BARE,
          each=("mute", "garbage", "closing"), quick=_BARE),
    Fault("the launcher's port is taken", (impostor("mute"), with_run_options("--master-port", "29500"), start),
          Ends(launcher=((1, 2), "29500")), jobs=("run", "py-run")),
    Fault("a host name that nobody knows", (with_variables(MASTER_ADDR="no-such-host.invalid"),
          with_variables_of(0, MASTER_ADDR="no-such-host.invalid"), with_variables_of(1, MASTER_ADDR="no-such-host.invalid"), start),
          Ends(rank0=((1, 2), "no-such-host.invalid"), rank1=((1, 2), "no-such-host.invalid"), within=8), jobs=_BARE),
    Fault("RANK is '{}'", (with_variables_of(1, RANK="{}"), start_only(1)), Ends(rank1=(2, "RANK")), jobs=_BARE, each=_WRONG,
          quick=_BARE),
    Fault("WORLD_SIZE is '{}'", (with_variables_of(1, WORLD_SIZE="{}"), start_only(1)), Ends(rank1=(2, "WORLD_SIZE")), jobs=_BARE,
          each=_WRONG + ("0",)),
    Fault("MASTER_PORT is '{}'", (with_variables_of(1, MASTER_PORT="{}"), start_only(1)), Ends(rank1=(2, "MASTER_PORT")), jobs=_BARE,
          each=_WRONG + ("65536",)),
    Fault("BRIGADE_TIMEOUT is '{}'", (with_variables(BRIGADE_TIMEOUT="{}"), start), refuses("BRIGADE_TIMEOUT"), jobs=CPP,
          each=_WRONG[:3] + ("nan",)),
    Fault("all connections of the job are reset", (start, at_step(8), reset_connections), Ends(within=6), needs=("root",)),
    Fault("a stranger at the store: {}", (start, at_step(8), stranger("", "store")), TrainsOn(), jobs=("run", "bare", "py-run"),
          each=_VISITORS, quick=("run",)),
    # The keys may be needed, or no longer needed.
    Fault("a stranger at the store who knows its protocol: {}", (start, at_step(8), stranger("", "store")), EndsOrTrains(Ends()),
          jobs=("run", "bare", "py-bare"), each=("every key deleted", "every key overwritten")),
    Fault("a stranger at rank 1's ports: {}", (start, at_step(8), stranger("", "rank 1")), TrainsOn(), jobs=("run", "bare"),
          each=_VISITORS[:9], quick=("bare",)),
]
