"""scripts/test_summary.py names every failed case with its output, whatever wrote it."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "test_summary.py"
RULE = "-" * 58


def run(*programs, wanted=None):
    """Runs the script on a log as CTest writes it, of (name, output, how it ended)."""
    log = b"Start testing: Nov 15\n" + RULE.encode() + b"\n"
    for number, (name, output, ended) in enumerate(programs, 1):
        head = f'{number}/{len(programs)} Testing: {name}\nCommand: "{name}"\nOutput:\n{RULE}\n'
        tail = f"<end of output>\nTest time =   1.50 sec\n{RULE}\nTest {ended}.\n{RULE}\n\n"
        log += head.encode() + output + tail.encode()
    with tempfile.TemporaryDirectory() as folder:
        files = [pathlib.Path(folder, "log")]
        files[0].write_bytes(log)
        if wanted is not None:
            files.append(pathlib.Path(folder, "list"))
            files[1].write_text(wanted)
        return subprocess.run([sys.executable, SCRIPT, *files], capture_output=True)


def summary(*programs):
    done = run(*programs)
    assert done.returncode == 0, done.stdout
    return done.stdout.decode()


GOOGLETEST = b"""[ RUN      ] S.Good
[       OK ] S.Good (1 ms)
[ RUN      ] S.Bad/3
\xff noise
/x_test.cpp:4: Failure
Value of: is_empty
[  FAILED  ] S.Bad/3, where GetParam() = 4 (6 ms)
[  PASSED  ] 1 test.
[  FAILED  ] 1 test, listed below:
[  FAILED  ] S.Bad/3, where GetParam() = 4
"""


class Summary(unittest.TestCase):
    def test_a_program_that_passed_is_not_named(self):
        text = summary(("good", b"[  PASSED  ] 3 tests.\n", "Passed"))
        self.assertIn("Cases: 3 passed, 0 failed, 0 skipped", text)
        self.assertNotIn("good", text)

    def test_a_googletest_case_with_its_assertion(self):
        text = summary(("launch", GOOGLETEST, "Failed"), ("other", b"", "Passed"))
        self.assertTrue(text.endswith("\nFAILED: launch (failed after 1.50 s)\n  S.Bad/3\n"
                                      "    /x_test.cpp:4: Failure\n    Value of: is_empty\n"), text)

    def test_a_case_that_never_ended(self):
        text = summary(("launch", b"[ RUN      ] S.Boom\nterminate called\n", "Failed"))
        self.assertIn("  S.Boom (never ended)\n    terminate called\n", text)

    def test_a_pytest_case(self):
        output = (b"____ TestX.test_bad ____\n\n>   assert a == 4\nE   assert 3 == 4\n\nt.py:6: AssertionError\n"
                  b"=== short test summary info ===\nFAILED t.py::TestX::test_bad - assert 3 == 4\n")
        self.assertIn("  t.py::TestX::test_bad\n    E   assert 3 == 4\n    t.py:6: AssertionError\n",
                      summary(("python", output, "Failed")))

    def test_any_other_program_by_the_end_of_its_output(self):
        self.assertIn("    last words\n", summary(("check", b"words\nlast words\n", "Failed")))


SKIPPED = b"""[ RUN      ] S.Skipped
/x_test.cpp:4: Skipped
%s

[  SKIPPED ] S.Skipped (0 ms)
[  PASSED  ] 0 tests.
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] S.Skipped
"""


class Skipped(unittest.TestCase):
    def test_each_reason_is_said_with_its_cases(self):
        pytest = b"SKIPPED [2] tests/python/test_cuda.py:13: no GPU\n=== 3 passed, 2 skipped in 1 s ===\n"
        unit = b"test_x (m.T.test_x) ... skipped 'only root can make a disk'\ntest_y (m.T.test_y)\nSays. ... skipped 'needs root'\nRan 3 tests in 1 s\n"
        text = summary(("a", SKIPPED % b"no NVIDIA GPU on this machine", "Passed"), ("b", pytest, "Passed"), ("c", unit, "Passed"))
        self.assertIn("Cases: 4 passed, 0 failed, 5 skipped", text)
        self.assertIn("  skipped 1: no NVIDIA GPU on this machine (S.Skipped)\n", text)
        self.assertIn("  skipped 2: no GPU (tests/python/test_cuda.py)\n", text)
        self.assertIn("  skipped 1: only root can make a disk (test_x)\n", text)
        self.assertIn("  skipped 1: needs root (test_y)\n", text)

    def test_for_want_of_what_can_be_installed_is_a_failure(self):
        for program in ((b"no Python with torch", SKIPPED % b"no Python with torch"),
                        (b"no reason given", b"[ RUN      ] S.T\n[  SKIPPED ] S.T (0 ms)\n"),
                        (b"could not import 'safetensors'", b"SKIPPED [1] t.py:87: could not import 'safetensors'\n"),
                        (b"no tool", b"test_x (m.T.test_x) ... skipped 'no tool'\n")):
            done = run(("a", program[1], "Passed"))
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn(b"FAILED: skipped 1: " + program[0], done.stdout)


class FullRun(unittest.TestCase):
    def test_has_exactly_the_programs_of_the_list(self):
        self.assertEqual(run(("a", b"", "Passed"), ("b", b"", "Passed"), wanted="# all\na\n\nb # why\n").returncode, 0)

    def test_lacks_one(self):
        done = run(("a", b"", "Passed"), wanted="a\npython\n")
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"FAILED: python did not run", done.stdout)

    def test_has_one_that_nobody_listed(self):
        done = run(("a", b"", "Passed"), ("new", b"", "Passed"), wanted="a\n")
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"FAILED: new is not in the list", done.stdout)


if __name__ == "__main__":
    unittest.main()
