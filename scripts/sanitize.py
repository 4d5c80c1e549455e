#!/usr/bin/env python3
"""Runs test programs that were built under sanitizers, in parts side by side, and gathers what the sanitizers say in all processes.

sanitize.py BUILD JOBS LAYER...: BUILD/report/report.md has the result. Ends with 1 when something was found or a test has failed.
"""
import concurrent.futures
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import time

LIMIT = int(os.environ.get("SANITIZE_LIMIT", "400"))  # seconds for one part
PARTS = {"base": 1, "codec": 2, "exchange": 4}  # the parts of each program; others have MOST
MOST = 6
ROOT = pathlib.Path(__file__).resolve().parent.parent


def environment(logs):
    """Reports go to files, so that those of workers are found too."""
    log = f"log_path={logs}/san"
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        # Tests preload a library that makes system calls fail, so the runtime must not insist on being first.
        "ASAN_OPTIONS": f"abort_on_error=0:detect_stack_use_after_return=1:verify_asan_link_order=0:{log}",
        "LSAN_OPTIONS": f"suppressions={ROOT}/cmake/leaks_of_libtorch.txt:print_suppressions=0",
        "UBSAN_OPTIONS": f"print_stacktrace=1:{log}",
        "TSAN_OPTIONS": f"ignore_noninstrumented_modules=1:history_size=4:suppressions={ROOT}/cmake/races_of_libtorch.txt:print_suppressions=0:{log}",
    }


def cases_of(program, env):
    """The names of all cases of a GoogleTest program."""
    text = subprocess.run([program, "--gtest_list_tests"], env=env, capture_output=True, text=True, timeout=120, check=True).stdout
    suite, names = "", []
    for line in text.splitlines():
        word = line.split("#")[0].rstrip()
        if word.startswith("  "):
            names.append(suite + word.strip())
        elif word.endswith("."):
            suite = word
    return names


def run_part(program, cases, env, out):
    """Returns the exit code (None if it took too long), the seconds, and the cases that failed."""
    # ThreadSanitizer's runtime finds its place in memory only if the system does not randomize addresses.
    words = ["setarch", platform.machine(), "-R", str(program), "--gtest_filter=" + ":".join(cases)]
    begin = time.monotonic()
    with open(out, "w") as file:
        process = subprocess.Popen(words, env=env, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            code = process.wait(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = None
    text = pathlib.Path(out).read_text(errors="replace")
    failed = sorted(set(re.findall(r"^\[  FAILED  \] (\S+) \(", text, re.M)))
    if code is None:
        failed += re.findall(r"^\[ RUN      \] (\S+)", text, re.M)[-1:]
    return code, time.monotonic() - begin, len(re.findall(r"^\[       OK \]", text, re.M)), failed


def first_lines(report):
    """The lines that say where a finding is: equal findings have equal ones."""
    own = [line for line in report.splitlines() if re.search(r"SUMMARY|runtime error|ERROR: ", line)]
    return re.sub(r"pid=\d+|==\d+==|0x[0-9a-f]+", "", "\n".join(own[:2]))


def main():
    build, jobs, layers = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2]), sys.argv[3:]
    report = build / "report"
    shutil.rmtree(report, ignore_errors=True)
    report.mkdir()
    env = environment(report)
    work = []
    for layer in layers:
        program = build / "bin" / f"{layer}_test"
        cases = cases_of(program, env)
        parts = min(PARTS.get(layer, MOST), len(cases))
        work += [(layer, program, cases[part::parts], env, report / f"{layer}_{part}.txt") for part in range(parts)]
    lines, wrong = [], False
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        runs = {pool.submit(run_part, *each[1:]): each for each in work}
        for run in concurrent.futures.as_completed(runs):
            layer, _, cases, _, out = runs[run]
            code, seconds, good, failed = run.result()
            wrong |= code != 0
            lines.append(f"| {layer} | {out.name} | {len(cases)} | {good} | {'too long' if code is None else code} | {seconds:.0f} | {' '.join(failed)} |")
            print(lines[-1], flush=True)
    findings = {}
    for file in sorted(report.glob("san.*")):
        text = file.read_text(errors="replace")
        if text.strip():
            findings.setdefault(first_lines(text), []).append(text)
    with open(report / "report.md", "w") as file:
        print(f"# {build.name}: {' '.join(layers)}\n\n| layer | part | cases | passed | exit code | seconds | failed |\n| --- | --- | --- | --- | --- | --- | --- |", file=file)
        print("\n".join(sorted(lines)), file=file)
        print(f"\n{len(findings)} different findings", file=file)
        for where, texts in findings.items():
            print(f"\n## {len(texts)} times: {where}\n\n```\n{texts[0][:6000]}\n```", file=file)
    print(f"{len(findings)} different findings; {'something is wrong' if wrong or findings else 'clean'}: {report}/report.md")
    return 1 if wrong or findings else 0


if __name__ == "__main__":
    sys.exit(main())
