"""Hooks that fail, and ranks that act differently."""
from actions import start, with_args, with_args_of
from faults import CPP, PYTHON, Ends, Fault


def _differs(*words):
    return (with_args_of(1, *words), start)


def _told(text):
    """Both ranks must get the error before a gradient has moved."""
    return Ends(rank0=((1, 2), text), rank1=((1, 2), text), resumes=False)


def _does_not_fit():
    return Ends(launcher=(1, "the hook gave back .*, but the bucket has"), resumes=False)


ROWS = [
    Fault("rank 1 has another hook", (with_args("--hook", "fp16"), with_args_of(1, "--hook", "bf16"), start), _told("hook"), jobs=("bare",), limit=20, quick=("bare",)),
    Fault("rank 1 has another option of its hook", (with_args("--hook", "powersgd:rank=2,start=2"),
          with_args_of(1, "--hook", "powersgd:rank=3,start=2"), start), _told("hook"), jobs=("bare",), limit=20),
    Fault("rank 1 has another width", _differs("--width", "40"), _told("shape|parameter|model"), jobs=("bare",), limit=20),
    Fault("rank 1 has another number of layers", _differs("--layers", "3"), _told("parameter|model"), jobs=("bare",), limit=20),
    Fault("rank 1 has other buckets", _differs("--bucket-mb", "1"), _told("bucket"), jobs=("bare",), limit=20),
    Fault("the loss becomes NaN", (with_args("--lr", "1e30", "--optimizer", "sgd:lr=1e30"), start),
          Ends(launcher=(1, "loss is"), rank0=(1, "loss is"), rank1=(1, ""), resumes=False), jobs=CPP, limit=20),
    Fault("rank 1 has float64, in Python", (with_args("--fault", "float64@1"), start), Ends(launcher=(1, "float64|double|dtype|differ"),
          rank0=(1, ""), rank1=(1, ""), resumes=False), jobs=PYTHON, limit=8),
    Fault("rank 1 has another width, in Python", (with_args("--fault", "width@1"), start), Ends(launcher=(1, "shape|differ|size|parameter"),
          rank0=(1, ""), rank1=(1, ""), resumes=False), jobs=PYTHON, limit=8),
    Fault("rank 1 has another number of layers, in Python", (with_args("--fault", "layers@1"), start),
          Ends(launcher=(1, "parameter|differ|shape"), resumes=False), jobs=PYTHON, limit=8),
    Fault("rank 1 has another hook, in Python", (with_args("--fault", "other_hook@1", "--hook", "fp16"), start),
          Ends(launcher=(1, "hook"), rank0=(1, "hook"), rank1=(1, "hook"), resumes=False), jobs=PYTHON, limit=8),
    Fault("rank 1 has no hook, in Python", (with_args("--fault", "no_hook@1"), start), Ends(resumes=False, within=14),
          jobs=PYTHON, limit=8),
    Fault("a hook throws on rank 1", (with_args("--fault", "throws@1"), start), Ends(launcher=(1, "."), resumes=False),
          jobs=PYTHON, limit=8),
    Fault("a hook throws on all ranks", (with_args("--fault", "throws"), start), Ends(launcher=(1, "the hook's own words"),
          rank0=(1, "the hook's own words"), rank1=(1, "the hook's own words"), resumes=False), jobs=PYTHON, limit=8),
    Fault("a hook's future never completes on rank 1", (with_args("--fault", "never@1"), start),
          Ends(resumes=False, within=14), jobs=PYTHON, limit=8),
    Fault("a hook's future never completes on any rank", (with_args("--fault", "never"), start), Ends(resumes=False, within=14),
          jobs=PYTHON, limit=8, quick=("py-run",)),
    Fault("a hook returns the wrong size", (with_args("--fault", "wrong_size"), start), _does_not_fit(), jobs=("py-run",), limit=8),
    Fault("a hook returns the wrong dtype", (with_args("--fault", "wrong_dtype"), start), _does_not_fit(), jobs=("py-run",), limit=8),
]
