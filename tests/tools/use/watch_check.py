#!/usr/bin/env python3
"""brigade top and --metrics-port beside real jobs, as a user types them. watch_check.py BRIGADE [PYTHON]"""
import glob
import json
import os
import re
import signal
import socket
import subprocess
import sys
import unittest
import urllib.error
import urllib.request

from command import BRIGADE, PYTHON, InFolder, environment, wait_until, workers_of


# Before a command: it runs on a host of that name, which is still this one.
RENAMED = ["unshare", "--uts", "sh", "-c", 'echo "$0" >/proc/sys/kernel/hostname && exec "$@"']


def can_rename():
    """Not everybody may, nor root in every container."""
    try:
        return subprocess.run([*RENAMED, "another", "true"], capture_output=True, timeout=30).returncode == 0
    except OSError:
        return False


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
            # What is exposed of a bucket is a part of its reduction.
            self.assertGreater(max(bucket["exposed_ms"] for bucket in rank["buckets"]), 0)
            for bucket in rank["buckets"]:
                self.assertLessEqual(bucket["exposed_ms"], bucket["reduce_ms"])
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


class Followed(InFolder):
    """Jobs to which something happens."""

    def start(self, *words, host=None):
        """The launcher of a job that trains until it is ended. `host`: a name other than this host's, by which its workers are on another one."""
        apart = [*RENAMED, host] if host else []
        job = subprocess.Popen([*apart, BRIGADE, *map(str, words), "--steps", "100000000", "--evaluate-every", "0"], stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True, cwd=self.folder, env=environment())
        self.addCleanup(job.stderr.close)
        self.addCleanup(job.wait, 60)
        self.addCleanup(job.terminate)
        return job

    def look(self, job):
        """None: there is nothing to see yet, or a page is being replaced."""
        done = self.run_it("top", job.pid, "--json")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def until(self, job, condition, what):
        """The first look for which it holds."""
        seen = []

        def holds():
            seen.append(self.look(job))
            return seen[-1] is not None and condition(seen[-1])

        self.assertTrue(wait_until(holds), f"{what}: {seen[-1]}")
        return seen[-1]

    @staticmethod
    def train(ranks, steps=5):
        return lambda seen: len(seen["ranks"]) == ranks and min(rank["steps"] for rank in seen["ranks"]) > steps

    def test_a_loss_that_a_program_only_prints_is_shown(self):
        program = os.path.join(self.folder, "prints.sh")
        with open(program, "w") as file:
            file.write('#!/bin/sh\necho "epoch 1: train_loss=0.5, loss scale 65536"\necho "loss nan"\necho "Loss: 0.$((RANK + 1))25"\nsleep 600\n')
        os.chmod(program, 0o755)
        job = subprocess.Popen([BRIGADE, "run", "-n", "2", program], stdout=subprocess.DEVNULL, text=True, env=environment())
        self.addCleanup(job.wait, 60)
        self.addCleanup(job.terminate)
        seen = self.until(job, lambda seen: [rank["loss"] for rank in seen["ranks"]] == [0.125, 0.225], "both have printed their last loss")
        self.assertEqual([rank["losses_not_finite"] for rank in seen["ranks"]], [1, 1])
        folder, = {os.path.dirname(page) for page in glob.glob("/dev/shm/brigade_live_*/rank_1_printed")
                   if subprocess.run(["grep", "-q", f'"pid":{job.pid},', os.path.dirname(page) + "/job.json"]).returncode == 0}
        job.terminate()
        job.wait(60)
        self.assertFalse(os.path.exists(folder))

    def test_an_elastic_job_shows_its_generations_and_who_was_replaced(self):
        job = self.start("train", "-n", 3, "--elastic")
        before = self.until(job, self.train(3), "three ranks train")
        self.assertEqual((before["elastic"], before["replaced"]), (True, 0))
        victim = before["ranks"][1]["pid"]
        os.kill(victim, signal.SIGKILL)
        after = self.until(
            job, lambda seen: seen["replaced"] == 1 and seen["generation"] > before["generation"] and self.train(3)(seen),
            "all train again, one of them new")
        self.assertNotIn(victim, [rank["pid"] for rank in after["ranks"]])
        self.assertEqual([rank["state"] for rank in after["ranks"]], ["running"] * 3)
        text = self.good("top", job.pid, "--once").stdout
        self.assertRegex(text, rf"elastic, generation {after['generation']} of 3 members, 1 replaced")

    def test_a_job_that_starts_again_shows_its_restarts(self):
        job = self.start("run", "-n", 2, "--max-restarts", 3, BRIGADE, "train")
        before = self.until(job, self.train(2), "two ranks train")
        self.assertEqual((before["restarts"], before["max_restarts"]), (0, 3))
        os.kill(before["ranks"][0]["pid"], signal.SIGKILL)
        after = self.until(job, lambda seen: seen["restarts"] == 1 and self.train(2)(seen), "two ranks train again")
        self.assertFalse({rank["pid"] for rank in before["ranks"]} & {rank["pid"] for rank in after["ranks"]})
        self.assertIn("1 of 3 restarts used", self.good("top", job.pid, "--once").stdout)

    def test_the_first_of_several_hosts_shows_the_workers_of_all(self):
        two_hosts = can_rename()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        jobs = [self.start("run", "-n", 2, "--nnodes", 2, "--node-rank", node, "--master-addr", "127.0.0.1", "--master-port", port,
                           "--metrics-port", 0, BRIGADE, "train", host="another" if two_hosts and node else None) for node in range(2)]
        seen = self.until(jobs[0], self.train(4), "four ranks train")
        self.assertEqual([rank["rank"] for rank in seen["ranks"]], [0, 1, 2, 3])
        pids = [rank["pid"] for rank in seen["ranks"]]
        self.assertEqual(sorted(pids[:2]), sorted(workers_of(jobs[0].pid)))
        self.assertEqual(sorted(pids[2:]), sorted(workers_of(jobs[1].pid)))
        if two_hosts:
            # All-reduce sends round a ring, each rank to the one before it.
            self.assertEqual([rank["bytes_to_other_hosts"] > 0 for rank in seen["ranks"]], [True, False, True, False])
        there = self.look(jobs[1])
        self.assertEqual([rank["rank"] for rank in there["ranks"]], [2, 3])
        self.assertIn("(rank 0's host shows all)", self.good("top", jobs[1].pid, "--once").stdout)
        # Prometheus asks each host, and must not get a rank twice.
        address = next(line.split()[-1] for line in jobs[0].stderr if "metrics at" in line)
        text = urllib.request.urlopen(address, timeout=10).read().decode()
        self.assertEqual(re.findall(r'^brigade_rank_up{rank="(\d)"}', text, re.MULTILINE), ["0", "1"])
        os.kill(pids[3], signal.SIGSTOP)
        self.addCleanup(os.kill, pids[3], signal.SIGCONT)
        said = f"rank 3 (process {pids[3]} on {there['host']}) is stopped"
        self.until(jobs[0], lambda look: said in look["complaints"], said)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
