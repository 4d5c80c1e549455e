"""``python -m brigade``, and the errors where the package cannot work."""

import os
import pathlib
import runpy
import subprocess
import sys

import brigade
import pytest
from workers import forkserver


def said_by(*arguments):
    return subprocess.run([sys.executable, "-m", "brigade", *arguments], capture_output=True, text=True, timeout=100)


def become_the_program(arguments, out, err):
    """Does what Python does for -m, in a process that has imported torch already."""
    for stream, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), stream)
    sys.argv = ["brigade", *arguments]
    runpy.run_module("brigade", run_name="__main__", alter_sys=True)


@pytest.fixture
def said(tmp_path):
    """Gives said(*arguments): as said_by, without the seconds in which a new Python imports torch."""
    def run(*arguments):
        paths = [tmp_path / name for name in ("out", "err")]
        process = forkserver().Process(target=become_the_program, args=(arguments, *map(str, paths)))
        process.start()
        process.join(100)
        if process.is_alive():
            process.kill()
            process.join()
        out, err = (path.read_text() for path in paths)
        for path in paths:
            path.unlink()
        return subprocess.CompletedProcess(arguments, process.exitcode, out, err)

    return run


def test_the_program_is_passed_through():
    told = said_by("--version")
    assert told.returncode == 0 and told.stdout.startswith("brigade "), told


@pytest.mark.parametrize("subcommand", ["info", "selftest", "demo", "train", "bench", "run"])
def test_every_subcommand_tells_its_options(said, subcommand):
    told = said(subcommand, "--help")
    assert told.returncode == 0 and "--help" in told.stdout and subcommand in told.stdout, told


def test_exit_codes_and_streams_come_through(said):
    assert said("info").returncode == 0
    wrong = said_by("demo", "--no-such-option")
    assert wrong.returncode == 2 and "no-such-option" in wrong.stderr and not wrong.stdout, wrong
    assert said("no-such-subcommand").returncode == 2
    # In a job it is the first failing rank's.
    seven = said("run", "--nproc-per-node", "2", "sh", "-c", "exit 7")
    assert seven.returncode == 7, seven
    assert said("run", "--nproc-per-node", "2", sys.executable, "-c", "print('here')").stdout.count("here") == 2


def importing(folder, **torch):
    """The output of `import brigade` with a torch of this kind."""
    (folder / "torch").mkdir()
    lines = [f"{name} = {value!r}" for name, value in torch.items()]
    if "distributed" in torch:
        lines = [line for line in lines if not line.startswith("distributed")] + [
            "class distributed:", "    is_available = staticmethod(lambda: False)"]
    (folder / "torch/__init__.py").write_text("\n".join(lines))
    path = f"{folder}:{pathlib.Path(brigade.__file__).parents[1]}"
    return subprocess.run([sys.executable, "-c", "import brigade"], capture_output=True, text=True, timeout=60,
                          env={"PYTHONPATH": path}).stderr.strip().splitlines()[-1]


def test_another_torch_is_told_in_one_sentence(tmp_path):
    for number, (found, text) in enumerate({
            "2.10.0": "was built for torch 2.11, and this is torch 2.10.0: pip install 'torch==2.11.*', or build brigade again",
            "2.12.1+cu130": "and this is torch 2.12.1+cu130", "2.1.1": "and this is torch 2.1.1"}.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert text in importing(folder, __version__=found)
    folder = tmp_path / "without"
    folder.mkdir()
    assert "was built without it" in importing(folder, __version__="2.11.0", distributed=None)


def test_no_torch_at_all_is_told_in_one_sentence(tmp_path):
    code = "import sys; sys.modules['torch'] = None\nimport brigade"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stderr.strip().splitlines()[-1].startswith("ImportError: brigade ")
    assert "there is no torch here: pip install 'torch==2.11.*'" in run.stderr
