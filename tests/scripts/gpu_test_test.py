"""scripts/gpu_test: says at once that there is no GPU, or what it does not know."""
import os
import pathlib
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "gpu_test"


class GpuTest(unittest.TestCase):
    def run_in_folder(self, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            result = subprocess.run([SCRIPT, *arguments], cwd=folder, capture_output=True, text=True, timeout=30)
            return result, os.listdir(folder)

    @unittest.skipIf(os.path.exists("/dev/nvidiactl"), "there is a GPU")
    def test_without_a_gpu_it_says_so_and_leaves_nothing(self):
        result, left = self.run_in_folder()
        self.assertEqual(result.returncode, 2)
        self.assertIn("no GPU here", result.stderr)
        self.assertEqual(left, [])

    def test_it_refuses_what_it_does_not_know(self):
        result, left = self.run_in_folder("--fast")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--fast", result.stderr)
        self.assertEqual(left, [])


if __name__ == "__main__":
    unittest.main()
