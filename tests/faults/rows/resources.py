"""A process lacks descriptors, memory, room on the disk, or a reader of its output."""
from actions import (as_nobody, at_step, empty_disk, fill_disk, limit, locked_folder, once_over, small_disk, start, with_args,
                     with_calls, with_descriptors, with_run_options, with_stdout)
from faults import CPP, PYTHON, Ends, EndsOrTrains, Fault, TrainsOn

_NO_DESCRIPTORS = "descriptor|open files|does not answer|cannot reach the store|lost the store"
_DENIED = "Permission denied"

ROWS = [
    Fault("at most {} descriptors", (with_descriptors, start),
          Ends(launcher=(1, _NO_DESCRIPTORS), rank0=((1, 2), _NO_DESCRIPTORS), rank1=((1, 2), _NO_DESCRIPTORS), within=14),
          each=tuple(range(18, 25, 2)) + tuple(range(8, 18, 2)), jobs=("run", "train", "bare"), limit=8, quick=("run",)),
    # The number needed depends on the hook: so many collectives in a row need so many connections.
    Fault("at most {} descriptors, which may be enough", (with_descriptors, start),
          EndsOrTrains(Ends(launcher=(1, _NO_DESCRIPTORS), rank0=((1, 2), _NO_DESCRIPTORS), rank1=((1, 2), _NO_DESCRIPTORS), within=14)),
          each=tuple(range(26, 41, 2)), jobs=("run", "train", "bare"), limit=8),
    Fault("at most {} descriptors, which is enough", (with_descriptors, start), TrainsOn(), each=(80,), jobs=("run", "train", "bare"),
          limit=20),
    # The number that Python and torch open before the ranks connect differs from version to version.
    Fault("at most {} descriptors in Python", (with_descriptors, start),
          EndsOrTrains(Ends(launcher=(None, "."), rank0=(None, "."), within=14)), each=(18, 24, 30, 36), jobs=PYTHON, limit=8),
    Fault("rank 1 gets no more descriptors", (start, at_step(8), limit("NOFILE", "rank 1", 3)),
          Ends(launcher=(1, "Too many open files"), rank0=(None, "Too many open files|peer"), rank1=(1, "Too many open files"))),
    Fault("rank 1 gets no more memory", (start, at_step(8), limit("AS", "rank 1", 0)),
          # It may already have all the memory that it needs.
          EndsOrTrains(Ends(launcher=((1, 134), "rank 1( failed|: )(.|\n)*(bad_alloc|memory)|bad_alloc(.|\n)*rank 1 failed: signal SIGABRT"),
                            rank0=(None, "peer|rank 1|imed out"), rank1=(None, "bad_alloc|memory")))),
    Fault("rank 1 asks for more memory than there is", (with_args("--fault", "memory@1"), start),
          Ends(launcher=(1, "rank 1 failed")), jobs=PYTHON),
    Fault("rank 0 may write files of 100 bytes", (start, at_step(8), limit("FSIZE", "rank 0", 100)),
          Ends(launcher=(None, "File too large|SIGXFSZ"), rank0=(None, ""), rank1=(None, "")), quick=("run",)),
    Fault("the disk is full", (small_disk(400), start, at_step(8), fill_disk, once_over, empty_disk),
          Ends(launcher=(1, "No space left"), rank0=(1, "No space left"), rank1=(1, "No space left")), needs=("root",),
          quick=("train",)),
    Fault("the disk becomes read-only", (with_calls("call=open,path={folder}/checkpoint/step*,nth=9+,errno=EROFS"), start),
          Ends(launcher=(1, "Read-only"), rank0=(1, "Read-only"), rank1=(1, "Read-only")), limit=20, needs=("shim",)),
    Fault("the checkpoint's folder may not be written", (as_nobody, locked_folder("checkpoint"), start),
          Ends(launcher=((1, 2), _DENIED), rank0=((1, 2), _DENIED), rank1=(None, ""), resumes=False), jobs=CPP, limit=20,
          needs=("root",)),
    Fault("the folder of the report may not be written", (as_nobody, locked_folder("report"), with_args("--out", "report"), start),
          Ends(launcher=(2, f"--out: .*{_DENIED}"), rank0=(2, f"--out: .*{_DENIED}"), rank1=(None, ""), resumes=False),
          jobs=("train", "bare"), limit=20, needs=("root",)),
    Fault("the folder of the logs may not be written",
          (as_nobody, locked_folder("logs"), with_run_options("--log-dir", "logs"), start),
          Ends(launcher=((1, 2), f"logs.*{_DENIED}"), resumes=False), jobs=("run",), limit=20, needs=("root",)),
    Fault("stdout is full", (with_stdout("full"), start),
          Ends(launcher=(None, "No space left|stdout|standard output"), rank0=(None, "No space left|stdout|standard output"), rank1=None, resumes=False, within=20), jobs=CPP, limit=20),
    Fault("stdout and stderr are full", (with_stdout("and stderr full"), start), Ends(resumes=False, within=20),
          jobs=("run", "train"), limit=20),
    # Rank 1 prints nothing.
    Fault("stdout is closed", (with_stdout("closed"), start),
          Ends(launcher=(1, "standard output"), rank0=(1, "standard output"), rank1=(0, ""), within=20), jobs=CPP, limit=20),
    Fault("nobody reads stdout any more", (with_stdout("without a reader"), start),
          Ends(launcher=((1, 141), "SIGPIPE|standard output"), rank0=(1, "standard output"), rank1=(0, ""), within=20), jobs=CPP, limit=20),
]
