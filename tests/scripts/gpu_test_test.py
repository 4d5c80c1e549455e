"""scripts/gpu_test says at once that there is no GPU, or which argument it does not know."""
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

    def run_part(self, command):
        """Runs the script's own part() with a command in place of a real one."""
        lines = SCRIPT.read_text().splitlines()
        begin, end = lines.index("part() {"), lines.index("}", lines.index("part() {"))
        setting = [line for line in lines if line.startswith("unsupported=")]
        with tempfile.TemporaryDirectory() as folder:
            script = ["set -euo pipefail", f"out={folder} report={folder}/report.md failed=0 deadline=$((SECONDS + 30))", "wants() { true; }",
                      *setting, *lines[begin:end + 1], f"part check 20 bash -c '{command}'", "exit $failed"]
            return subprocess.run(["bash", "-c", "\n".join(script)], capture_output=True, text=True, timeout=30)

    def test_a_part_that_fails_is_failed_and_one_whose_tool_cannot_work_here_is_not_run(self):
        for command, code, said in [("echo fine", 0, "| check | passed |"), ("echo bad; exit 9", 1, "| check | **failed (9)** |"),
                                    ("echo Error: Device not supported. See the documentation; exit 1", 0, "not run: Device not supported")]:
            result = self.run_part(command)
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertIn(said, result.stdout)

    def test_it_refuses_what_it_does_not_know(self):
        result, left = self.run_in_folder("--fast")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--fast", result.stderr)
        self.assertEqual(left, [])


if __name__ == "__main__":
    unittest.main()
