"""Makes tables from the results: means over seeds, headlines, Markdown."""

from statistics import mean, median, stdev

from runs import Run
from tasks import TASKS

ROUNDING = 1e-6  # evaluations are kept with six digits
TARGET_POINTS = 0.5  # without a given target, seconds and bytes are counted to all-reduce's mean final accuracy less so many points


def spread(values, scale=1.0, digits=2):
    values = [value * scale for value in values]
    return f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f}" if len(values) > 1 else f"{values[0]:.{digits}f}"


def signed(values):
    return f"{mean(values):+.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


class Cell:
    """The runs of one hook at one place, for all seeds."""

    def __init__(self, rows):
        self.rows = rows
        self.seeds = {row["seed"] for row in rows}
        self.accuracy = mean(row["accuracy"] for row in rows)
        self.loss = mean(row["loss"] for row in rows)
        self.bytes = mean(row["bytes"] for row in rows)
        self.step_ms = median(row["step_ms"] for row in rows)

    def until(self, accuracy, what):
        """The amount of `what` (seconds, bytes_sent) that the runs had used when they first were as accurate; None if one never was."""
        found = [until(row, accuracy, what) for row in self.rows]
        return None if None in found else median(found)


def until(row, accuracy, what):
    """None if the run never was as accurate."""
    return next((at[what] for at in row["evaluations"] if at["accuracy"] >= accuracy - ROUNDING), None)


def cells(rows):
    """{(task, place): {hook: Cell}}"""
    grouped = {}
    for row in rows:
        grouped.setdefault((row["task"], row["place"]), {}).setdefault(row["hook"], []).append(row)
    return {key: {hook: Cell(of_hook) for hook, of_hook in hooks.items()} for key, hooks in grouped.items()}


def same_seeds(one, other):
    """Reduces both to the seeds that both have."""
    seeds = one.seeds & other.seeds
    return [Cell([row for row in cell.rows if row["seed"] in seeds]) for cell in (one, other)] if seeds else None


def differences(cell, plain, difference):
    """Computes difference(run, all-reduce's run with the same seed) for each seed that both have."""
    of_plain = {row["seed"]: row for row in plain.rows}
    return [difference(row, of_plain[row["seed"]]) for row in cell.rows if row["seed"] in of_plain]


def points_gained(cell, plain):
    return differences(cell, plain, lambda row, base: 100 * (row["accuracy"] - base["accuracy"]))


def percent_of_loss(cell, plain):
    return differences(cell, plain, lambda row, base: 100 * (row["loss"] / base["loss"] - 1))


class Strict:
    """The seconds until each run was as accurate as all-reduce with the same seed is at its end."""

    def __init__(self, cell, plain):
        pairs = differences(cell, plain, lambda row, base: (until(row, base["accuracy"], "seconds"), until(base, base["accuracy"], "seconds")))
        there = [pair for pair in pairs if pair[0] is not None]
        self.runs, self.there = len(pairs), len(there)
        self.seconds = median(pair[0] for pair in there) if there else None
        # This counts the seeds that got there.
        self.sooner = ratio(median(pair[1] for pair in there), self.seconds) if there else None
        self.all = self.there == self.runs > 0

    def columns(self):
        if not self.runs:
            return ["", ""]
        return [f"{self.seconds:.1f}", times(self.sooner)] if self.all else [f"{self.there} of {self.runs} seeds", ""]


def times(value):
    return "" if value is None else f"{value:.1f} ×"


def ratio(above, below):
    return above / below if above is not None and below else None


def against(cell, plain, target):
    """The columns that compare with all-reduce, `plain`."""
    if target is None:
        target = plain.accuracy - TARGET_POINTS / 100
    seconds, sent = cell.until(target, "seconds"), cell.until(target, "bytes_sent")
    return [times(ratio(plain.bytes, cell.bytes)), "never" if seconds is None else f"{seconds:.1f}", times(ratio(plain.until(target, "seconds"), seconds)),
            "" if sent is None else f"{sent / 1e6:.2f}", *Strict(cell, plain).columns()]


def line(hook, cell, plain, idle, target):
    """Makes a row of a table. `plain` is all-reduce's cell, `idle` noop's; None if it was not run."""
    compared = plain is not None and hook != "allreduce" and cell.seeds & plain.seeds
    exposed = f"{max(0.0, cell.step_ms - idle.step_ms):.1f}" if idle else ""
    columns = [f"`{hook}`", spread([row["accuracy"] for row in cell.rows], 100), signed(points_gained(cell, plain)) if compared else "",
               spread([row["loss"] for row in cell.rows], 1, 3), signed(percent_of_loss(cell, plain)) if compared else "",
               f"{cell.step_ms:.1f}", exposed, f"{cell.bytes / 1e6:.2f}", *(against(cell, plain, target) if plain else [""] * 6), str(len(cell.seeds))]
    return "| " + " | ".join(columns) + " |"


COLUMNS = ["hook", "accuracy %", "points", "test loss", "loss %", "step ms", "exposed ms", "MB sent", "fewer bytes", "s to target", "sooner",
           "MB to target", "s to strict", "sooner", "seeds"]
HEAD = "| " + " | ".join(COLUMNS) + " |\n" + "| --- " * len(COLUMNS) + "|"


def table(hooks, target):
    plain, idle = hooks.get("allreduce"), hooks.get("noop")
    order = sorted(hooks, key=lambda hook: (hook != "allreduce", -hooks[hook].bytes))
    return "\n".join([HEAD] + [line(hook, hooks[hook], plain, idle, target) for hook in order])


# ---- headlines: the target of a hook at a place, and its result

def accuracy_and_bytes(cell, plain, points, fewer):
    gained, less = points_gained(cell, plain), plain.bytes / cell.bytes
    return -mean(gained) <= points and less >= fewer, f"{signed(gained)} points, {less:.1f} × fewer bytes"


def loss_and_bytes(cell, plain, percent, fewer):
    more, less = percent_of_loss(cell, plain), plain.bytes / cell.bytes
    return mean(more) <= percent and less >= fewer, f"loss {signed(more)} %, {less:.1f} × fewer bytes"


def sooner(cell, plain, wanted, _):
    target = plain.accuracy - TARGET_POINTS / 100
    times_sooner = ratio(plain.until(target, "seconds"), cell.until(target, "seconds"))
    return (times_sooner or 0) >= wanted, "never there" if times_sooner is None else f"{times_sooner:.1f} × sooner"


def sooner_strictly(cell, plain, wanted, _):
    found = Strict(cell, plain)
    text = "never there" if found.sooner is None else f"{found.sooner:.1f} × sooner"
    return found.all and found.sooner >= wanted, text if found.all or not found.there else f"{text} in the {found.there} that got there"


MEANS = ":lr=1,momentum=0"  # DiLoCo with the mean of the parameters as its outer step
HEADLINES = [
    ("int8", "loopback", accuracy_and_bytes, 0.1, 3.9, "within 0.1 point of all-reduce at ≥ 3.9 × fewer bytes"),
    ("int4", "loopback", accuracy_and_bytes, 0.3, 7, "within 0.3 points at ≥ 7 × fewer bytes"),
    ("powersgd:rank=4", "loopback", accuracy_and_bytes, 0.5, 15, "within 0.5 points at ≥ 15 × fewer bytes"),
    ("int8", "100mbit", sooner, 3.5, None, f"at all-reduce's accuracy less {TARGET_POINTS} points ≥ 3.5 × sooner"),
    ("int8", "100mbit", sooner_strictly, 3.5, None, "at all-reduce's own accuracy ≥ 3.5 × sooner"),
    ("diloco=20+int8", "loopback", loss_and_bytes, 1, 50, "within 1 % of all-reduce's loss at ≥ 50 × fewer bytes"),
    *((name, "loopback", loss_and_bytes, 1, 50, "the same, where the outer step is the mean")
      for name in (f"diloco=20{MEANS}+int8", f"diloco=15{MEANS}+int8", f"diloco=10{MEANS}+int4")),
]


def judge(hooks, prefix, rule, first, second):
    """Returns the verdict and the figures of a headline; a hook's name begins with `prefix`."""
    name = next((hook for hook in hooks if hook.startswith(prefix)), None)
    pair = same_seeds(hooks[name], hooks["allreduce"]) if name and "allreduce" in hooks else None
    if not pair:
        return "not measured"
    reached, text = rule(*pair, first, second)
    return f"{'reached' if reached else '**MISSED**'}: {text}, {len(pair[0].seeds)} seeds"


def headlines(rows):
    """Makes a row for each headline, with a column for each task."""
    found = cells(rows)
    tasks = [name for name in TASKS if any(key[0] == name for key in found)]
    lines = ["| headline | " + " | ".join(tasks) + " |", "| --- " * (len(tasks) + 1) + "|"]
    for prefix, place, rule, first, second, text in HEADLINES:
        judged = [judge(found.get((task, place), {}), prefix, rule, first, second) for task in tasks]
        lines.append(f"| `{prefix}`, {place}: {text} | " + " | ".join(judged) + " |")
    return "\n".join(lines)


def legend(target):
    accuracy = f"all-reduce's mean final accuracy less {TARGET_POINTS} points" if target is None else f"an accuracy of {100 * target:g} %"
    return f"""Accuracy and loss are of examples that were not trained on, mean ± standard deviation over the seeds.
*Points*, *loss %*: accuracy and loss against all-reduce's with the same seed, mean ± deviation of the differences.
*Exposed*: the step's time beyond that of `noop`, which sends nothing.
*MB sent*: by one rank in the whole training, also to ranks of its own host.
*Target*: {accuracy}, median over the seeds; *never*: a seed did not get there.
*Strict*: all-reduce's own final accuracy with the same seed, median too; where not all seeds got there, how many did."""


PLACES = {"loopback": "loopback", "100mbit": "100 Mbit/s", "1gbit": "1 Gbit/s", "2x2:1gbit": "two hosts of two ranks each, 1 Gbit/s between them"}


def markdown(rows, command, target=None):
    """Makes a whole page: headlines, then a table for each task and place. `target`: the accuracy to which the tables count seconds and bytes."""
    parts = ["# Study: every hook, several seeds", "", f"Written by `{command}`.", "", "## Headlines", "", headlines(rows), "", "## What the tables say", "",
             legend(target)]
    for (task, place), hooks in sorted(cells(rows).items(), key=lambda item: (list(TASKS).index(item[0][0]), item[0][1] != "loopback", item[0][1])):
        runs = [row for cell in hooks.values() for row in cell.rows]
        words = " ".join(TASKS[task].words("DATA") + Run(task, "", place, 0).place_words())
        parts += ["", f"## {TASKS[task].title}: {PLACES.get(place, place)}", "",
                  f"{runs[0]['parameters']:,} parameters, {TASKS[task].steps} steps, `brigade train {words} --hook HOOK --seed SEED`, "
                  f"on {' and '.join(sorted({row['machine'] for row in runs}))}.", "", table(hooks, target)]
    return "\n".join(parts) + "\n"
