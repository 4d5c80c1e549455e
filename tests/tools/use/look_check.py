#!/usr/bin/env python3
"""brigade info, selftest, the live view and a look at a running job, as a user types them. look_check.py BRIGADE [PYTHON]"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import unittest
import urllib.error
import urllib.request

from command import BRIGADE, PYTHON, InFolder, environment, running, wait_until, workers_of


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
        for command in ("info", "selftest", "top", "train"):
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
        step = re.search(r"interrupted: step (\d+) is saved in run; --resume takes it up", out)
        self.assertTrue(step, out)
        manifest = self.good("train", "--steps", "1", "--checkpoint", "run", "--resume").stdout
        self.assertIn(f"taken up from run at step {step[1]}", manifest)

    def test_ctrl_c_saves_what_nothing_else_would_and_a_demo_leaves_no_folder(self):
        def stopped(*words):
            process = subprocess.Popen([BRIGADE, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                       cwd=self.folder, env=environment())
            self.addCleanup(process.kill)
            self.assertTrue(process.stdout.readline())
            self.assertTrue(wait_until(lambda: workers_of(process.pid)))
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 130, out + err)
            return out

        self.assertIn("is saved in run", stopped("train", "--steps", "100000", "--checkpoint", "run"))
        self.assertIn("taken up from run", self.good("train", "--steps", "1", "--checkpoint", "run", "--resume").stdout)
        stopped("demo", "--hook", "allreduce", "--link", "off", "--steps", "100000", "--out", "some/where")
        self.assertFalse((self.folder / "some").exists())



class Watched(InFolder):
    """One job for all: brigade top, and --metrics-port."""

    @classmethod
    def setUpClass(cls):
        words = ["train", "--steps", "100000000", "--evaluate-every", "0", "--hook", "int8", "--metrics-port", "0"]
        cls.job = subprocess.Popen([BRIGADE, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment())
        cls.addClassCleanup(cls.job.stderr.close)
        cls.addClassCleanup(cls.job.wait, 60)
        cls.addClassCleanup(cls.job.terminate)
        line = cls.job.stderr.readline()
        cls.address = re.fullmatch(r"brigade: metrics at (http://127\.0\.0\.1:\d+)/metrics\n", line)[1]

    def look(self):
        return json.loads(self.good("top", self.job.pid, "--json").stdout)

    def trains(self):
        def steps():
            text = urllib.request.urlopen(self.address + "/metrics", timeout=10).read().decode()
            return [int(count) for count in re.findall(r"^brigade_steps_total{.*} (\d+)$", text, re.MULTILINE)]

        self.assertTrue(wait_until(lambda: len(steps()) == 2 and min(steps()) > 20))

    def test_one_look_as_text_and_as_json(self):
        self.trains()
        seen = self.look()
        self.assertEqual((seen["launcher"], seen["workers"], seen["restarts"]), (self.job.pid, 2, 0))
        for number, rank in enumerate(seen["ranks"]):
            self.assertEqual((rank["rank"], rank["hook"], rank["state"]), (number, "int8", "running"))
            self.assertIn(rank["pid"], workers_of(self.job.pid))
            self.assertGreater(rank["step_ms"], 0)
            self.assertGreater(rank["bytes_inside_host"], 0)
            self.assertEqual(rank["bytes_to_other_hosts"], 0)
            self.assertGreater(rank["loss"], 0)
            self.assertEqual([bucket["bucket"] for bucket in rank["buckets"]], list(range(len(rank["buckets"]))))
            self.assertGreater(len(rank["buckets"]), 1)
        text = self.good("top", seen["job"], "--once").stdout
        self.assertNotIn("\033", text)
        self.assertRegex(text, r"step \d+, .* ms a step, .* ms of it exposed, hook int8, loss ")
        self.assertRegex(text, r"bucket +exposed ms")

    def test_a_rank_that_is_stopped_is_named(self):
        self.trains()
        worker = self.look()["ranks"][1]["pid"]
        os.kill(worker, signal.SIGSTOP)
        self.addCleanup(os.kill, worker, signal.SIGCONT)
        self.assertTrue(wait_until(lambda: f"rank 1 (process {worker}) is stopped" in self.look()["complaints"]))

    def test_a_terminal_is_followed_until_q_and_may_be_small(self):
        for key, columns, rows in ((b"q", 100, 40), (b"\x03", 12, 3)):
            seen, code = self.on_keys(key, columns, rows, "top", self.job.pid, "--every", "0.1")
            self.assertEqual(code, 0, seen)
            frame = re.sub(r"\033\[[?0-9;]*[a-zA-Z]", "", seen.split("\033[H")[1].split("\033[J")[0])
            self.assertLessEqual(frame.count("\n"), rows - 1, seen)
            self.assertLessEqual(max(len(line.rstrip("\r")) for line in frame.split("\n")), columns, seen)
            self.assertTrue(seen.endswith("\033[?1049l"), seen)

    def test_what_cannot_be_shown(self):
        self.refused(1, "no job", "top", "999999999")
        self.refused(2, "--metrics-port", "train", "--metrics-port", "70000")
        self.refused(2, "--metrics-port", "train", "--metrics-port", self.address.rsplit(":", 1)[1])
        inside = self.run_it("run", BRIGADE, "train", "--metrics-port", "0")
        self.assertIn("give it to the launcher", inside.stderr)

    @unittest.skipUnless(PYTHON, "no Python with prometheus_client here")
    def test_prometheus_understands_the_metrics(self):
        self.trains()
        text = urllib.request.urlopen(self.address + "/metrics", timeout=10).read()
        parse = """if True:
            import json, sys
            from prometheus_client.parser import text_string_to_metric_families
            families = list(text_string_to_metric_families(sys.stdin.read()))
            print(json.dumps([[f.name, f.type, f.documentation, [[s.name, s.labels, s.value] for s in f.samples]] for f in families]))
            """
        parsed = subprocess.run([PYTHON, "-c", parse], input=text, capture_output=True, timeout=60, check=True).stdout
        families = {name: (kind, samples) for name, kind, help, samples in json.loads(parsed) if help}
        self.assertEqual(families["brigade_steps"][0], "counter")
        for name, labels, value in families["brigade_steps"][1]:
            self.assertEqual((name, labels["hook"]), ("brigade_steps_total", "int8"))
            self.assertGreater(value, 20)
        exposed = families["brigade_bucket_exposed_seconds"]
        self.assertEqual(exposed[0], "gauge")
        self.assertEqual({labels["rank"] for _, labels, _ in exposed[1]}, {"0", "1"})
        self.assertIn("1", {labels["bucket"] for _, labels, _ in exposed[1]})
        links = {labels["link"] for _, labels, _ in families["brigade_bytes_sent"][1]}
        self.assertEqual(links, {"host", "network"})
        self.assertEqual(families["brigade_workers"][1], [["brigade_workers", {}, 2]])
        with self.assertRaises(urllib.error.HTTPError) as none:
            urllib.request.urlopen(self.address + "/elsewhere", timeout=10)
        none.exception.close()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
