"""What a process needs and does not get: descriptors, memory, room on the disk, somebody who reads what it writes."""
from actions import (at_step, empty_disk, fill_disk, limit, once_over, small_disk, start, with_args, with_calls, with_descriptors,
                     with_stdout)
from faults import CPP, PYTHON, Ends, EndsOrTrains, Fault

ROWS = [
    Fault("at most {} descriptors", (with_descriptors, start), EndsOrTrains(Ends(launcher=(None, "."), rank0=(None, "."), within=14)),
          each=tuple(range(18, 41, 2)) + tuple(range(8, 18, 2)), jobs=("run", "train", "bare"), limit=8, quick=("run",)),
    Fault("at most {} descriptors in Python", (with_descriptors, start),
          EndsOrTrains(Ends(launcher=(None, "."), rank0=(None, "."), within=14)), each=(18, 24, 30, 36), jobs=PYTHON, limit=8),
    Fault("rank 1 gets no more descriptors", (start, at_step(8), limit("NOFILE", "rank 1", 3)),
          Ends(launcher=(1, "Too many open files"), rank0=(None, "Too many open files|peer"), rank1=(1, "Too many open files"))),
    Fault("rank 1 gets no more memory", (start, at_step(8), limit("AS", "rank 1", 0)),
          EndsOrTrains(Ends(launcher=(None, "rank 1")))),
    Fault("rank 1 asks for more memory than there is", (with_args("--fault", "memory@1"), start),
          Ends(launcher=(1, "rank 1 failed")), jobs=PYTHON),
    Fault("rank 0 may write files of 100 bytes", (start, at_step(8), limit("FSIZE", "rank 0", 100)),
          Ends(launcher=(None, "File too large|SIGXFSZ"), rank0=(None, ""), rank1=(None, "")), quick=("run",)),
    Fault("the disk is full", (small_disk(400), start, at_step(8), fill_disk, once_over, empty_disk),
          Ends(launcher=(1, "No space left"), rank0=(1, "No space left"), rank1=(1, "No space left")), needs=("root",),
          quick=("train",)),
    Fault("the disk becomes read-only", (with_calls("call=open,path={folder}/checkpoint/step*,nth=9+,errno=EROFS"), start),
          Ends(launcher=(1, "Read-only"), rank0=(1, "Read-only"), rank1=(1, "Read-only")), limit=20, needs=("shim",)),
    Fault("stdout is full", (with_stdout("full"), start),
          Ends(launcher=(None, "No space left|stdout|standard output"), rank0=(None, "No space left|stdout|standard output"), rank1=None, resumes=False, within=20), jobs=CPP, limit=20),
    Fault("stdout and stderr are full", (with_stdout("and stderr full"), start), Ends(resumes=False, within=20),
          jobs=("run", "train"), limit=20),
    Fault("stdout is closed", (with_stdout("closed"), start), EndsOrTrains(Ends(within=20)), jobs=CPP, limit=20),
    Fault("nobody reads stdout any more", (with_stdout("without a reader"), start), EndsOrTrains(Ends(within=20)), jobs=CPP, limit=20),
]
