#!/usr/bin/env python3
"""Says where a file includes something from a layer above its own, which layer is not described, and what has grown too large.

A layer may include itself and what is listed for it here; public headers count as the layer of the folder they are
named after. Run without arguments on the project this file lies in, or with the root of a tree to check.
"""
import pathlib
import re
import sys

# Each layer, and what it may include, bottom first. `public` are headers directly in include/brigade that hold no
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
# Headers of include/brigade itself speak for the layer that has their stem: process_group.h for group, because of
# src/group/process_group.cpp. These have no source of their own, or more than one; all others are `api`, which no layer
# below the tools may include.
PUBLIC = {
    "error": "error",
    "export": "error",
    "task": "engine",
    "comm": "engine",
    "bucket": "engine",
    "hook": "engine",
    "revertible_hook": "engine",
    "measuring_hook": "engine",
    "trace": "engine",
    "collect_tensors": "ddp",
    "ddp_core": "ddp",
    "distributed_data_parallel": "ddp",
    "sampler": "ddp",
}
# Only these may name what is private to LibTorch's backends.
PRIVATE_NAMES = re.compile(r"ProcessGroupGloo|ProcessGroupNCCL|^gloo/|^nccl\.h")
# Only the layer it lies in may include one of these.
OWN = {"ddp/core_state.h"}
# Where hooks are written: what they use of these layers is public, so that users' hooks can do the same. The one exception runs
# a hook itself, outside of a backward pass.
HOOK_WRITERS = {"exchange", "hooks", "optim", "zero", "local_sgd"}
PRIVATE_TO_HOOKS = ("engine/", "group/", "torch_port/")
RUNS_HOOKS = ("src/local_sgd/hook_averaging.cpp", "engine/engine.h")
# What others say of lost peers and time limits is searched for in one place.
PHRASES = re.compile(r'"[^"]*(imed out|by peer|Broken pipe|pair closure|remote process exited|communicator was aborted)"')
KNOWS_PHRASES = "src/base/failure.cpp"
MOST_FILES = 25
MOST_LINES = 500
LEAKS = re.compile(r"^(gloo|nccl|cuda|nlohmann|CLI)\b|ProcessGroup(Gloo|NCCL)\.hpp|^torch/torch\.h")
INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', re.MULTILINE)


def layer_of_include(name, root):
    """The layer an include line speaks of, or None for what is not ours."""
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


def searched_texts(root):
    """Nothing decides by the text of an error but the table of foreign phrases."""
    for path in sorted(p for top in ("src", "include", "tools", "python/native") for p in (root / top).rglob("*")):
        if path.suffix not in {".h", ".cpp", ".cu", ".cuh"} or path.relative_to(root).as_posix() == KNOWS_PHRASES:
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if found := PHRASES.search(line):
                yield f"{path.relative_to(root)}:{number}: '{found[1]}' is a text of others; {KNOWS_PHRASES} says which kind of failure it is"


def said_to_know(readme):
    """The layers that the sentence "May know ..." of a README names."""
    found = re.search(r"\*\*May know\*\*([^.;:]*)", readme)
    return set(re.findall(r"`(\w+)`", found[1])) if found else None


def undescribed(root):
    """Every folder of src/ is a layer of the table, has a README that says the same, and stands in the drawing of the layers."""
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


def crowded(root):
    """A folder is seen at a glance, and so is a file."""
    for top in ("src", "tools"):
        for folder in sorted(path for path in [root / top, *(root / top).rglob("*")] if path.is_dir()):
            count = sum(path.is_file() for path in folder.iterdir())
            if count > MOST_FILES:
                yield f"{folder.relative_to(root)}: {count} files; {MOST_FILES} at most, divide it"
    for path in sorted(p for top in ("src", "tools", "include", "tests") for p in (root / top).rglob("*")):
        if path.suffix in {".h", ".cpp", ".cu", ".cuh", ".py"} and (lines := len(path.read_text().splitlines())) > MOST_LINES:
            yield f"{path.relative_to(root)}: {lines} lines; {MOST_LINES} at most, divide it"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2]).resolve()
    found = [*complaints(root), *searched_texts(root), *undescribed(root), *crowded(root)]
    print("\n".join(found) if found else "layers: all includes point down, every layer is described, no folder or file is too large")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
