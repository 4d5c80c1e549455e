#!/usr/bin/env python3
"""brigade info, selftest and train, as a user types them. use_check.py BRIGADE [PYTHON]

Real processes; a pseudo-terminal where the live view matters. PYTHON has torch, or is missing.
"""
import json
import os
import pathlib
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

BRIGADE = sys.argv[1]
PYTHON = sys.argv[2] if len(sys.argv) > 2 else ""
ROOT = os.geteuid() == 0


def environment(**more):
    cleared = {"LD_LIBRARY_PATH", "OMP_NUM_THREADS", "NO_COLOR", "RANK", "WORLD_SIZE"}
    kept = {key: value for key, value in os.environ.items() if key not in cleared}
    return {**kept, "OMP_NUM_THREADS": "1", "BRIGADE_GRACE": "2", **more}


def descendants(pid):
    """Of a process, itself not among them."""
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(word) for word in task.read_text().split()]
        except OSError:
            continue
        for child in children:
            found += [child] + descendants(child)
    return found


def workers_of(pid):
    """The launcher's watcher, which has a name of its own, is none of them."""
    def name(of):
        try:
            return pathlib.Path(f"/proc/{of}/comm").read_text().strip()
        except OSError:
            return ""

    return [child for child in descendants(pid) if name(child) == "brigade"]


def running(pids):
    def alive(pid):
        try:
            return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
        except OSError:
            return False

    return [pid for pid in pids if alive(pid)]


def wait_until(condition, limit=60):
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


class InFolder(unittest.TestCase):
    """Every test has an empty folder of its own."""

    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)

    def run_it(self, *words, limit=120, **more):
        return subprocess.run(
            [BRIGADE, *map(str, words)], capture_output=True, text=True, timeout=limit, cwd=self.folder, env=environment(**more)
        )

    def good(self, *words, **more):
        done = self.run_it(*words, **more)
        self.assertEqual(done.returncode, 0, f"{words}\n{done.stdout}{done.stderr}")
        return done

    def json_of(self, *words, **more):
        self.good(*words, "--json", "out.json", **more)
        return json.loads((self.folder / "out.json").read_text())

    def refused(self, code, says, *words, leaves=(), **more):
        """One clear error, and nothing left in the folder but `leaves`."""
        before = {path.name for path in self.folder.iterdir()}
        done = self.run_it(*words, **more)
        self.assertEqual(done.returncode, code, f"{words}\n{done.stdout}{done.stderr}")
        self.assertEqual(done.stderr.count("\n"), 1, f"{words}: more than one line:\n{done.stderr}")
        self.assertTrue(done.stderr.startswith(f"brigade {words[0]}: "), done.stderr)
        self.assertIn(says, done.stderr)
        self.assertEqual({path.name for path in self.folder.iterdir()} - before, set(leaves), done.stderr)
        return done

    def write(self, name, content):
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def on_terminal(self, *words, columns=100, **more):
        """What appears on a terminal, and the exit code."""
        pid, master = pty.fork()
        if pid == 0:
            os.chdir(self.folder)
            os.execve(BRIGADE, [BRIGADE, *map(str, words)], environment(TERM="xterm", LANG="C.UTF-8", **more))
        import fcntl
        import termios

        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        seen = b""
        try:
            while block := os.read(master, 65536):
                seen += block
        except OSError:  # its other end is closed
            pass
        os.close(master)
        return seen.decode(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Info(InFolder):
    def test_says_what_there_is_and_why_not(self):
        text = self.good("info").stdout
        for word in ("LibTorch", "2.11", "backend gloo", "interfaces", "127.0.0.1", "powersgd", "adamw", "avx2"):
            self.assertIn(word, text)
        self.assertRegex(text, r"CUDA +(yes|no: \w)")
        self.assertRegex(text, r"backend nccl +(yes|no: \w)")

    def test_its_json_has_a_reason_for_every_no(self):
        info = self.json_of("info")

        def reasons(part):
            if isinstance(part, dict):
                if part.get("available") is False:
                    self.assertTrue(part["reason"])
                for inner in part.values():
                    reasons(inner)
            elif isinstance(part, list):
                for inner in part:
                    reasons(inner)

        reasons(info)
        self.assertIn("lo", [one["name"] for one in info["interfaces"]])
        self.assertEqual({"gloo", "nccl"}, set(info["backends"]))
        self.assertIn("int8", [hook["name"] for hook in info["hooks"]])
        self.assertGreaterEqual(info["cores"]["usable"], 1)

    def test_a_limit_on_instructions_is_a_reason(self):
        text = self.good("info", BRIGADE_ISA="portable").stdout
        self.assertIn("uses portable", text)
        self.assertRegex(text, r"avx2: no: (BRIGADE_ISA|this CPU)")


class Selftest(InFolder):
    def test_every_hook_passes(self):
        result = self.json_of("selftest")
        self.assertTrue(result["passed"])
        self.assertEqual(result["workers"], 2)
        self.assertEqual(result["backend"], "gloo")
        names = [check["hook"] for check in result["checks"]]
        for hook in self.json_of("info")["hooks"]:
            self.assertTrue(any(name.startswith(hook["name"]) for name in names), hook["name"])
        for check in result["checks"]:
            self.assertGreaterEqual(check["buckets"], 5, check)
            if check["tolerance"] >= 0:
                self.assertLessEqual(check["error"], check["tolerance"], check)

    def test_one_worker_and_three(self):
        self.assertIn("1 worker over solo", self.good("selftest", "-n", 1).stdout)
        self.assertEqual(self.json_of("selftest", "-n", 3)["workers"], 3)

    def test_a_worker_that_dies_fails_the_check_it_died_in(self):
        process = subprocess.Popen(
            [BRIGADE, "selftest", "--json", "out.json"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            cwd=self.folder, env=environment(),
        )
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        self.assertIn("2 workers", process.stdout.readline())
        self.assertTrue(wait_until(lambda: len(workers_of(process.pid)) == 2))
        workers = workers_of(process.pid)
        os.kill(workers[1], signal.SIGKILL)
        text = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 1, text)
        self.assertRegex(text, r"FAIL  \w")
        self.assertIn("SIGKILL", text)
        result = json.loads((self.folder / "out.json").read_text())
        self.assertFalse(result["passed"])
        self.assertIn("SIGKILL", result["checks"][-1]["failure"])
        self.assertTrue(wait_until(lambda: not running(workers)))

    def test_bad_use(self):
        self.refused(2, "--workers", "selftest", "-n", 0)
        self.refused(2, "--backend", "selftest", "--backend", "mpi")
        self.refused(2, "--json", "selftest", "--json", "/proc/nothing/out.json")
        if not pathlib.Path("/dev/nvidia0").exists():
            self.refused(2, "--device cuda cannot be used here", "selftest", "--device", "cuda")
            self.refused(2, "nccl", "selftest", "--backend", "nccl")

    def test_colours_only_on_a_terminal_that_wants_them(self):
        seen, code = self.on_terminal("selftest")
        self.assertEqual(code, 0, seen)
        self.assertIn("\033[32mPASS\033[0m", seen)
        seen, _ = self.on_terminal("selftest", NO_COLOR="1")
        self.assertIn("PASS", seen)
        self.assertNotIn("\033[32m", seen)
        self.assertNotIn("\033", self.good("selftest").stdout)


def idx(sizes, values):
    return struct.pack(f">HBB{len(sizes)}I", 0, 8, len(sizes), *sizes) + bytes(values)


class Train(InFolder):
    def test_digits_are_learned(self):
        result = self.json_of("train", "--steps", 120, "--hook", "int8", "--schedule", "cosine:warmup=10")
        self.assertGreater(result["test_accuracy"], 0.93)
        self.assertTrue(result["replicas_identical"])
        self.assertEqual(len(result["losses"]), 120)
        self.assertEqual([one["step"] for one in result["evaluations"]], [50, 100, 120])
        self.assertLess(result["bytes_sent_per_step"], 0.3 * result["gradient_bytes"])

    def test_the_same_seed_gives_the_same_run_and_another_does_not(self):
        one, two, other = (self.json_of("train", "--steps", 10, "--seed", seed) for seed in (7, 7, 8))
        self.assertEqual(one["losses"], two["losses"])
        self.assertEqual(one["fingerprints"], two["fingerprints"])
        self.assertNotEqual(one["fingerprints"], other["fingerprints"])

    def test_taking_a_run_up_changes_no_bit(self):
        for extra in (
            ["--hook", "powersgd:rank=2,start=3", "--optimizer", "adam"],
            ["--hook", "int8", "--optimizer", "sgd:lr=0.1,momentum=0.9", "--optimizer-in-backward"],
        ):
            words = ["train", *extra, "--bucket-mb", "0.1", "--schedule", "cosine:warmup=5"]
            whole = self.json_of(*words, "--steps", 40)
            folder = "run_" + extra[1][:4]
            # The schedule is that of 40 steps from the beginning: stopped, not planned to end, at 23.
            first = self.interrupted(*words, "--steps", 40, "--checkpoint", folder, "--save-every", 23)
            self.assertNotEqual(first, 0)
            second = self.json_of(*words, "--steps", 40, "--checkpoint", folder, "--resume")
            self.assertEqual(second["resumed_from"], 23)
            self.assertEqual(second["losses"], whole["losses"][23:])
            self.assertEqual(second["fingerprints"], whole["fingerprints"])

    def interrupted(self, *words):
        """Ends it as soon as it has saved."""
        folder = self.folder / words[words.index("--checkpoint") + 1]
        process = subprocess.Popen(
            [BRIGADE, *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.folder,
            # Slow enough to be stopped before it ends.
            env=environment(),
        )
        saved = wait_until(lambda: (folder / "manifest.safetensors").exists() or process.poll() is not None, 60)
        self.assertTrue(saved)
        process.send_signal(signal.SIGINT)
        return process.wait(60)

    def test_a_finished_run_goes_on_where_more_steps_are_wanted(self):
        first = self.json_of("train", "--steps", 5, "--checkpoint", "run")
        done = self.good("train", "--steps", 5, "--checkpoint", "run", "--resume")
        self.assertIn(first["fingerprints"][0], done.stdout)
        more = self.json_of("train", "--steps", 8, "--checkpoint", "run", "--resume", "-n", 3)
        self.assertEqual((more["resumed_from"], len(more["losses"]), more["workers"]), (5, 3, 3))

    def test_what_people_look_at(self):
        self.good("train", "--steps", 6, "--out", "out", "--checkpoint", "run", "--save-every", 4)
        lines = [json.loads(line) for line in (self.folder / "out/metrics.jsonl").read_text().splitlines()]
        self.assertEqual([line["step"] for line in lines], [1, 2, 3, 4, 5, 6])
        self.assertIn("accuracy", lines[-1])
        self.assertIn("brigade train --steps 6", (self.folder / "out/report.html").read_text())
        self.assertEqual(len(list((self.folder / "out/tensorboard").glob("*tfevents*"))), 1)
        trace = json.loads((self.folder / "out/trace.json").read_text())["traceEvents"]
        spans = [(event["pid"], event["name"].split()[0]) for event in trace if event["ph"] == "X"]
        for rank in (0, 1):
            self.assertEqual(spans.count((rank, "backward")), 6)
        # Taken up: the metrics go on, and none is there twice.
        self.good("train", "--steps", 9, "--out", "out", "--checkpoint", "run", "--resume")
        lines = [json.loads(line) for line in (self.folder / "out/metrics.jsonl").read_text().splitlines()]
        self.assertEqual([line["step"] for line in lines], list(range(1, 10)))
        sent = [line["bytes_sent"] for line in lines]
        self.assertEqual(sent, sorted(sent))

    def test_a_table(self):
        rows = [f"{x},{y},{'near' if x * x + y * y < 30 else 'far'}" for x in range(-9, 10) for y in range(-9, 10)]
        self.write("points.csv", "x,y,kind\n" + "\n".join(rows[::2] + rows[1::2]) + "\n")
        result = self.json_of("train", "--data", "csv:points.csv", "--label", "kind", "--steps", 200, "--lr", "0.01")
        self.assertEqual(result["model"], "mlp")
        self.assertGreater(result["test_accuracy"], 0.9)

    def test_images(self):
        for which, count in (("train", 60), ("t10k", 20)):
            labels = [i % 2 for i in range(count)]
            pixels = [255 if (row < 5) == (label == 0) else 0 for label in labels for row in range(10) for _ in range(10)]
            self.write(f"{which}-images-idx3-ubyte", idx([count, 10, 10], pixels))
            self.write(f"{which}-labels-idx1-ubyte", idx([count], labels))
        for model in ("cnn", "mlp"):
            result = self.json_of("train", "--data", f"idx:{self.folder}", "--model", model, "--steps", 20, "--batch", 8)
            self.assertEqual(result["test_accuracy"], 1, model)

    def test_text(self):
        self.write("text.txt", "the bucket goes from hand to hand. " * 200)
        result = self.json_of(
            "train", "--data", "text:text.txt", "--context", 16, "--steps", 60, "--batch", 16, "--hook", "fp16",
            "--lr", "0.01", "--width", 32,
        )
        self.assertEqual(result["model"], "transformer")
        self.assertGreater(result["test_accuracy"], 0.8)

    def test_inside_brigade_run_it_is_a_worker(self):
        done = self.run_it("run", "-n", 3, BRIGADE, "train", "--steps", 4, "--hook", "powersgd", "--json", "out.json")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stderr.count("averages exactly for its first 1000 steps, and this run has 4"), 1, done.stderr)
        self.assertEqual(json.loads((self.folder / "out.json").read_text())["workers"], 3)
        bad = self.run_it("run", "-n", 2, BRIGADE, "train", "-n", 2)
        self.assertEqual(bad.returncode, 2)
        self.assertIn("leave -n out", bad.stderr)

    @unittest.skipUnless(PYTHON, "no Python with torch here")
    def test_inside_torchrun_it_is_a_worker(self):
        torchrun = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node", "2"]
        done = subprocess.run(
            [*torchrun, BRIGADE, "train", "--steps", "4", "--json", "out.json"], capture_output=True, text=True,
            timeout=120, cwd=self.folder, env=environment(),
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(json.loads((self.folder / "out.json").read_text())["workers"], 2)

    @unittest.skipUnless(ROOT, "a shaped link needs root")
    def test_over_a_slow_link(self):
        result = self.json_of("train", "--steps", 4, "--link", "100mbit", "--hook", "fp16")
        self.assertEqual(result["link"], "100 Mbit/s")
        self.assertTrue(result["replicas_identical"])


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
        self.refused(2, "--save-every needs --checkpoint", "train", "--save-every", 5)
        self.refused(2, "--resume needs --checkpoint", "train", "--resume")
        self.refused(2, "the transformer is for text", "train", "--model", "transformer")

    def test_files_that_cannot_be_used(self):
        self.write("empty.csv", "")
        self.write("bad.csv", "1,2,a\n3,four,b\n")
        self.write("few.csv", "1,2,a\n3,4,b\n5,6,a\n")
        self.write("short.txt", "abc" * 10)
        self.refused(2, "the file is empty", "train", "--data", "csv:empty.csv")
        self.refused(2, "the file is empty", "train", "--data", "text:empty.csv")
        self.refused(2, "bad.csv, line 2: column 2 is 'four'", "train", "--data", "csv:bad.csv")
        self.refused(2, "No such file", "train", "--data", "csv:nothing.csv")
        self.refused(2, "0 to test on", "train", "--data", "csv:few.csv")
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
            for kind in "text", "csv":
                self.refused(2, says, "train", "--data", f"{kind}:{name}")
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
        for command in "info", "selftest", "plan", "bench", "demo":
            self.refused(2, "--json", command, "--json", "")

    def test_an_empty_tmpdir_is_none(self):
        self.good("run", "true", TMPDIR="")
        self.good("train", "--steps", 1, TMPDIR="")

    def test_results_that_could_not_be_printed_are_an_error(self):
        commands = {
            "--version": [],
            "--help": [],
            "info": [],
            "plan": ["--help"],
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


class LiveView(InFolder):
    def test_a_terminal_has_a_bar_and_whole_lines_only_where_something_was_measured(self):
        seen, code = self.on_terminal("train", "--steps", 30, "--evaluate-every", 10)
        self.assertEqual(code, 0, seen)
        self.assertIn("█", seen)
        self.assertIn("\033[36m", seen)
        self.assertEqual(len(re.findall(r"step +\d+/30 .*\n", seen)), 4, seen)
        seen, _ = self.on_terminal("train", "--steps", 5, NO_COLOR="1")
        self.assertNotIn("\033[36m", seen)

    def test_elsewhere_there_are_plain_lines(self):
        text = self.good("train", "--steps", 5).stdout
        self.assertNotIn("\r", text)
        self.assertNotIn("\033", text)
        self.assertIn("step 5/5", text)

    def test_every_subcommand_has_help_with_an_example(self):
        for command in ("info", "selftest", "train"):
            text = self.good(command, "--help").stdout
            self.assertIn("Example", text)
            self.assertIn(f"brigade {command}", text)
            self.assertIn("--json", text)

    def test_ctrl_c_leaves_no_process_and_no_half_file(self):
        process = subprocess.Popen(
            [BRIGADE, "train", "--steps", "100000", "--out", "out", "--json", "out.json", "--checkpoint", "run",
             "--save-every", "3"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder, env=environment(),
        )
        self.assertTrue(wait_until((self.folder / "run/manifest.safetensors").exists, 60))
        self.addCleanup(process.kill)
        workers = workers_of(process.pid)
        self.assertEqual(len(workers), 2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, out + err)
        self.assertTrue(wait_until(lambda: not running(workers)))
        self.assertFalse((self.folder / "out.json").exists())
        self.assertFalse((self.folder / "out/report.html").exists())
        self.assertEqual(list(self.folder.rglob("*.part*")), [], "a half-written file is left")
        for line in (self.folder / "out/metrics.jsonl").read_text().splitlines():
            json.loads(line)
        # What was saved can be taken up.
        manifest = self.good("train", "--steps", "1", "--checkpoint", "run", "--resume").stdout
        self.assertIn("taken up from run", manifest)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
