"""scripts/test_summary.py names every failed case, whatever wrote it, with what it said."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "test_summary.py"
RULE = "-" * 58


def summary(*programs):
    """The summary of a log as CTest writes it, of (name, output, how it ended)."""
    log = b"Start testing: Nov 15\n" + RULE.encode() + b"\n"
    for number, (name, output, ended) in enumerate(programs, 1):
        head = f'{number}/{len(programs)} Testing: {name}\nCommand: "{name}"\nOutput:\n{RULE}\n'
        tail = f"<end of output>\nTest time =   1.50 sec\n{RULE}\nTest {ended}.\n{RULE}\n\n"
        log += head.encode() + output + tail.encode()
    with tempfile.NamedTemporaryFile() as file:
        file.write(log)
        file.flush()
        return subprocess.run([sys.executable, SCRIPT, file.name], capture_output=True, check=True).stdout.decode()


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


if __name__ == "__main__":
    unittest.main()
