#!/usr/bin/env python3
"""Reports includes from a layer above a file's own, layers that are not described, old names, and searches in the texts of errors.

A layer may include itself and what is listed for it here; public headers count as the layer of the folder they are
named after. Run without arguments on the project this file lies in, or with the root of a tree to check.
"""
import ast
import pathlib
import re
import sys

# Each layer with the layers that it may include, bottom first. `public` are headers directly in include/brigade that hold no
# more than contracts: errors, options, interfaces.
ALLOWED = {
    "base": set(),
    "kernels": set(),
    "codec": {"base", "kernels"},
    "torch_port": {"base"},
    "group": {"base", "torch_port"},
    "launch": {"base", "group"},
    "engine": {"base", "group", "torch_port"},
    "exchange": {"base", "engine", "codec", "kernels", "group"},
    "hooks": {"base", "exchange", "engine", "codec", "group"},
    "ddp": {"base", "engine", "group", "torch_port"},
    "optim": {"base", "ddp", "engine", "group", "kernels", "hooks"},
    "zero": {"base", "optim", "ddp", "exchange", "engine", "group", "kernels"},
    "local_sgd": {"base", "optim", "ddp", "hooks", "engine", "group"},
    "checkpoint": {"base", "zero", "local_sgd", "optim", "ddp", "group"},
    "report": {"base", "ddp", "engine", "group"},
    "elastic": {"base", "checkpoint", "local_sgd", "zero", "optim", "ddp", "engine", "group"},
}
# Headers of include/brigade itself belong to the layer with their stem: process_group.h to group, because of
# src/group/process_group.cpp. These have no source of their own, or more than one; all others are `api`, which no layer
# below the tools may include.
PUBLIC = {
    "error": "error",
    "named_state": "error",
    "task": "engine",
    "hook": "engine",
    "compose_hooks": "engine",
    "process_group": "group",
    "ddp_core": "ddp",
    "distributed_data_parallel": "ddp",
    "data": "ddp",
    "optimizer_in_backward": "optim",
}
# Only these may name parts that are private to LibTorch's backends.
PRIVATE_NAMES = re.compile(r"ProcessGroupGloo|ProcessGroupNCCL|^gloo/|^nccl\.h")
# Only the layer that contains one of these may include it.
OWN = {"ddp/core_state.h"}
# Hooks use only the public part of these layers, so that users' hooks can do the same. The one exception runs
# a hook itself, outside of a backward pass.
HOOK_WRITERS = {"exchange", "hooks", "optim", "zero", "local_sgd"}
PRIVATE_TO_HOOKS = ("engine/", "group/", "torch_port/")
RUNS_HOOKS = ("src/local_sgd/hook_averaging.cpp", "engine/engine.h")
# Errors are types, and nothing is decided by their words. These begin what LibTorch, Gloo, NCCL and the system say of a lost
# peer. The table of them is in base/failure.cpp, torch_port turns them into types, and exception_text only splits texts.
ERROR_TEXTS = ("imed out", "by peer", "onnection re", "onnection closed", "roken pipe", "pair closure")
MAY_READ_ERROR_TEXTS = ("src/base/failure.cpp", "src/base/exception_text.cpp", "src/torch_port/")
# Identifiers that were renamed or removed, exactly as they were written; they occur nowhere any more.
OLD_NAMES = (
    "JobSteward", "GuestSteward", "GuestLink", "GuestBook", "WorkerFamily", "WatchedStore", "WatchedGroup", "HostParts", "CountScope", "sit_out", "Meetings",
    "ElasticApart", "train_apart", "take_back", "agree_on", "agree_on_layout", "Announcement", "CodecBase", "TransportedState", "MeasuringHook", "TrafficMeter",
    "LiveStatus", "RankPage", "Forwarder", "GuardedStore",
)
LEAKS = re.compile(r"^(gloo|nccl|cuda|nlohmann|CLI)\b|ProcessGroup(Gloo|NCCL)\.hpp|^torch/torch\.h")
INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', re.MULTILINE)


def layer_of_include(name, root):
    """The layer to which an include line refers, or None for foreign headers."""
    parts = pathlib.PurePosixPath(name).parts
    if parts[0] == "brigade":
        if len(parts) > 2:
            return parts[1]
        stem = pathlib.PurePosixPath(name).stem
        homes = [path.relative_to(root).parts[1] for path in root.glob(f"src/*/**/{stem}.cpp")]
        if stem in ALLOWED:
            return stem
        return PUBLIC.get(stem) or (homes[0] if len(homes) == 1 else "api")
    return parts[0] if len(parts) > 1 and parts[0] in ALLOWED else None


def layer_of_file(path, root):
    parts = path.relative_to(root).parts
    if parts[0] == "src":
        return parts[1] if len(parts) > 2 else None
    return layer_of_include("/".join(("brigade",) + parts[2:]), root)


def complaints(root):
    files = [p for folder in ("src", "include/brigade") for p in sorted((root / folder).rglob("*"))]
    for path in files:
        if path.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
            continue
        layer = layer_of_file(path, root)
        public = "include" in path.relative_to(root).parts[:1]
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if not (found := INCLUDE.match(line)):
                continue
            name = found[1]
            where = f"{path.relative_to(root)}:{number}"
            other = layer_of_include(name, root)
            if other and other != "error" and layer in ALLOWED and other != layer and other not in ALLOWED[layer]:
                allowed = ", ".join(sorted(ALLOWED[layer])) or "no other layer"
                yield f"{where}: {layer} includes {name} of {other}; it may include {allowed}"
            if name in OWN and other != layer:
                yield f"{where}: {name} is for src/{other} only"
            allowed_here = (path.relative_to(root).as_posix(), name) == RUNS_HOOKS
            if layer in HOOK_WRITERS and name.startswith(PRIVATE_TO_HOOKS) and not allowed_here:
                yield f"{where}: {layer} may include public headers of {other or name.split('/')[0]} only, and {name} is private"
            if PRIVATE_NAMES.search(name) and layer != "torch_port":
                yield f"{where}: {name} is for src/torch_port only"
            if public and LEAKS.search(name):
                yield f"{where}: public headers do not include {name}"
            if layer == "kernels" and re.match(r"(torch|ATen|c10)/", name):
                yield f"{where}: kernels know no torch, and {name} is"


def said_to_know(readme):
    """The layers that the sentence "May know ..." of a README names."""
    found = re.search(r"\*\*May know\*\*([^.;:]*)", readme)
    return set(re.findall(r"`(\w+)`", found[1])) if found else None


def undescribed(root):
    """Every folder of src/ must be a layer of the table, have a README that says the same, and be in the drawing of the layers."""
    drawing = root / "docs/images/layers.svg"
    drawn = re.findall(r'class="name"[^>]*>([^<]+)<', drawing.read_text()) if drawing.exists() else []
    for folder in sorted(path for path in (root / "src").iterdir() if path.is_dir()):
        if folder.name not in ALLOWED:
            yield f"src/{folder.name}: tests/layers/check.py does not say what it may include"
        readme = folder / "README.md"
        if not readme.exists():
            yield f"src/{folder.name}: it has no README.md (what lives here, what it may know, where to begin)"
        elif said_to_know(readme.read_text()) != ALLOWED.get(folder.name):
            yield f"src/{folder.name}: what its README.md says after **May know** is not what tests/layers/check.py has"
        if folder.name not in drawn:
            yield f"src/{folder.name}: it is not in docs/images/layers.svg"


CPP_LITERAL = re.compile(r'''R"(\w*)\((?P<raw>.*?)\)\1"|"(?P<plain>(?:[^"\\\n]|\\.)*)"|'(?:[^'\\\n]|\\.)'|//[^\n]*''', re.DOTALL)


def literals(path):
    """Line and text of every string in a C++ or Python file, without comments and docstrings."""
    text = path.read_text()
    if path.suffix != ".py":
        for found in CPP_LITERAL.finditer(text):
            yield text.count("\n", 0, found.start()) + 1, found["raw"] or found["plain"] or ""
        return
    tree = ast.parse(text)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.lineno, node.value


def error_texts(root):
    """No string of the product may have the words of a foreign error, except where such errors get their types."""
    for path in sorted(p for top in ("src", "tools", "python") for p in (root / top).rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.suffix not in {".h", ".cpp", ".cu", ".cuh", ".py"} or name.startswith(MAY_READ_ERROR_TEXTS):
            continue
        for line, text in literals(path):
            if any(fragment in text for fragment in ERROR_TEXTS):
                yield f"{name}:{line}: \"{text}\" is of an error's text; only src/base/failure.cpp and src/torch_port look at that"


def old_names(root, names=OLD_NAMES):
    """No file may use a name that has been replaced."""
    if not names:
        return
    old = re.compile(r"\b(" + "|".join(map(re.escape, names)) + r")\b")
    tops = ("src", "include", "tools", "python", "tests", "bench", "examples", "docs", "cmake", "scripts")
    files = [p for top in tops for p in (root / top).rglob("*")] + [root / "README.md", root / "CONTRIBUTING.md"]
    for path in sorted(files):
        if path.suffix not in {".h", ".cpp", ".cu", ".cuh", ".py", ".pyi", ".md", ".txt", ".cmake", ".sh", ""} or not path.is_file():
            continue
        name = path.relative_to(root).as_posix()
        if name == "tests/layers/check.py":
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            for found in old.findall(line):
                yield f"{name}:{number}: {found} has another name now, or is gone"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2]).resolve()
    found = [*complaints(root), *undescribed(root), *error_texts(root), *old_names(root)]
    print("\n".join(found) if found else "layers: all includes point down, every layer is described, no error's text is searched, no old name is left")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
