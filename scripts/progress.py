"""progress.py BUILD JOBS TARGET...: runs ninja, with one line that says how far it is and about how long it will take.

On a terminal the line is updated, in a log there is one every half minute. The output of compilers is shown whole.
"""
import os
import re
import select
import subprocess
import sys
import time

GUESS, WEIGHT = 10.0, 4  # seconds of a step before any is done, weighted as so many steps
EVERY = 30.0  # seconds between two lines in a log
STATUS = re.compile(r"^\[(\d+)/(\d+)\] ?(.*)")


def time_text(seconds):
    if seconds < 50:
        return f"{max(10, round(seconds / 10) * 10)} s"
    return f"{round(seconds / 60) or 1} min"


class Progress:
    def __init__(self, jobs):
        self.jobs, self.begun, self.said, self.width = jobs, time.monotonic(), 0.0, 0
        self.done = self.total = 0
        self.terminal = sys.stdout.isatty()

    def time_left(self):
        """An estimate from the steps so far: each took its share of the time that all compilers had."""
        had = (time.monotonic() - self.begun) * self.jobs
        return (GUESS * WEIGHT + had) / (WEIGHT + self.done) * (self.total - self.done) / self.jobs

    def show(self, now=False):
        elapsed = time.monotonic() - self.begun
        if self.total < 2 or not (now or self.terminal or elapsed - self.said >= EVERY):
            return
        self.said = elapsed
        text = f"  building: {self.done} of {self.total} steps, about {time_text(self.time_left())} left"
        if self.terminal:
            sys.stdout.write("\r" + text.ljust(self.width))
            self.width = len(text)
        else:
            sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def clear(self):
        if self.terminal and self.width:
            sys.stdout.write("\r" + " " * self.width + "\r")
            self.width = 0

    def line(self, text):
        status = STATUS.match(text)
        if status:
            if not re.match(r"Re-(checking|running)", status[3]):  # after CMake's own run the steps are counted anew
                self.done, self.total = int(status[1]), int(status[2])
            self.show()
        elif not re.match(r"-- |ninja: (Entering directory|no work)", text):
            self.clear()
            print(text, flush=True)

    def end(self, status):
        self.clear()
        if self.total >= 2 and status == 0:
            seconds = round(time.monotonic() - self.begun)
            print(f"  built: {self.total} steps in {seconds // 60} min {seconds % 60} s", flush=True)


def lines_of(stream, progress):
    """The stream's lines as they come; the display is updated in between."""
    rest = b""
    while True:
        if select.select([stream], [], [], 1.0)[0]:
            data = os.read(stream.fileno(), 65536)
            if not data:
                break
            *whole, rest = (rest + data).split(b"\n")
            yield from (text.decode(errors="replace") for text in whole)
        progress.show()
    if rest:
        yield rest.decode(errors="replace")


def main(build, jobs, *targets):
    command = ["ninja", "-C", build, "-j", jobs, *targets]
    progress = Progress(int(jobs))
    if not os.path.exists(os.path.join(build, ".ninja_log")):  # in a first build; later builds tell when their first step is done
        counted = subprocess.run(["ninja", "-C", build, "-t", "commands", *targets], capture_output=True, text=True)
        progress.total = len(counted.stdout.splitlines())
        progress.show(now=True)
    ninja = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                             env={**os.environ, "NINJA_STATUS": "[%f/%t] "})
    try:
        for text in lines_of(ninja.stdout, progress):
            progress.line(text)
        status = ninja.wait()
    except KeyboardInterrupt:  # ninja gets it too, and ends its compilers
        ninja.wait()
        status = 130
    progress.end(status)
    return status


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="replace")
    sys.exit(main(*sys.argv[1:]))
