"""test_summary.py LOG [LIST]: summarizes CTest's LastTest.log in a few lines, the failures last.

Counts the cases of all test programs, says why each skipped one was skipped, and for every
program that failed shows its failed cases with their output. Exits with 1 if a case was
skipped for another reason than missing hardware or a missing permission: set-up must install
everything else. LIST names the programs that a full run must have; exits with 1 where the
log lacks one, or has one that the list lacks.
"""
import collections
import re
import sys

WIDTH = 200  # of a line
LINES = 12  # of one case
CASES = 10  # of one program
NAMES = 3  # of the cases skipped for one reason

RULE = "-" * 58

# No set-up can give these: a GPU, and what only root (and not every root) may do.
MAY_BE_MISSING = re.compile(r"\bGPUs?\b|\broot\b|network namespaces?\b|mounted here")


def programs(log):
    """Yields (name, how it ended, output) for every test program."""
    for part in re.split(r"^\d+/\d+ Testing: ", log, flags=re.MULTILINE)[1:]:
        name = part.split("\n", 1)[0]
        output = re.search(rf"^{RULE}\n(.*?)(?:<end of output>|\Z)", part, re.DOTALL | re.MULTILINE)
        time = re.search(r"^Test time = +(\S+) sec\n-+\nTest (.*?)\.?$", part, re.MULTILINE)
        ended = f"{time[2].lower()} after {time[1]} s" if time else "did not end"
        if '\nCommand: ""\n' in part:
            ended = "its program is missing"
        yield name, ended, output[1] if output else ""


def googletest_failures(output):
    """Yields (case, its lines) for those that failed, or never ended."""
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


def skips(output):
    """Yields (reason, case) for every skipped case; pytest names a file instead."""
    for case, body in re.findall(r"^\[ RUN      \] (\S+)\n((?:(?!\[ RUN ).*\n)*?)\[  SKIPPED \] \1", output, re.MULTILINE):
        said = re.search(r"^\S+:\d+: Skipped\n(.*)", body, re.MULTILINE)
        yield said[1].strip() if said else "", case
    for case, _, reason in re.findall(r"^(\w+) \(\S+\)(\n.*)? \.\.\. skipped '(.*)'$", output, re.MULTILINE):
        yield reason, case
    for number, place, reason in re.findall(r"^SKIPPED \[(\d+)\] (\S+?):?(?:\d+:)? (.*)$", output, re.MULTILINE):
        for _ in range(int(number)):
            yield reason, place


def count(pattern, log):
    return sum(map(int, re.findall(pattern, log, re.MULTILINE)))


def print_counts(log, skipped):
    # GoogleTest comes first, then Python's unittest, which counts skipped cases among those it ran, then pytest.
    passed = count(r"^\[  PASSED  \] (\d+) test", log)
    failed = count(r"^\[  FAILED  \] (\d+) test", log)
    bad = count(r"^FAILED \(.*?failures=(\d+)", log) + count(r"^FAILED \(.*?errors=(\d+)", log)
    passed += count(r"^Ran (\d+) test", log) - bad - len(re.findall(r" \.\.\. skipped ", log))
    passed += count(r"^=+ .*?(\d+) passed", log)
    failed += bad + count(r"^=+ .*?(\d+) failed", log)
    print(f"\nCases: {passed} passed, {failed} failed, {sum(map(len, skipped.values()))} skipped")


def print_skips(skipped):
    """Returns whether set-up could not have prevented any of the skips."""
    fine = True
    for reason, cases in sorted(skipped.items()):
        names = ", ".join(list(dict.fromkeys(cases))[:NAMES]) + (", ..." if len(set(cases)) > NAMES else "")
        allowed = MAY_BE_MISSING.search(reason)
        print(f"  {'' if allowed else 'FAILED: '}skipped {len(cases)}: {reason or 'no reason given'} ({names})"[:WIDTH])
        fine = fine and bool(allowed)
    if not fine:
        print("  Only missing hardware or a missing permission may skip a case; scripts/setup installs all else.")
    return fine


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


def print_difference(log, path):
    """Returns whether the log has exactly the programs that the list at `path` names."""
    lines = (line.split("#")[0].strip() for line in open(path, encoding="utf-8"))
    wanted, there = {line for line in lines if line}, {name for name, _, _ in programs(log)}
    for name in sorted(wanted - there):
        print(f"\nFAILED: {name} did not run: a full run must have it ({path})")
    for name in sorted(there - wanted):
        print(f"\nFAILED: {name} is not in the list of what a full run must have: add it to {path}")
    return wanted == there


def main(log_path, list_path=None):
    log = open(log_path, encoding="utf-8", errors="replace").read().replace("\r", "")
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    skipped = collections.defaultdict(list)
    for _, _, output in programs(log):
        for reason, case in skips(output):
            skipped[reason].append(case)
    print_counts(log, skipped)
    fine = print_skips(skipped)
    print_failures(log)
    if list_path and not print_difference(log, list_path):
        fine = False
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
