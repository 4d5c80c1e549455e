#!/usr/bin/env python3
"""Checks that the docs show the examples' own text, and that the examples run: alone, under brigade run, under torchrun.

check.py BIN PYTHON: BIN is the build's bin folder; PYTHON has torch, or is empty.
"""
import difflib
import os
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN, PYTHON = pathlib.Path(sys.argv[1]), sys.argv[2]
# tests/packaging/readme.py pastes and builds README's own blocks.
DOCS = [str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").glob("*.md"))]
# Matches a fenced block, and the comment on the line before it that names its file.
BLOCK = re.compile(r"(?:<!-- ([^\n]+?) -->\n)?```(cpp|diff)\n(.*?)```", re.DOTALL)


def blocks(kind):
    for doc in DOCS:
        for source, language, text in BLOCK.findall((ROOT / doc).read_text()):
            if language == kind:
                yield doc, source, text


def code_lines(name):
    """The lines without the comment on top, which describes the program."""
    return (ROOT / name).read_text().splitlines()[1:]


def run(*command, limit=120):
    environment = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    environment["OMP_NUM_THREADS"] = "1"
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=limit, env=environment, cwd="/"
    )
    if done.returncode:
        raise AssertionError(f"{command} exited with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def losses(output):
    """The losses of the last epoch, one for each process."""
    return [float(value) for value in re.findall(r"epoch 5: loss ([\d.]+)", output)]


class Docs(unittest.TestCase):
    def test_every_program_in_the_docs_is_an_examples_text(self):
        found = list(blocks("cpp"))
        self.assertGreater(len(found), 0)
        for doc, source, text in found:
            with self.subTest(doc=doc, source=source):
                self.assertTrue(source, f"{doc}: a cpp block has no comment before it that names its file:\n{text}")
                self.assertIn(text, (ROOT / source).read_text(), f"{doc} shows text that is not in {source}")

    def test_the_difference_shown_is_the_difference_there_is(self):
        found = list(blocks("diff"))
        self.assertGreater(len(found), 0)
        for doc, source, text in found:
            with self.subTest(doc=doc):
                before, after = source.split()
                lines = difflib.ndiff(code_lines(before), code_lines(after))
                real = [line[0] + line[2:] for line in lines if line[0] in "+-"]
                shown = [line for line in text.splitlines() if line[:1] in {"+", "-"}]
                self.assertEqual(sorted(shown), sorted(real))

    def test_five_lines_make_the_program_distributed(self):
        before, after = (code_lines(f"examples/{name}.cpp") for name in ("single_process", "ddp"))
        added = [line for line in difflib.ndiff(before, after) if line.startswith("+")]
        self.assertEqual(len(added), 5, added)


class Examples(unittest.TestCase):
    def learned(self, output, processes):
        found = losses(output)
        self.assertEqual(len(found), processes, output)
        self.assertEqual(len(set(found)), 1, f"replicas differ:\n{output}")
        self.assertLess(found[0], 0.3, output)

    def test_the_single_process_program_learns(self):
        self.learned(run(BIN / "examples/single_process"), 1)

    def test_the_distributed_program_learns_alone(self):
        self.learned(run(BIN / "examples/ddp"), 1)

    def test_the_distributed_program_learns_under_brigade_run(self):
        self.learned(run(BIN / "brigade", "run", "-n", 2, BIN / "examples/ddp"), 2)

    def test_a_hook_of_the_programs_own_learns(self):
        self.learned(run(BIN / "brigade", "run", "-n", 2, BIN / "examples/custom_hook", "mixed"), 2)

    def test_an_optimizer_in_the_backward_pass_learns(self):
        program = BIN / "examples/optimizer_in_backward"
        self.learned(run(BIN / "brigade", "run", "-n", 2, program), 2)

    def test_ranks_that_meet_rarely_learn(self):
        for name in ("local_sgd", "diloco"):
            with self.subTest(example=name):
                self.learned(run(BIN / "brigade", "run", "-n", 2, BIN / f"examples/{name}"), 2)

    def test_a_sharded_optimizer_learns(self):
        self.learned(run(BIN / "brigade", "run", "-n", 2, BIN / "examples/zero"), 2)

    def test_a_program_that_may_lose_workers_learns(self):
        self.learned(run(BIN / "brigade", "run", "--elastic", "-n", 2, BIN / "examples/elastic"), 2)

    @unittest.skipUnless(PYTHON, "no Python with torch here")
    def test_the_distributed_program_learns_under_torchrun(self):
        torchrun = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--no-python"]
        self.learned(run(*torchrun, "--nproc-per-node", 2, BIN / "examples/ddp"), 2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
