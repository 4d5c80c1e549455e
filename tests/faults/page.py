"""Writes the results as a page: the whole of TABLE.md beside this file."""
import datetime
import platform

import table

HEAD = """\
# The table of faults

Written by `make faults`; do not edit it. What it promises, in words: [docs/faults.md](../../docs/faults.md).

The jobs have two ranks: `run` is `brigade run -n 2 brigade train`, `train` is `brigade train -n 2`, and `bare` two ranks without a launcher.
`py-run` and `py-bare` are the same with Python, torch's `DistributedDataParallel` and a hook of Brigade's.
`hosts` and `py-hosts` are two launchers in two network namespaces with a cable between them.
Hooks take turns from case to case, and the time limit is 3 s.
The last column is the longest time from the fault, or from the start where the job was started with it, to the end of all processes.

"""


def _row(fault, results, skipped):
    """Makes one line for all cases of a fault."""
    names = [name for name, _ in fault.variants()]
    own = {case: result for case, result in results.items() if case[0] in names}
    without = [case for case in skipped if case[0] in names]
    values = fault.each and " (" + ", ".join(str(value) or "empty" for value in fault.each) + ")" or ""
    see = fault.see(fault.each[0] if fault.each else None) if callable(fault.see) else fault.see
    bad = sum(not result["good"] for result in own.values())
    seconds = [result["seconds"] for result in own.values() if result["seconds"] is not None]
    verdict = f"{len(own) - bad} of {len(own)}" if own else "needs " + without[0][3] if without else "not run"
    longest = f"{max(seconds):.1f} s" if seconds else "–"
    cells = [fault.name.replace("{}", "…") + values, ", ".join(fault.jobs), str(see), verdict, longest]
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", "\\n") for cell in cells) + " |"


def write(path, results, skipped, options):
    lines = []
    good = sum(result["good"] for result in results.values())
    lines.append(f"{len(table.FAULTS)} rows, {sum(len(fault.variants()) for fault in table.FAULTS)} faults, {len(results)} cases run: "
                 f"{good} as they must be, {len(results) - good} not. "
                 f"By {'parts of ' if options.only or options.results else ''}`make faults` on {datetime.date.today().isoformat()}, {platform.system()} {platform.release()}, "
                 f"{options.jobs} cases at a time.")
    for section, rows in table.SECTIONS.items():
        lines += ["", f"## {section}", "", "| fault | jobs | what must be seen | good | longest |", "| --- | --- | --- | --- | --- |"]
        lines += [_row(fault, results, skipped) for fault in rows]
    path.write_text(HEAD + "\n".join(lines) + "\n")
