#!/usr/bin/env python3
"""Runs brigade demo as a user does, and checks the files that it leaves. demo_check.py BRIGADE PYTHON: PYTHON has tensorboard, or is empty."""
import json
import math
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BRIGADE, PYTHON = sys.argv[1], sys.argv[2]
WALL = 240
NOT_HOOKS = {"LD_LIBRARY_PATH", "OMP_NUM_THREADS", "NO_COLOR", "TERM", "LANG", "LC_ALL", "LC_CTYPE"}
FEW = ["--hook", "allreduce", "--hook", "int8", "--link", "off"]


def environment(**more):
    return {key: value for key, value in os.environ.items() if key not in NOT_HOOKS} | {"LANG": "C.UTF-8"} | more


def demo(*arguments, folder, **more):
    return subprocess.run(
        [BRIGADE, "demo", *arguments],
        capture_output=True, text=True, timeout=WALL, cwd=folder, env=environment(), **more
    )


def why_no_network_namespaces():
    """The system's reason why this process may not make them; empty if it may. Only this is a reason to test without a link."""
    return subprocess.run(["unshare", "-n", "true"], capture_output=True, text=True, env=os.environ | {"LC_ALL": "C"}).stderr.strip()


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob("*") if path.is_file())


class Folder(unittest.TestCase):
    """A test with an empty folder to run in."""

    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def demo(self, *arguments, **more):
        return demo(*arguments, folder=self.folder, **more)


class EveryHook(unittest.TestCase):
    """Runs the demo with its defaults, once for all of these tests."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        begin = time.monotonic()
        cls.done = demo("--json", "all.json", folder=cls.folder)
        cls.seconds = time.monotonic() - begin
        if cls.done.returncode:
            raise AssertionError(cls.done.stdout + cls.done.stderr)
        cls.result = json.loads((cls.folder / "all.json").read_text())
        cls.here = [series for series in cls.result["series"] if not series["link"]]
        cls.base = next(series for series in cls.here if series["hook"] == "allreduce")
        cls.out = cls.folder / "out/demo"

    def test_trains_under_every_hook_of_the_table(self):
        names = [series["hook"].split(":")[0] for series in self.here]
        done = subprocess.run([BRIGADE, "info", "--json", "info.json"], capture_output=True, text=True, timeout=WALL, cwd=self.folder, env=environment())
        self.assertEqual(done.returncode, 0, done.stderr)
        table = json.loads((self.folder / "info.json").read_text())["hooks"]
        self.assertEqual(names, [hook["name"] for hook in table])
        self.assertGreater(self.base["test_accuracy"], 0.95)
        for series in self.here:
            self.assertGreater(series["test_accuracy"], 0.5, series["hook"])
        print(f"[{self.seconds:.0f} s]", end=" ")

    def test_replicas_are_identical_wherever_a_mean_is_taken(self):
        for series in self.here:
            self.assertEqual(len(series["fingerprints"]), 2)
            self.assertEqual(series["replicas_identical"], series["hook"] != "noop", series["hook"])
        self.assertIn(f"identical bit by bit under every hook that averages ({self.base['fingerprints'][0]}", self.done.stdout)

    def test_the_table_says_what_the_json_says(self):
        for series in self.here:
            row = next(line.split() for line in self.done.stdout.splitlines() if re.match(re.escape(series["hook"]) + r" +\d", line))
            self.assertEqual(row[1], f"{series['test_accuracy'] * 100:.1f}")
            if series is self.base or not series["bytes_per_step"]:
                continue
            self.assertEqual(row[2], f"{(series['test_accuracy'] - self.base['test_accuracy']) * 100:+.1f}")
            self.assertAlmostEqual(float(row[5]), series["bytes_per_step"] / 1e6, places=3)
            self.assertEqual(row[6], f"{self.base['bytes_per_step'] / series['bytes_per_step']:.1f}")
            exact = series["hook"].partition(":")[0] in ("fixed", "auto")  # over loopback auto has no reason to compress
            self.assertGreaterEqual(float(row[6]), 1.0 if exact else 1.5, series["hook"])

    def test_times_and_bytes_add_up(self):
        for series in self.result["series"]:
            points = series["points"]
            self.assertEqual([point["step"] for point in points], list(range(1, len(points) + 1)))
            self.assertAlmostEqual(points[-1]["seconds"], sum(point["step_ms"] for point in points) / 1000, places=6)
            self.assertAlmostEqual(points[-1]["bytes_sent"] / len(points), series["bytes_per_step"])
            self.assertEqual(points[-1]["accuracy"], series["test_accuracy"])
            self.assertTrue(0 <= series["overlap"] <= 1)

    def test_the_verdict_follows_from_the_numbers(self):
        text = " ".join(self.result["verdict"])
        base = self.base
        rivals = [series for series in self.here if series["takes_mean"] and series is not base]
        some = [series for series in rivals if series["test_accuracy"] >= base["test_accuracy"] - 0.02]
        for series in rivals:
            self.assertEqual(f"{series['hook']} (" in text, series not in some, text)
        quickest = min(some, key=lambda series: series["step_ms"])
        says = "Even over loopback {}" if quickest["step_ms"] < 0.95 * base["step_ms"] else "Over loopback compression does not pay: the quickest, {},"
        self.assertTrue(text.startswith(says.format(quickest["hook"])), text)
        best = min(some, key=lambda series: series["step_ms"] / 1000 + 8 * series["bytes_per_step"] / 100e6)
        if best["step_ms"] <= 1.05 * base["step_ms"]:
            self.assertIn(f"{best['hook']} would win on any link", text)
        else:
            said = re.search(r"bytes (\S+) would win on links slower than about ([\d.e+]+) (.)?bit/s", text)
            self.assertEqual(said[1], best["hook"])
            rate = 8000 * (base["bytes_per_step"] - best["bytes_per_step"]) / (best["step_ms"] - base["step_ms"])
            self.assertAlmostEqual(float(said[2]) * 1000 ** " kMGT".index(said[3] or " ") / rate, 1, places=1)
        for sentence in self.result["verdict"]:
            self.assertIn(sentence + "\n", self.done.stdout)

    def test_lines_are_plain_where_there_is_no_terminal(self):
        self.assertNotIn("\r", self.done.stdout)
        self.assertNotIn("\033", self.done.stdout)

    def test_a_real_link_is_slower_and_hooks_win_on_it(self):
        over = [series for series in self.result["series"] if series["link"]]
        if why := why_no_network_namespaces():
            self.assertRegex(self.done.stdout, r"Not over a link of 100 Mbit/s: .*\.")
            self.skipTest(why)
        self.assertIn("powersgd:rank=2,start=0", [series["hook"] for series in over], "its exact first steps say nothing about the link")
        times = {series["hook"].split(":")[0]: series["step_ms"] for series in over}
        self.assertGreater(times["allreduce"], 60, "a megabyte needs 89 ms at 100 Mbit/s, less what was in the buffers")
        self.assertLess(times["int8"], times["allreduce"] / 1.5)
        self.assertIn("Over a real link of 100 Mbit/s", self.done.stdout)

    def test_every_file_it_names_is_there_and_nothing_else(self):
        expected = {"report.html", "metrics.jsonl", "trace.json"}
        for series in self.result["series"]:
            run = series["hook"] + ("_over_link" if series["link"] else "")
            expected.add(f"tensorboard/{run}/events.out.tfevents.demo")
        self.assertEqual(set(files_in(self.out)), expected)
        for name in ("report.html", "metrics.jsonl", "trace.json", "tensorboard"):
            self.assertIn(f"out/demo/{name}", self.done.stdout)
        self.assertIn("Try next", self.done.stdout)

    def test_metrics_have_a_line_a_step(self):
        lines = [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines()]
        steps = [(line["hook"], line["link"], line["step"]) for line in lines]
        self.assertEqual(steps, [(series["hook"], series["link"], point["step"])
                                 for series in self.result["series"] for point in series["points"]])
        self.assertEqual(lines[0]["loss"], self.result["series"][0]["points"][0]["loss"])

    def test_the_trace_has_a_row_for_each_rank_and_station(self):
        events = json.loads((self.out / "trace.json").read_text())["traceEvents"]
        names = {(e["pid"], e["args"]["name"]) for e in events if e["name"] in ("process_name", "thread_name")}
        for rank in (0, 1):
            self.assertLessEqual({(rank, "rank %d" % rank), (rank, "training loop"), (rank, "station 0"), (rank, "station 1"),
                                  (rank, "station 0, on the wire")}, names)
        whole = [e for e in events if e["ph"] == "X"]
        self.assertTrue(all(e["dur"] >= 0 and e["ts"] >= 0 for e in whole))
        begun, ended = ({(e["pid"], e["id2"]["local"]): e["ts"] for e in events if e["ph"] == ph} for ph in "be")
        self.assertEqual(begun.keys(), ended.keys())
        self.assertTrue(all(begun[id] <= ended[id] for id in begun))
        self.assertEqual({e["args"]["hook"] for e in whole}, {series["hook"] for series in self.result["series"]})
        self.assertGreater(len({e["args"].get("bucket") for e in whole}), 2, "one bucket only: nothing can overlap")

    @unittest.skipUnless(PYTHON, "no Python with torch here")
    def test_tensorboard_reads_its_files(self):
        if subprocess.run([PYTHON, "-c", "import tensorboard"], capture_output=True, cwd="/").returncode:
            self.skipTest("this Python has no tensorboard")
        script = """
import json, sys
from tensorboard.backend.event_processing import event_accumulator
run = event_accumulator.EventAccumulator(sys.argv[1]).Reload()
print(json.dumps({tag: [(e.step, e.value) for e in run.Scalars(tag)] for tag in run.Tags()["scalars"]}))
"""
        for series in (self.base, self.here[-1]):
            done = subprocess.run([PYTHON, "-c", script, str(self.out / "tensorboard" / series["hook"])], capture_output=True, text=True, cwd="/")
            self.assertEqual(done.returncode, 0, done.stderr)
            read = json.loads(done.stdout.splitlines()[-1])
            self.assertEqual(set(read), {"loss", "accuracy", "step_ms", "bytes_sent", "overlap"})
            self.assertEqual(len(read["loss"]), len(series["points"]))
            for (step, value), point in zip(read["loss"], series["points"]):
                self.assertEqual(step, point["step"])
                self.assertTrue(math.isclose(value, point["loss"], rel_tol=1e-6))

    def test_the_report_needs_nothing_but_itself(self):
        page = (self.out / "report.html").read_text()
        self.assertNotRegex(page, r"https?://|@import|<link[^>]+stylesheet|src=")
        for series in self.result["series"]:
            self.assertIn(f'data-name="{series["hook"]}"', page)
        for sentence in self.result["verdict"]:
            self.assertIn(sentence, page)
        self.assertIn("brigade demo -n 2", page)
        self.assertIn("prefers-color-scheme:dark", page)
        self.assertEqual(page.count("<figure class=card"), page.count("</figure>"))
        self.assertEqual(page.count("aria-label='timeline of one step'"), len(self.result["series"]))
        self.assertNotRegex(page, r"\bnan\b|\binf\b")


class Repeating(Folder):
    def test_the_same_seed_gives_the_same_run(self):
        runs = []
        for name in ("one", "two"):
            done = self.demo(*FEW, "--steps", "12", "--seed", "7", "--out", name, "--json", name + ".json")
            self.assertEqual(done.returncode, 0, done.stderr)
            runs.append(json.loads(pathlib.Path(self.folder, name + ".json").read_text())["series"])
        for one, two in zip(*runs):
            self.assertEqual([p["loss"] for p in one["points"]], [p["loss"] for p in two["points"]])
            self.assertEqual(one["fingerprints"], two["fingerprints"])
        self.assertIn("--seed 7 --hook allreduce --hook int8", pathlib.Path(self.folder, "one/report.html").read_text())

    def test_a_hook_that_never_compresses_is_told_and_is_no_rival(self):
        done = self.demo("--hook", "allreduce", "--hook", "powersgd", "--steps", "20", "--link", "off", "--json", "two.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count("brigade demo: --hook powersgd averages exactly for its first 1000 steps"), 1, done.stderr)
        result = json.loads(pathlib.Path(self.folder, "two.json").read_text())
        self.assertEqual([series["hook"] for series in result["series"]], ["allreduce", "powersgd"])
        self.assertEqual(result["verdict"], [], "two exact runs were compared")

    def test_one_rank_works_too(self):
        done = self.demo("-n", "1", "--steps", "9", "--hook", "fp16")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("one rank sends nothing", done.stdout)
        self.assertIn("Give --hook allreduce too", done.stdout)


def in_terminal(arguments, folder, keys=None, **more):
    """Runs the demo on a pseudo-terminal of 100 columns; presses `keys` after the text before them. Returns its output, and how it ended."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.execvpe(BRIGADE, [BRIGADE, "demo", *arguments], environment(**more))
    written, deadline = b"", time.monotonic() + WALL
    while time.monotonic() < deadline:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
        written += piece
        if keys and keys[0] in written:
            os.write(terminal, keys[1])
            keys = None
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    return written.decode(), os.waitstatus_to_exitcode(status)


class OnATerminal(Folder):
    ARGUMENTS = ["--hook", "fp16", "--steps", "20", "--link", "off"]

    def test_a_line_follows_the_training(self):
        written, code = in_terminal(self.ARGUMENTS, self.folder, TERM="xterm")
        self.assertEqual(code, 0, written)
        shown = re.findall(r"\r  fp16 .*?(\d+)/20 +loss +([\d.]+)", written)
        self.assertGreater(len(shown), 10)
        self.assertIn("█", written)
        self.assertIn("\033[3", written)

    def test_no_color_means_no_colour(self):
        written, code = in_terminal(self.ARGUMENTS, self.folder, TERM="xterm", NO_COLOR="1", LANG="C")
        self.assertEqual(code, 0, written)
        self.assertIn("\r  fp16", written)
        self.assertNotRegex(written, r"\033\[\d*m")
        self.assertIn("####", written)

    def test_a_dumb_terminal_gets_plain_lines(self):
        written, code = in_terminal(self.ARGUMENTS, self.folder, TERM="dumb")
        self.assertEqual(code, 0, written)
        self.assertNotIn("\033", written)
        self.assertEqual(written.count("20/20"), 1)

    def interrupted(self, arguments, after):
        mark = f"look{os.getpid()}"
        written, code = in_terminal(arguments, self.folder, (after, b"\x03"), TERM="xterm", DEMO_MARK=mark)
        self.assertIn(code, (128 + signal.SIGINT, -signal.SIGINT), written)
        self.assertEqual(os.listdir(self.folder), [], "not even an empty folder is left")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and processes_with(mark):
            time.sleep(0.05)
        self.assertEqual(processes_with(mark), [])

    def test_ctrl_c_leaves_no_process_and_no_file(self):
        self.interrupted(["--steps", "100000", "--link", "off"], after=b"loss")

    def test_ctrl_c_leaves_no_network_either(self):
        if why := why_no_network_namespaces():
            self.skipTest(why)
        # The namespaces have no names, so they last as long as a process holds them.
        self.interrupted(["--hook", "allreduce", "--hook", "int8", "--steps", "25", "--link", "1mbit"], after=b"namespaces:")


def processes_with(mark):
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            pass
    return found


class BadInput(Folder):
    def refused(self, *arguments, names, code=2):
        done = self.demo(*arguments)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertIn(names, done.stderr)
        self.assertNotIn("accuracy", done.stdout, "it began to work")

    def test_exits_with_2_and_names_what_is_wrong(self):
        pathlib.Path(self.folder, "file").touch()
        for arguments, names in (
            (["-n", "0"], "--workers"),
            (["--steps", "0"], "--steps"),
            (["--batch", "1500"], "--batch"),
            (["--hook", "powersdg"], "did you mean 'powersgd'"),
            (["--hook", "powersgd:rank=x"], "rank"),
            (["--hook", "fp16", "--hook", "fp16"], "--hook fp16 is given twice"),
            (["--link", "fast"], "--link is 'fast'"),
            (["--out", "file"], "cannot write into 'file'"),
            (["--out", "/proc/demo"], "cannot write into '/proc/demo'"),
            (["--json", "/proc/demo/x.json"], "--json: cannot write into '/proc/demo'"),
            (["--json", "."], "'.' is no name for a file"),
            (["--colour"], "--colour"),
        ):
            with self.subTest(arguments=arguments):
                self.refused(*arguments, names=names)

    @unittest.skipUnless(os.geteuid() == 0, "only root can make a disk that is full")
    def test_a_disk_that_fills_up_is_a_failure_that_leaves_no_half_file(self):
        script = 'mkdir out && mount -t tmpfs -o size=32k none out || exit 99; "$@"; code=$?; find out -type f; exit $code'
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", script, "sh", BRIGADE, "demo", *FEW, "--steps", "10"],
            capture_output=True, text=True, timeout=WALL, cwd=self.folder, env=environment(),
        )
        if done.returncode == 99:
            self.skipTest("no tmpfs can be mounted here: " + done.stderr)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("No space left on device", done.stderr)
        self.assertNotIn(".part", done.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
