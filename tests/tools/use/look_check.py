#!/usr/bin/env python3
"""brigade info, selftest and what they show, as a user types them. look_check.py BRIGADE [PYTHON]"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import unittest

from command import BRIGADE, InFolder, environment, running, wait_until, workers_of


class Info(InFolder):
    def test_says_what_there_is_and_why_not(self):
        text = self.good("info").stdout
        for word in ("LibTorch", "2.11", "backend gloo", "interfaces", "127.0.0.1", "congestion control", "powersgd", "adamw", "avx2"):
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
        for command in ("info", "selftest", "train"):
            text = self.good(command, "--help").stdout
            self.assertIn("Example", text)
            self.assertIn(f"brigade {command}", text)
            self.assertIn("--json", text)

    def test_what_earlier_versions_had_is_unknown_and_the_error_says_what_to_use(self):
        gone = self.run_it("top", "--once")
        self.assertEqual(gone.returncode, 2)
        self.assertTrue(gone.stderr.startswith("brigade: unknown command top: follow a training in TensorBoard"), gone.stderr)
        self.refused(2, "unknown option --metrics-port: follow a training in TensorBoard", "train", "--metrics-port", "0")

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
        # A saved run can be resumed.
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


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
