"""test_summary.py LOG: what CTest's LastTest.log says, in a few lines, the failures last.

Counts the cases of all test programs, names those that were skipped, and for every program
that failed shows its failed cases with what they said.
"""
import re
import sys

WIDTH = 200  # of a line
LINES = 12  # of one case
CASES = 10  # of one program

RULE = "-" * 58


def programs(log):
    """(name, how it ended, output) of every test program."""
    for part in re.split(r"^\d+/\d+ Testing: ", log, flags=re.MULTILINE)[1:]:
        name = part.split("\n", 1)[0]
        output = re.search(rf"^{RULE}\n(.*?)(?:<end of output>|\Z)", part, re.DOTALL | re.MULTILINE)
        time = re.search(r"^Test time = +(\S+) sec\n-+\nTest (.*?)\.?$", part, re.MULTILINE)
        ended = f"{time[2].lower()} after {time[1]} s" if time else "did not end"
        if '\nCommand: ""\n' in part:
            ended = "its program is missing"
        yield name, ended, output[1] if output else ""


def googletest_failures(output):
    """(case, its lines) of those that failed, or never came to their end."""
    for part in re.split(r"^\[ RUN      \] ", output, flags=re.MULTILINE)[1:]:
        case, _, rest = part.partition("\n")
        end = re.search(rf"^\[  (?:     OK|SKIPPED|FAILED ) \] {re.escape(case)}", rest, re.MULTILINE)
        if not end:
            yield f"{case} (never ended)", rest.splitlines()[-LINES:]
        elif end[0].startswith("[  FAILED"):
            said = rest[: end.start()]
            first = re.search(r"^.*: Failure$", said, re.MULTILINE)
            yield case, said[first.start() if first else 0 :].splitlines()


def pytest_failures(output):
    """pytest's own short list at its end, and the lines that it marks with E."""
    sections = re.split(r"^_{4,} (?:ERROR at \w+ of )?(.+?) _{4,}$", output, flags=re.MULTILINE)
    said = dict(zip(sections[1::2], sections[2::2]))
    for case in re.findall(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - .*)?$", output, re.MULTILINE):
        body = said.get(case.split("::", 1)[1].replace("::", "."), "")
        yield case, re.findall(r"^(?:E  .*|\S+:\d+: .*)$", body, re.MULTILINE)


def unittest_failures(output):
    sections = re.split(r"^((?:FAIL|ERROR): .+)$", output, flags=re.MULTILINE)
    for case, body in zip(sections[1::2], sections[2::2]):
        text = re.split(r"^={20,}$|^Ran \d+ test", body, flags=re.MULTILINE)[0]
        yield case, [line for line in text.splitlines() if not line.startswith("---")][-LINES:]


def failures(output):
    for find in (googletest_failures, pytest_failures, unittest_failures):
        found = list(find(output))
        if found:
            return found
    return [("the end of its output", output.splitlines()[-2 * LINES :])]


def count(pattern, log):
    return sum(map(int, re.findall(pattern, log, re.MULTILINE)))


def print_counts(log):
    # GoogleTest, then Python's unittest, which counts the others among those it ran, then pytest.
    passed = count(r"^\[  PASSED  \] (\d+) test", log)
    failed = count(r"^\[  FAILED  \] (\d+) test", log)
    skipped = re.findall(r"^\[  SKIPPED \] (\S+)$", log, re.MULTILINE)
    skipped += re.findall(r"^(\w+) \(\S+\) \.\.\. skipped", log, re.MULTILINE)
    bad = count(r"^FAILED \(.*?failures=(\d+)", log) + count(r"^FAILED \(.*?errors=(\d+)", log)
    passed += count(r"^Ran (\d+) test", log) - bad - len(re.findall(r" \.\.\. skipped ", log))
    passed += count(r"^=+ .*?(\d+) passed", log)
    failed += bad + count(r"^=+ .*?(\d+) failed", log)
    pytest_skipped = count(r"^=+ .*?(\d+) skipped", log)
    print(f"\nCases: {passed} passed, {failed} failed, {len(skipped) + pytest_skipped} skipped")
    for name in skipped:
        print(f"  skipped: {name}")


def print_failures(log):
    for name, ended, output in programs(log):
        if ended.startswith("passed"):
            continue
        print(f"\nFAILED: {name} ({ended})")
        found = failures(output)
        for case, lines in found[:CASES]:
            print(f"  {case}"[:WIDTH])
            for line in [line for line in lines if line.strip()][:LINES]:
                print(f"    {line}"[:WIDTH])
        for case, _ in found[CASES : 5 * CASES]:
            print(f"  {case}"[:WIDTH])


if __name__ == "__main__":
    text = open(sys.argv[1], encoding="utf-8", errors="replace").read().replace("\r", "")
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    print_counts(text)
    print_failures(text)
