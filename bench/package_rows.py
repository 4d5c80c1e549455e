"""Compares the Python package's hooks with torch's own, both on torch's DDP."""

from statistics import median

from teams import BUILD, Team

MB16 = ["layers=4", "width=1024", "batch=8"]
ONE_BUCKET = ["bucket_mb=1000"]
SMALL_BUCKETS = ["layers=100", "width=64", "batch=8", "bucket_mb=0.01"]


def run(report, rounds, ratios, tolerance):
    if not (BUILD / "python/brigade").is_dir():
        report.skip("Python: native hooks on torch's DDP", "the package was not built")
        return
    rows = [("allreduce", 1.0, []), ("fp16", 0.8, []), ("bf16", 0.9, [])]
    rows += [(f"powersgd:rank={rank},start=2", 0.6, ONE_BUCKET) for rank in (1, 2)]
    for hook, target, more in rows:
        arguments = MB16 + more + [f"hook={hook}"]
        with Team("package", 2, arguments) as ours, Team("torch", 2, arguments) as torch:
            for team in (ours, torch):
                team.verify(tolerance(hook))
            buckets = ", 1 bucket" if more else ""
            report.add(f"Python: {hook}, 16 MB{buckets}: backward / torch's hook", target,
                       ratios([lambda: ours.turn(10), lambda: torch.turn(10)], rounds, "backward"))
    overhead_row(report, rounds, tolerance)


def overhead_row(report, rounds, tolerance):
    """What the allreduce hook costs in addition to no hook, ours and torch's, for 100 buckets of 16 kB."""
    hooked = SMALL_BUCKETS + ["hook=allreduce"]
    with (Team("torch", 2, SMALL_BUCKETS) as bare, Team("package", 2, hooked) as ours,
          Team("torch", 2, hooked) as torch):
        for team, hook in ((bare, "none"), (ours, "allreduce"), (torch, "allreduce")):
            team.verify(tolerance(hook))
        times = {team: [] for team in (bare, ours, torch)}
        for number in range(rounds + 1):
            for team in times:
                found = team.turn(20)["backward"]
                if number > 0:
                    times[team].append(1e3 * median(found))
        without, native, python = (median(times[team]) for team in (bare, ours, torch))
        report.add("Python: 100 buckets of 16 kB: the hook's overhead / a Python hook's", 0.5,
                   {"value": (native - without) / (python - without),
                    "note": f"backward {without:.2f} ms without, {native:.2f} native, {python:.2f} Python"})
