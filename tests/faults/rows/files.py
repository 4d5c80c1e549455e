"""Files that are damaged, of another kind, slow or failing, in reading and in writing."""
from actions import idx_files, put, saved, start, with_args, with_calls
from faults import Ends, Fault, TrainsOn, refuses

_KINDS = ("FIFO", "/dev/zero", "folder", "dangling link", "link to itself", "socket")
_DAMAGES = ("empty file", "half of it", "byte changed", "garbage", "huge header")
_TEXT = b"the quick brown fox jumps over the lazy dog. " * 200


def _data(name, kind, pattern, *before):
    return Fault(f"{name} is a {{}}", (*before, put(pattern, "{}"), with_args("--data", kind), start),
                 refuses(f"--data: .*{pattern}", code=(1, 2)), jobs=("train", "bare"), each=_KINDS, limit=20)


def _checkpoint(name, pattern, each):
    return Fault(f"the checkpoint's {name} is {{}}", (saved, put(pattern, "{}"), start),
                 Ends(launcher=((1, 2), "checkpoint"), rank0=((1, 2), "checkpoint"), rank1=((1, 2), "checkpoint"), resumes=False),
                 jobs=("run", "bare", "py-run"), each=each, limit=20,
                 quick=("run",) if name == "manifest" else ())


def _write(what, rank, path, name):
    """Every rank gets the reason of the first that failed."""
    return Fault(f"{{}} of {name} fails with {what}",
                 (with_calls(f"call={{}},path={path},rank={rank},nth=3,errno={what}"), start),
                 Ends(launcher=(1, "checkpoint"), rank0=(1, "checkpoint"), rank1=(1, "checkpoint")),
                 each=("open", "write", "fsync", "rename"), jobs=("run", "bare", "py-bare"), limit=20, needs=("shim",), quick=("bare",))


# The others do not wait for ever, and the previous checkpoint can still be loaded.
_SLOW = Ends(launcher=(1, "committing|checkpoint"), rank0=(1, "committing|checkpoint"), rank1=(1, "committing|checkpoint"), within=15)

ROWS = [
    _data("a text", "text:text", "text"),
    _data("an IDX file of images", "idx:idx", "idx/train-images-idx3-ubyte", idx_files),
    _data("an IDX file of labels", "idx:idx", "idx/train-labels-idx1-ubyte", idx_files),
    Fault("a text is a link to a text", (put("text", "link", _TEXT), with_args("--data", "text:text", "--model", "transformer",
          "--context", "8"), start), TrainsOn(same=False), jobs=("train",), limit=20),
    Fault("a text is {}", (put("text", "{}", _TEXT), with_args("--data", "text:text"), start), refuses("--data", code=(1, 2)),
          jobs=("train",), each=("empty file", "nothing")),
    Fault("reading a text fails with {}", (put("text", "file", _TEXT * 8),
          with_calls("call=read,path={folder}/text,short=400;call=read,path={folder}/text,nth=2+,errno={}"), with_args("--data", "text:text", "--model", "transformer"), start),
          refuses("--data|text", code=(1, 2)), jobs=("train", "bare"), each=("EIO", "ENOMEM"), limit=20, needs=("shim",)),
    _checkpoint("manifest", "checkpoint/manifest.safetensors", _KINDS + _DAMAGES),
    _checkpoint("shared file", "checkpoint/*.shared.safetensors", _KINDS + _DAMAGES + ("nothing",)),
    _checkpoint("file of rank 1", "checkpoint/*.rank-1.safetensors", _KINDS + _DAMAGES + ("nothing",)),
    Fault("the checkpoint's files are links to files", (saved, put("checkpoint/*.shared.safetensors", "link"), start), TrainsOn(),
          jobs=("run", "py-run"), limit=20),
    Fault("reading a checkpoint fails with {} at rank 1", (saved, with_calls("call=read,path=*.safetensors,rank=1,nth=2+,errno={}"), start),
          Ends(launcher=(1, "checkpoint"), rank0=(1, "checkpoint"), rank1=(1, "checkpoint")), each=("EIO", "ENOMEM"),
          jobs=("run", "bare", "py-run"), limit=20, needs=("shim",), quick=("run",)),
    Fault("reads of a checkpoint give 7 bytes at a time", (saved, with_calls("call=read,path=*.safetensors,short=7"), start), TrainsOn(),
          jobs=("run", "bare", "py-run"), limit=20, needs=("shim",)),
    Fault("writes of a checkpoint take 7 bytes at a time",
          (with_calls("call=write,path={folder}/checkpoint/*,nth=1,short=7"), start), TrainsOn(), jobs=("run", "bare", "py-run"), limit=20,
          needs=("shim",)),
    _write("EIO", 0, "{folder}/checkpoint/*shared*", "the shared file"),
    _write("ENOSPC", 1, "{folder}/checkpoint/*rank-1*", "the file of rank 1"),
    _write("EIO", 0, "{folder}/checkpoint/*manifest*", "the manifest"),
    Fault("the {} of the manifest takes longer than the limit",
          (with_calls("call={},path={folder}/checkpoint/*manifest*,rank=0,nth=3,delay=6000,once={folder}/once"), start),
          _SLOW, each=("rename", "fsync", "write"), jobs=("run", "bare", "py-bare"), needs=("shim",),
          quick=("bare",)),
    Fault("the {} of rank 1's file takes longer than the limit",
          (with_calls("call={},path={folder}/checkpoint/*rank-1*,rank=1,nth=3,delay=6000,once={folder}/once"), start),
          _SLOW, each=("rename", "fsync", "write"), jobs=("run", "bare", "py-bare"), needs=("shim",)),
    Fault("the {} of the manifest takes a second",
          (with_calls("call={},path={folder}/checkpoint/*manifest*,rank=0,nth=3,delay=1000,once={folder}/once"), start),
          TrainsOn(), each=("rename", "fsync"), jobs=("run", "py-bare"), needs=("shim",)),
    Fault("unlinking an old checkpoint fails with EIO",
          (with_calls("call=unlink,path={folder}/checkpoint/*,nth=1+,errno=EIO"), start), TrainsOn(), jobs=("run", "bare"),
          needs=("shim",)),
]
