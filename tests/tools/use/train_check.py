#!/usr/bin/env python3
"""brigade train, as a user types it. train_check.py BRIGADE [PYTHON]"""
import json
import re
import signal
import subprocess
import sys
import unittest

from command import BRIGADE, PYTHON, ROOT, InFolder, environment, idx, wait_until


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
            # The schedule is that of 40 steps from the beginning: the run was stopped at 23, not planned to end there.
            first = self.interrupted(*words, "--steps", 40, "--checkpoint", folder, "--save-every", 23)
            self.assertNotEqual(first, 0)
            second = self.json_of(*words, "--steps", 40, "--checkpoint", folder, "--resume")
            at = second["resumed_from"]  # Ctrl-C saves once more
            self.assertGreaterEqual(at, 23)
            self.assertEqual(second["losses"], whole["losses"][at:])
            self.assertEqual(second["fingerprints"], whole["fingerprints"])

    def interrupted(self, *words):
        """Ends it as soon as it has saved."""
        folder = self.folder / words[words.index("--checkpoint") + 1]
        process = subprocess.Popen(
            [BRIGADE, *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.folder,
            # It is slow enough to be stopped before it ends.
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
        # After resuming, the metrics go on, and none is there twice.
        self.good("train", "--steps", 9, "--out", "out", "--checkpoint", "run", "--resume")
        lines = [json.loads(line) for line in (self.folder / "out/metrics.jsonl").read_text().splitlines()]
        self.assertEqual([line["step"] for line in lines], list(range(1, 10)))
        sent = [line["bytes_sent"] for line in lines]
        self.assertEqual(sent, sorted(sent))

    def test_images(self):
        for which, count in (("train", 60), ("t10k", 20)):
            labels = [i % 2 for i in range(count)]
            pixels = [255 if (row < 5) == (label == 0) else 0 for label in labels for row in range(10) for _ in range(10)]
            self.write(f"{which}-images-idx3-ubyte", idx([count, 10, 10], pixels))
            self.write(f"{which}-labels-idx1-ubyte", idx([count], labels))
        for model, *extra in (("cnn",), ("cnn", "--sync-batch-norm"), ("mlp",)):
            result = self.json_of("train", "--data", f"idx:{self.folder}", "--model", model, *extra, "--steps", 20, "--batch", 8)
            self.assertEqual(result["test_accuracy"], 1, (model, extra))
            self.assertTrue(result["replicas_identical"])

    def test_bf16_learns_as_well_and_sends_half(self):
        (self.folder / "abc.txt").write_text("abcdefgh" * 500)
        for words in (["--model", "mlp"], ["--model", "cnn"], ["--data", "text:abc.txt"]):
            full, half = (self.json_of("train", *words, "--steps", 60, "--precision", precision) for precision in ("fp32", "bf16"))
            self.assertEqual(half["precision"], "bf16")
            self.assertTrue(half["replicas_identical"])
            self.assertEqual(2 * half["bytes_sent_per_step"], full["bytes_sent_per_step"])
            self.assertNotEqual(half["fingerprints"], full["fingerprints"])
            self.assertGreater(half["test_accuracy"], full["test_accuracy"] - 0.05, words)

    def test_workers_that_train_apart_meet_in_the_end_and_send_little(self):
        result = self.json_of("train", "--model", "mlp", "--steps", 45, "--diloco", 20, "--hook", "int8", "--evaluate-every", 20)
        self.assertTrue(result["replicas_identical"])
        self.assertGreater(result["test_accuracy"], 0.7)
        bytes_sent = [one["bytes_sent"] for one in result["evaluations"]]
        # There are three exchanges, the last one because 45 is no multiple of 20.
        self.assertEqual(bytes_sent, [bytes_sent[0], 2 * bytes_sent[0], 3 * bytes_sent[0]])
        self.assertLess(bytes_sent[0], 0.3 * result["gradient_bytes"])
        seconds = [one["seconds"] for one in result["evaluations"]]
        self.assertEqual(seconds, sorted(seconds))

    def test_diloco_has_an_outer_step_of_its_own(self):
        def parameters(*more):
            words = ["train", "--model", "mlp", "--steps", 8, "--diloco", 4, "--evaluate-every", 0]
            return self.json_of(*words, *more)["fingerprints"]

        usual = parameters()
        self.assertEqual(parameters("--outer-lr", 0.7, "--outer-momentum", 0.9), usual)
        self.assertNotEqual(parameters("--outer-lr", 0.6), usual)
        self.assertNotEqual(parameters("--outer-momentum", 0), usual)

    def test_the_report_has_the_error_of_each_parameter(self):
        def errors(hook):
            self.good("train", "--steps", 8, "--hook", hook, "--out", hook, "--model", "mlp")
            page = (self.folder / hook / "report.html").read_text()
            self.assertIn("Error of the hook, by parameter", page)
            self.assertIn("% at step 2", page)
            self.assertIn("% at step 8", page)
            rows = [re.findall(r"<td>([^<]*)</td>", row) for row in re.findall(r"<tr><td>[^<]*(?:weight|bias)</td>.*?</tr>", page)]
            self.assertGreaterEqual(len(rows), 4)
            return [float(cell) for row in rows for cell in row[3:]]

        self.assertLess(max(errors("allreduce")), 1e-3)  # in per cent: no more than float32's own error
        coded = errors("int8")
        self.assertTrue(all(0.01 < error < 10 for error in coded), coded)

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
        shared = self.json_of("train", "--steps", 2, "--link", "1gbit", "-n", 4, "--hosts", 2, "--hook", "int8")
        self.assertEqual((shared["hosts"], shared["workers"], shared["replicas_identical"]), (2, 4, True))

if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
