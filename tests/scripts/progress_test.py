"""scripts/progress.py prints a count and an estimate in a few lines, compilers' output in full, and returns ninja's exit status."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "progress.py"


def build(*commands):
    """Runs a build in which each of these shell commands is a step."""
    with tempfile.TemporaryDirectory() as folder:
        rules = "rule run\n  command = $command\n"
        steps = "".join(f"build step{i}: run\n  command = {command}\n" for i, command in enumerate(commands))
        pathlib.Path(folder, "build.ninja").write_text(rules + steps)
        return subprocess.run([sys.executable, SCRIPT, folder, "1", *(f"step{i}" for i in range(len(commands)))],
                              capture_output=True, text=True)


class Progress(unittest.TestCase):
    def test_says_first_how_many_steps_and_about_how_long(self):
        done = build("true", "true", "true")
        self.assertRegex(done.stdout.splitlines()[0], r"^  building: 0 of 3 steps, about 30 s left$")
        self.assertRegex(done.stdout.splitlines()[-1], r"^  built: 3 steps in 0 min \d+ s$")
        self.assertEqual(len(done.stdout.splitlines()), 2, done.stdout)
        self.assertEqual(done.returncode, 0)

    def test_shows_warnings(self):
        done = build("true", "echo 'a.cpp:3: warning: is it?' >&2", "true")
        self.assertIn("\na.cpp:3: warning: is it?\n", done.stdout)

    def test_a_failed_step_is_a_failure_with_its_words(self):
        done = build("true", "echo last words; false")
        self.assertIn("FAILED: step1", done.stdout)
        self.assertIn("last words\n", done.stdout)
        self.assertNotIn("built:", done.stdout)
        self.assertEqual(done.returncode, 1)


if __name__ == "__main__":
    unittest.main()
