#!/usr/bin/env python3
"""brigade train with unusable input: one clear error, and nothing left behind. bad_train_check.py BRIGADE [PYTHON]"""
import json
import os
import pathlib
import subprocess
import sys
import unittest

from command import BRIGADE, ROOT, InFolder, environment, idx


class BadTrain(InFolder):
    def test_words_that_mean_nothing(self):
        self.refused(2, "did you mean 'powersgd'", "train", "--hook", "powersdg")
        self.refused(2, "rank", "train", "--hook", "powersgd:rnk=2")
        self.refused(2, "did you mean 'adamw'", "train", "--optimizer", "adamww")
        self.refused(2, "lr", "train", "--optimizer", "adamw:lr=fast")
        self.refused(2, "did you mean 'digits'", "train", "--data", "digit")
        self.refused(2, "did you mean 'transformer'", "train", "--model", "transformr")
        self.refused(2, "did you mean 'cosine'", "train", "--schedule", "cosin")
        self.refused(2, "--frobnicate", "train", "--frobnicate")
        self.refused(2, "--steps", "train", "--steps", "many")
        self.refused(2, "--link is 'fast'", "train", "--link", "fast")
        self.refused(2, "--hosts makes a network", "train", "--hosts", 2)
        self.refused(2, "a multiple", "train", "--hosts", 2, "-n", 3, "--link", "1gbit")
        self.refused(2, "--checkpoint cannot go with --diloco", "train", "--diloco", 5, "--checkpoint", "run")
        self.refused(2, "--outer-lr is for --diloco", "train", "--outer-lr", 0.5)
        self.refused(2, "--outer-momentum is 1", "train", "--diloco", 5, "--outer-momentum", 1)
        self.refused(2, "--sync-batch-norm is for --model cnn", "train", "--model", "mlp", "--sync-batch-norm")
        self.refused(2, "--precision", "train", "--precision", "fp8")
        self.refused(2, "--precision bf16 cannot go with --sync-batch-norm", "train", "--model", "cnn", "--sync-batch-norm", "--precision", "bf16")
        self.refused(2, "--save-every needs --checkpoint", "train", "--save-every", 5)
        self.refused(2, "--resume needs --checkpoint", "train", "--resume")
        self.refused(2, "the transformer is for text", "train", "--model", "transformer")

    def test_files_that_cannot_be_used(self):
        self.write("empty.txt", "")
        self.write("few.txt", "abc")
        self.write("short.txt", "abc" * 10)
        self.refused(2, "the file is empty", "train", "--data", "text:empty.txt")
        self.refused(2, "known: digits, idx, text", "train", "--data", "csv:iris.csv")
        self.refused(2, "No such file", "train", "--data", "text:nothing.txt")
        self.refused(2, "0 to test on", "train", "--data", "text:few.txt")
        self.refused(2, "4 workers need", "train", "--data", "text:short.txt", "-n", 4)
        self.refused(2, "train-images-idx3-ubyte", "train", "--data", "idx:.")
        self.write("train-images-idx3-ubyte", idx([9, 9, 9], [0] * 5))
        self.write("train-labels-idx1-ubyte", idx([9], [0] * 9))
        self.refused(2, "offset 16", "train", "--data", "idx:.")

    def test_data_that_could_not_all_be_read_is_not_trained_on(self):
        self.write("some.txt", "To be, or not to be. " * 500)
        shim = pathlib.Path(BRIGADE).parent.parent / "lib/libfault_shim.so"
        for name, says in ("EIO", "Input/output error"), ("ENOMEM", "Cannot allocate memory"):
            faults = f"call=read,path=*.txt,short=4000;call=read,path=*.txt,nth=2+,errno={name}"
            words = ["train", "--steps", 1, "--data", "text:some.txt"]
            self.refused(2, "some.txt': cannot read it at byte 4000: " + says, *words, LD_PRELOAD=str(shim), BRIGADE_FAULTS=faults)

    def test_what_is_no_regular_file_is_not_waited_for(self):
        os.mkfifo(self.folder / "pipe")
        os.symlink("nothing", self.folder / "link")
        for name, says in ("pipe", "a pipe"), ("/dev/zero", "a device"), (".", "a folder"), ("link", "a symbolic link to nothing"):
            self.refused(2, says, "train", "--data", f"text:{name}")
        for name in "train-images-idx3-ubyte", "train-labels-idx1-ubyte":
            os.mkfifo(self.folder / name)
        self.refused(2, "a pipe", "train", "--data", "idx:.")

    def test_numbers_and_names_that_are_none(self):
        for seed in "-1", "18446744073709551616", "1e3", "1.5", "":
            self.refused(2, "--seed", "train", "--seed=" + seed)
            self.refused(2, "--seed", "demo", "--seed=" + seed)
        for option in "--checkpoint", "--out", "--json":
            self.refused(2, option, "train", option, "")
            self.refused(2, option, "train", option + "=")
        self.refused(2, "--out", "demo", "--out", "")
        self.refused(2, "not with --steps", "demo", "--kill", "--steps", 5)
        self.refused(2, "not with --workers", "demo", "-n", 4, "--kill", "--hook", "fp16")
        self.refused(2, "one --hook", "demo", "--kill", "--hook", "fp16", "--hook", "int8")
        for command in "info", "selftest", "bench", "demo":
            self.refused(2, "--json", command, "--json", "")

    def test_an_empty_tmpdir_is_none(self):
        self.good("run", "true", TMPDIR="")
        self.good("train", "--steps", 1, TMPDIR="")

    def test_results_that_could_not_be_printed_are_an_error(self):
        commands = {
            "--version": [],
            "--help": [],
            "info": [],
            "bench": ["--help"],
            "selftest": ["-n", 1],
            "train": ["--steps", 1],
            "run": ["echo", "result"],
        }
        for command, words in commands.items():
            with open("/dev/full", "w") as full:
                done = subprocess.run([BRIGADE, command, *map(str, words)], stdout=full, stderr=subprocess.PIPE, text=True, env=environment(), timeout=60, cwd=self.folder)
            self.assertEqual(done.returncode, 1, f"{command}: {done.stderr}")
        line = f"exec {BRIGADE} info >&-"
        done = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, text=True, env=environment(), timeout=60)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("standard output", done.stderr)

    def test_outputs_that_cannot_be_written(self):
        self.refused(2, "--json", "train", "--json", "/proc/x/out.json")
        self.refused(2, "--json", "train", "--json", ".")
        self.refused(2, "--out", "train", "--out", "/proc/x")
        self.refused(2, "--checkpoint", "train", "--checkpoint", "/proc/x")
        self.refused(1, "No space left", "train", "--steps", 2, "--json", "/dev/full")

    def test_checkpoints_that_do_not_fit(self):
        self.good("train", "--steps", 2, "--checkpoint", "run")
        here = ["train", "--steps", 4, "--checkpoint", "run"]
        self.refused(2, "--resume takes it up", *here)
        self.refused(1, "another batch: 32 there, 16 here", *here, "--resume", "--batch", 16)
        self.refused(1, "optimizer", *here, "--resume", "--optimizer", "sgd:lr=0.1")
        self.refused(1, "hook", *here, "--resume", "--hook", "int8")
        self.refused(1, "model", *here, "--resume", "--model", "mlp")
        shared = next((self.folder / "run").glob("*.shared.safetensors"))
        content = shared.read_bytes()
        shared.write_bytes(content[: len(content) // 2])
        self.refused(1, shared.name, *here, "--resume")
        (self.folder / "run/manifest.safetensors").write_bytes(b"nonsense")
        self.refused(1, "manifest", *here, "--resume")

    def test_a_loss_that_is_not_finite_ends_it(self):
        done = self.run_it("train", "--steps", 50, "--optimizer", "sgd:lr=1e18", "--checkpoint", "run", "--json", "out.json")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertRegex(done.stderr, r"brigade train: step \d+: the loss is -?(nan|inf)")
        self.assertFalse((self.folder / "out.json").exists())
        self.assertFalse((self.folder / "run/manifest.safetensors").exists())

    @unittest.skipUnless(ROOT, "a small file system needs root")
    def test_a_full_disk(self):
        disk = self.folder / "disk"
        disk.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "none", disk], capture_output=True).returncode:
            self.skipTest("tmpfs cannot be mounted here")
        self.addCleanup(subprocess.run, ["umount", disk])
        self.refused(1, "No space left", "train", "--steps", 3, "--checkpoint", "disk/run", "--save-every", 1)
        self.assertEqual([path.name for path in disk.rglob("*") if path.is_file()], [".lock"])
        (disk / "ballast").write_bytes(b"x" * 380_000)
        done = self.run_it("train", "--steps", 3000, "--out", "disk/out")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("No space left", done.stderr)
        for line in (disk / "out/metrics.jsonl").read_text().splitlines():
            json.loads(line)
        self.assertFalse((disk / "out/report.html").exists())
        self.assertEqual(list(disk.rglob("*.part*")), [])

if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
