#!/usr/bin/env python3
"""readme.py README FOLDER PREFIX: checks that README's program builds as it is pasted, against the library in PREFIX, and trains.

The program and its CMakeLists.txt go into FOLDER, and README's own lines build and start it, on two processes. Then it does the same
with the hooks that README shows. HOME is a folder in which .local is PREFIX.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

README, FOLDER, PREFIX = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
TEXT = README.read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def build_and_start(lines):
    """Returns what rank 0 prints. Its loss must have fallen to half or less."""
    environment = {**os.environ, "HOME": str(FOLDER / "home"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(["bash", "-e"], input="\n".join(lines), capture_output=True, text=True, cwd=FOLDER, env=environment, timeout=500)
    if done.returncode:
        sys.exit(f"README's lines exited with {done.returncode}:\n" + "\n".join(lines) + f"\n{done.stdout}{done.stderr}")
    losses = [float(loss) for loss in re.findall(r"^\[0\] loss ([\d.]+)$", done.stdout, re.MULTILINE)]
    # The data has 4096 rows, 64 for each step and process.
    if len(losses) != 32 or losses[-1] > losses[0] / 2:
        sys.exit(f"README's program does not learn:\n{done.stdout}{done.stderr}")
    return done.stdout


def with_hooks(program, hook):
    """Puts the hook before main, README's two ways to set one after the model's line, and at the end a line that names the hook."""
    model = next(line for line in program.splitlines(True) if "DistributedDataParallel model" in line)
    settings = ['model->set_hook(brigade::make_hook("int8"));', 'brigade::make_hook("half", half)']
    for text in settings:
        if f"`{text}`" not in TEXT:
            sys.exit(f"README does not show {text}")
    lines = f"  {settings[0]}\n  model->set_hook({settings[1]});\n"
    program = program.replace(model, model + lines).replace("int main()", hook + "\nint main()")
    return program.removesuffix("}\n") + '  group.print("hook %s\\n", model->hook()->name().c_str());\n}\n'


program, hook = blocks("cpp")
cmake, = blocks("cmake")
install, *lines = next(block for block in blocks("sh") if "cmake -B" in block).splitlines()
assert install.startswith("make install PREFIX=$HOME/.local"), install
lines = [line.replace("brigade run -n 4", "brigade run -n 2") for line in lines]

shutil.rmtree(FOLDER, ignore_errors=True)
(FOLDER / "home").mkdir(parents=True)
(FOLDER / "home/.local").symlink_to(PREFIX)
(FOLDER / "CMakeLists.txt").write_text(cmake)
(FOLDER / "ddp.cpp").write_text(program)
build_and_start(lines)
(FOLDER / "ddp.cpp").write_text(with_hooks(program, hook))
said = build_and_start(lines)
if "[0] hook half\n" not in said:
    sys.exit(f"README's hook was not set:\n{said}")
