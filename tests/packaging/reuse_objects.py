#!/usr/bin/env python3
"""A compiler launcher: takes an object from the project's own build if that compiled the same source with the same
options, and else runs the compiler. So the test that builds the library inside a consumer checks the options of every source
without compiling them all a second time.

reuse_objects.py BUILD_FOLDER COMPILER ARGUMENTS...
"""
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

# The two builds may differ in the output, the dependency file, the precompiled header, and the path of a batch.
WITH_VALUE = {"-o", "-c", "-MF", "-MT", "-include"}
DROPPED = {"-MD", "-Winvalid-pch", "-fpch-preprocess", "-g", "-g1"}


TARGETS = re.compile(r"\bbrigade(_python|_tool|_command|_nccl|_objects)?\.dir\b")


def essence(arguments):
    """The options that decide what the object holds; the source is compared separately."""
    kept, rest = [], iter(arguments)
    for argument in rest:
        if argument in WITH_VALUE:
            next(rest)
        elif argument not in DROPPED:
            kept.append(argument)
    return sorted(kept)


def same_source(one, other):
    """Returns the same file; or, for a batch that CMake writes into each build's own folder, one with the same sources."""
    if one == other:
        return True
    paths = pathlib.Path(one), pathlib.Path(other)
    return all(path.parent.name == "Unity" for path in paths) and paths[0].name == paths[1].name and paths[0].read_bytes() == paths[1].read_bytes()


def built_object(build, source, arguments):
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if TARGETS.search(entry.get("output", entry["command"])) and same_source(entry["file"], source):
            command = shlex.split(entry["command"])
            compiler = next(i for i, word in enumerate(command) if os.path.basename(word) in {"c++", "g++"})
            theirs = command[compiler + 1 :]
            if essence(theirs) == essence(arguments):
                return pathlib.Path(entry["directory"]) / theirs[theirs.index("-o") + 1]
            different = set(essence(theirs)) ^ set(essence(arguments))
            print(f"compiled again, options differ: {source}: {' '.join(sorted(different))}", file=sys.stderr)
    return None


def built_kernels(build, source, arguments):
    """Returns nvcc's object, which CMake knows as the output of a command of ours."""
    said = subprocess.run(["ninja", "-C", build, "-t", "commands", "cuda_kernels.o"], capture_output=True, text=True, check=False).stdout
    words = shlex.split(said.splitlines()[-1].split(" && ")[1]) if said else []
    nvcc = next((i for i, word in enumerate(words) if os.path.basename(word) == "nvcc"), None)
    if nvcc is None or source not in words or essence(words[nvcc + 1 :]) != essence(arguments):
        print(f"compiled again, options differ: {source}", file=sys.stderr)
        return None
    return pathlib.Path(words[words.index("-o") + 1])


def main():
    build, compiler, arguments = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    if "-c" in arguments and "-o" in arguments:
        find = built_kernels if os.path.basename(compiler) == "nvcc" else built_object
        found = find(build, arguments[arguments.index("-c") + 1], arguments)
        if found and found.exists():
            shutil.copyfile(found, arguments[arguments.index("-o") + 1])
            if "-MF" in arguments:
                pathlib.Path(arguments[arguments.index("-MF") + 1]).write_text("")
            return 0
    return subprocess.call([compiler, *arguments])


if __name__ == "__main__":
    sys.exit(main())
