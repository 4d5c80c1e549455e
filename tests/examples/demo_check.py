#!/usr/bin/env python3
"""brigade demo, as a user runs it. demo_check.py BRIGADE"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

BRIGADE = sys.argv[1]


def demo(*arguments):
    """Runs it in an empty folder: exit code, output, errors, and the JSON it wrote."""
    environment = {key: value for key, value in os.environ.items() if key not in {"LD_LIBRARY_PATH", "OMP_NUM_THREADS"}}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [BRIGADE, "demo", "--json", "out.json", *arguments],
            capture_output=True, text=True, timeout=200, cwd=folder, env=environment,
        )
        written = pathlib.Path(folder, "out.json")
        return done, json.loads(written.read_text()) if written.exists() else None


class Demo(unittest.TestCase):
    def test_two_workers_learn_and_stay_identical(self):
        done, result = demo()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertGreater(result["test_accuracy"], 0.95)
        self.assertEqual(len(result["fingerprints"]), 2)
        self.assertTrue(result["replicas_identical"])
        self.assertGreater(len(result["bucket_bytes"]), 1, "one bucket only: nothing can overlap")
        self.assertEqual(result["threads_per_worker"], max(1, len(os.sched_getaffinity(0)) // 2))
        self.assertIn("bit-identical on all 2 workers", done.stdout)
        self.assertIn("Try next", done.stdout)
        self.assertNotIn("\r", done.stdout, "lines are rewritten on a terminal only")

    def test_the_same_seed_gives_the_same_run(self):
        one, two = (demo("--steps", "30", "--seed", "7")[1] for _ in range(2))
        self.assertEqual(one["losses"], two["losses"])
        self.assertEqual(one["fingerprints"], two["fingerprints"])

    def test_a_network_that_has_not_learned_is_a_failure(self):
        done, result = demo("--steps", "1")
        self.assertEqual(done.returncode, 1)
        self.assertLess(result["test_accuracy"], 0.9)
        self.assertIn("below 0.9", done.stdout + done.stderr)

    def test_a_bad_option_exits_with_2_and_names_it(self):
        done, _ = demo("-n", "0")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--workers", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
