#!/usr/bin/env python3
"""Checks the runs, the files and the page of bench/study. study_test.py BRIGADE."""
import pathlib
import sys
import tempfile
import unittest
from dataclasses import replace

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench/study"))
import page  # noqa: E402
from runs import Failed, Results, Run, train  # noqa: E402
from study import split  # noqa: E402
from tasks import TASKS  # noqa: E402

BRIGADE = sys.argv[1]


def row(hook, accuracy, sent, seed=1, place="loopback", seconds=(1.0, 2.0), **more):
    evaluations = [{"accuracy": accuracy - 0.2, "seconds": seconds[0], "bytes_sent": sent / 2, "loss": 1, "step": 1},
                   {"accuracy": accuracy, "seconds": seconds[1], "bytes_sent": sent, "loss": 0.5, "step": 2}]
    return {"key": f"{hook}{seed}{place}", "task": "digits", "hook": hook, "place": place, "seed": seed, "parameters": 7, "step_ms": 3.0,
            "machine": "a machine", "loss": 0.5, "accuracy": accuracy, "bytes": sent, "evaluations": evaluations, "replicas_identical": True, **more}


class Page(unittest.TestCase):
    def verdicts(self, rows):
        return [line.split("|")[2].split(":")[0].strip() for line in page.headlines(rows).splitlines()[2:]]

    def test_headlines_are_reached_missed_or_not_measured(self):
        rows = [row("allreduce", 0.97, 400), row("int8", 0.9692, 100), row("int4", 0.96, 50)]
        self.assertEqual(self.verdicts(rows), ["reached", "**MISSED**", *["not measured"] * 7], page.headlines(rows))
        self.assertIn("**MISSED**", page.headlines([row("allreduce", 0.97, 400), row("int8", 0.97, 110)]), "3.6 x fewer bytes are not 3.9")

    def test_headlines_have_a_column_for_each_task_that_was_trained(self):
        rows = [row("allreduce", 0.97, 400), row("int8", 0.97, 100), row("allreduce", 0.9, 400, task="text"), row("int8", 0.8, 100, task="text")]
        head, _, int8, *_ = page.headlines(rows).splitlines()
        self.assertEqual(head, "| headline | digits | text |")
        self.assertRegex(int8, r"\| reached: .* \| \*\*MISSED\*\*: .* \|$")

    def test_only_seeds_that_both_have_are_compared(self):
        rows = [row("allreduce", 0.97, 400), row("allreduce", 0.99, 400, seed=2), row("int8", 0.97, 100)]
        self.assertIn("+0.00 points", page.headlines(rows))

    def test_time_to_accuracy_counts_to_the_first_evaluation_that_has_it(self):
        rows = [row("allreduce", 0.97, 400, place="100mbit", seconds=(4, 8)), row("int8", 0.97, 100, place="100mbit", seconds=(1, 2))]
        self.assertIn("4.0 × sooner", page.headlines(rows))
        rows[1]["evaluations"][1]["accuracy"] = 0.9
        self.assertIn("never there", page.headlines(rows))

    def test_a_given_target_counts_in_the_tables(self):
        rows = [row("allreduce", 0.97, 400, seconds=(4, 8)), row("int8", 0.97, 100, seconds=(1, 2))]
        self.assertIn("| 2.0 | 4.0 × |", page.markdown(rows, "study"))
        text = page.markdown(rows, "study", 0.75)
        self.assertIn("| 1.0 | 4.0 × |", text)
        self.assertIn("*Target*: an accuracy of 75 %,", text)

    def test_the_strict_target_is_all_reduces_own_end_seed_by_seed(self):
        rows = [row("allreduce", 0.97, 400, seed=seed, place="100mbit", seconds=(4, 8)) for seed in (1, 2)]
        rows += [row("int8", accuracy, 100, seed=seed, place="100mbit", seconds=(1, 2)) for seed, accuracy in ((1, 0.98), (2, 0.969))]
        strict = page.headlines(rows).splitlines()[6]
        self.assertIn("**MISSED**: 4.0 × sooner in the 1 that got there, 2 seeds", strict)
        self.assertIn("| 1 of 2 seeds |  | 2 |", page.markdown(rows, "study"))
        rows[3] = row("int8", 0.97, 100, seed=2, place="100mbit", seconds=(1, 2))
        self.assertIn("reached: 4.0 × sooner, 2 seeds", page.headlines(rows).splitlines()[6])

    def test_an_accuracy_that_was_rounded_when_it_was_kept_is_the_same_accuracy(self):
        exact = 348 / 359
        rows = [row(hook, exact, sent, place="100mbit", seconds=seconds) for hook, sent, seconds in (("allreduce", 400, (4, 8)), ("int8", 100, (1, 2)))]
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "results.jsonl"
            for one in rows:
                Results(path).add(one)
            kept = list(Results(path).rows.values())
        self.assertIn("reached: 4.0 × sooner, 1 seeds", page.headlines(kept).splitlines()[6])

    def test_losses_are_compared_seed_by_seed(self):
        mean = "diloco=15:lr=1,momentum=0+int8"
        rows = [row("allreduce", 0.97, 400, loss=1.0), row("allreduce", 0.97, 400, seed=2, loss=2.0),
                row(mean, 0.97, 4, loss=1.01), row(mean, 0.97, 4, seed=2, loss=2.0)]
        self.assertIn("reached: loss +0.50 ± 0.71 %, 100.0 × fewer bytes, 2 seeds", page.headlines(rows))

    def test_means_have_their_deviation(self):
        text = page.markdown([row("allreduce", 0.96, 400), row("allreduce", 0.98, 400, seed=2)], "study")
        self.assertIn("| `allreduce` | 97.00 ± 1.41 |", text)


class Runs(unittest.TestCase):
    def test_hooks_are_split_where_no_option_follows(self):
        self.assertEqual(split("allreduce,powersgd:rank=4,start=2,diloco=20+int8,int8,diloco=20:lr=1,momentum=0+int8,fp16"),
                         ["allreduce", "powersgd:rank=4,start=2", "diloco=20+int8", "int8", "diloco=20:lr=1,momentum=0+int8", "fp16"])

    def test_places_and_diloco_become_options(self):
        self.assertEqual(Run("digits", "diloco=20+int8", "2x3:1gbit", 4).words(),
                         ["--seed", "4", "--hook", "int8", "--diloco", "20", "-n", "6", "--hosts", "2", "--link", "1gbit"])
        self.assertEqual(Run("digits", "diloco=20:lr=1,momentum=0+int8", "loopback", 4).words(),
                         ["--seed", "4", "--hook", "int8", "--diloco", "20", "--outer-lr", "1", "--outer-momentum", "0", "-n", "2"])

    def test_what_is_done_is_kept_and_a_line_cut_off_is_not(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "out/results.jsonl"
            Results(path).add(row("int8", 0.9, 1))
            with open(path, "a") as file:
                file.write('{"key": "cut')
            self.assertEqual(list(Results(path).rows.values()), [row("int8", 0.9, 1)])
            Results(path).add(row("int4", 0.8, 1))
            self.assertEqual([kept["hook"] for kept in Results(path).rows.values()], ["int8", "int4"], "the cut line took the next one with it")

    def test_a_real_training_gives_a_row_and_a_bad_one_its_reason(self):
        task = replace(TASKS["digits"], steps=20, every=10)
        found = train(BRIGADE, task, Run("digits", "int8", "loopback", 1), pathlib.Path("."))
        self.assertEqual([one["step"] for one in found["evaluations"]], [10, 20])
        self.assertGreater(found["evaluations"][1]["bytes_sent"], found["evaluations"][0]["bytes_sent"])
        self.assertTrue(found["replicas_identical"])
        self.assertIn("digits", page.markdown([found], "study"))
        with self.assertRaisesRegex(Failed, "did you mean 'int8'"):
            train(BRIGADE, task, Run("digits", "int88", "loopback", 1), pathlib.Path("."))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
