"""From the results to tables: means over seeds, headlines, Markdown."""

from statistics import mean, median, stdev

from tasks import TASKS

TARGET_POINTS = 0.5  # seconds and bytes are counted to all-reduce's mean final accuracy less so many points


def spread(values, scale=1.0, digits=2):
    values = [value * scale for value in values]
    return f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f}" if len(values) > 1 else f"{values[0]:.{digits}f}"


class Cell:
    """The runs of one hook at one place, over the seeds."""

    def __init__(self, rows):
        self.rows = rows
        self.seeds = {row["seed"] for row in rows}
        self.accuracy = mean(row["accuracy"] for row in rows)
        self.loss = mean(row["loss"] for row in rows)
        self.bytes = mean(row["bytes"] for row in rows)
        self.step_ms = median(row["step_ms"] for row in rows)

    def until(self, accuracy, what):
        """What (seconds, bytes_sent) each run had used when it first was as accurate; None if one never was."""
        found = [next((at[what] for at in row["evaluations"] if at["accuracy"] >= accuracy), None) for row in self.rows]
        return None if None in found else mean(found)


def cells(rows):
    """{(task, place): {hook: Cell}}"""
    grouped = {}
    for row in rows:
        grouped.setdefault((row["task"], row["place"]), {}).setdefault(row["hook"], []).append(row)
    return {key: {hook: Cell(of_hook) for hook, of_hook in hooks.items()} for key, hooks in grouped.items()}


def same_seeds(one, other):
    """Both cut down to the seeds that both have."""
    seeds = one.seeds & other.seeds
    return [Cell([row for row in cell.rows if row["seed"] in seeds]) for cell in (one, other)] if seeds else None


def times(value):
    return "" if value is None else f"{value:.1f} ×"


def ratio(above, below):
    return above / below if above is not None and below else None


def line(hook, cell, plain, idle):
    """A row of a table. `plain` is all-reduce's cell, `idle` noop's."""
    target = plain.accuracy - TARGET_POINTS / 100 if plain else None
    seconds = cell.until(target, "seconds") if plain else None
    sent = cell.until(target, "bytes_sent") if plain else None
    pair = same_seeds(cell, plain) if plain else None
    points = f"{100 * (pair[0].accuracy - pair[1].accuracy):+.2f}" if pair and hook != "allreduce" else ""
    exposed = f"{max(0.0, cell.step_ms - idle.step_ms):.1f}" if idle else ""
    columns = [f"`{hook}`", spread([row["accuracy"] for row in cell.rows], 100), points, spread([row["loss"] for row in cell.rows], 1, 3),
               f"{cell.step_ms:.1f}", exposed, f"{cell.bytes / 1e6:.2f}", times(ratio(plain.bytes if plain else None, cell.bytes)),
               "never" if plain and seconds is None else f"{seconds:.1f}" if plain else "",
               times(ratio(plain.until(target, "seconds") if plain else None, seconds)), f"{sent / 1e6:.2f}" if sent is not None else "",
               str(len(cell.seeds))]
    return "| " + " | ".join(columns) + " |"


HEAD = ("| hook | accuracy % | against all-reduce | test loss | step ms | exposed ms | MB sent | fewer bytes | s to target | sooner | MB to target | seeds |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")


def table(hooks):
    plain, idle = hooks.get("allreduce"), hooks.get("noop")
    order = sorted(hooks, key=lambda hook: (hook != "allreduce", -hooks[hook].bytes))
    return "\n".join([HEAD] + [line(hook, hooks[hook], plain, idle) for hook in order])


# ---- headlines: what is asked of a hook at a place, and how far it came

def accuracy_and_bytes(cell, plain, points, fewer):
    lost, less = 100 * (plain.accuracy - cell.accuracy), plain.bytes / cell.bytes
    return lost <= points and less >= fewer, f"{lost:+.2f} points lost, {less:.1f} × fewer bytes"


def loss_and_bytes(cell, plain, percent, fewer):
    more, less = 100 * (cell.loss / plain.loss - 1), plain.bytes / cell.bytes
    return more <= percent and less >= fewer, f"loss {more:+.1f} %, {less:.1f} × fewer bytes"


def sooner(cell, plain, wanted, _):
    target = plain.accuracy - TARGET_POINTS / 100
    times_sooner = ratio(plain.until(target, "seconds"), cell.until(target, "seconds"))
    return (times_sooner or 0) >= wanted, "never there" if times_sooner is None else f"{times_sooner:.1f} × sooner"


HEADLINES = [
    ("int8", "loopback", accuracy_and_bytes, 0.1, 3.9, "within 0.1 point of all-reduce at ≥ 3.9 × fewer bytes"),
    ("int4", "loopback", accuracy_and_bytes, 0.3, 7, "within 0.3 points at ≥ 7 × fewer bytes"),
    ("powersgd:rank=4", "loopback", accuracy_and_bytes, 0.5, 15, "within 0.5 points at ≥ 15 × fewer bytes"),
    ("int8", "100mbit", sooner, 3.5, None, "at all-reduce's accuracy ≥ 3.5 × sooner (on a machine with nothing else to do)"),
    ("diloco=20+", "loopback", loss_and_bytes, 1, 50, "within 1 % of all-reduce's loss at ≥ 50 × fewer bytes"),
    ("diloco=20:lr=1,momentum=0+", "loopback", loss_and_bytes, 1, 50, "the same, where the outer step is the mean"),
]


def judge(hooks, prefix, rule, first, second):
    """(verdict, figures) of a headline; hooks are named by how they begin."""
    name = next((hook for hook in hooks if hook.startswith(prefix)), None)
    pair = same_seeds(hooks[name], hooks["allreduce"]) if name and "allreduce" in hooks else None
    if not pair:
        return "not measured", ""
    reached, text = rule(*pair, first, second)
    return ("reached" if reached else "**MISSED**"), f"{text}, {len(pair[0].seeds)} seeds"


def headlines(rows):
    found, lines = cells(rows), ["| task | headline | verdict | measured |", "| --- | --- | --- | --- |"]
    for task in (name for name in TASKS if any(key[0] == name for key in found)):
        for prefix, place, rule, first, second, text in HEADLINES:
            verdict, figures = judge(found.get((task, place), {}), prefix, rule, first, second)
            lines.append(f"| {task} | `{prefix.rstrip('+')}`, {place}: {text} | {verdict} | {figures} |")
    return "\n".join(lines)


def markdown(rows, machine, command):
    parts = ["# Study: every hook, several seeds", "",
             f"Written by `{command}` on {machine}.", "",
             "Accuracy and loss are of examples that were not trained on, mean ± standard deviation over the seeds. *Against all-reduce*: points, over the",
             "seeds that both have. *Exposed*: the step's time beyond that of `noop`, which sends nothing. *MB sent*: by one rank in the whole training.",
             f"*Target*: all-reduce's mean final accuracy less {TARGET_POINTS} points; *never*: a seed did not get there.", "", "## Headlines", "", headlines(rows)]
    for (task, place), hooks in sorted(cells(rows).items(), key=lambda item: (list(TASKS).index(item[0][0]), item[0][1] != "loopback", item[0][1])):
        example = next(iter(hooks.values())).rows[0]
        parts += ["", f"## {TASKS[task].title}: {place}", "",
                  f"{example['parameters']:,} parameters, {TASKS[task].steps} steps, `brigade train {' '.join(TASKS[task].words('DATA'))}`.", "", table(hooks)]
    return "\n".join(parts) + "\n"
