#!/usr/bin/env python3
"""Checks that scripts/setup (scripts/needs.txt) installs what the build includes and what sources, tests and scripts call.

Debian's own database has what is not listed: the compiler's headers, and the programs of packages that every Debian has.
"""
import ast
import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).parents[2]
# These headers belong to LibTorch, to the project, to Python, and to optional parts: CUDA's toolkit and NCCL.
OTHERS = re.compile(r"(ATen|c10|torch|pybind11|brigade|gloo|cuda|cooperative_groups)/|torch\.h$|Python\.h$|pybind11|cuda\w*\.(h|cuh)$|nccl\.h$|nvtx3/|cub/")
FROM_COMPILER = re.compile(r"(libc6-dev|linux-libc-dev|libstdc\+\+-\d+-dev|libgcc-\d+-dev)\b")
# These programs are optional: they are used on GPU machines and on hosts of SLURM and other launchers.
ONLY_WHERE_THEY_ARE = {"nvidia-cuda-mps-control", "nvidia-smi", "ccache", "sudo"}
# A newcomer has git and make, because README begins with them. apt-get and dpkg are Debian itself.
GIVEN = {"git", "make"}
SYSTEM_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"


@functools.cache
def needs():
    rows = [line.split() for line in (ROOT / "scripts/needs.txt").read_text().splitlines() if not line.startswith("#")]
    return {kind: {row[1] for row in rows if row[0] == kind} for kind in ("program", "header")}


def sources():
    folders = ("src", "include", "tools", "tests", "bench", "examples", "python", "scripts", "cmake", ".ci")
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*")) if path.is_file() and "__pycache__" not in path.parts]


# ---- headers ---------------------------------------------------------------------------------------------------------------------------------


def headers_in(text):
    return {name for name in re.findall(r"^\s*#\s*include\s*<([^>]+)>", text, re.MULTILINE) if not OTHERS.match(name)}


def headers_of_the_compiler():
    """All headers that Debian installs with g++, as an include line names them."""
    packages = subprocess.run(["dpkg-query", "-W", "-f", "${Package}\n"], capture_output=True, text=True, check=True).stdout.split()
    files = subprocess.run(["dpkg-query", "-L", *filter(FROM_COMPILER.match, packages)], capture_output=True, text=True, check=True).stdout.split("\n")
    folders = re.compile(r"/usr/(?:include/(?:[^/]+-linux-gnu/)?(?:c\+\+/\d+/)?(?:[^/]+-linux-gnu/)?(?:c\+\+/\d+/)?|lib/gcc/[^/]+/\d+/include/)(.+)")
    return {found[1] for path in files if (found := folders.match(path))}


# ---- programs --------------------------------------------------------------------------------------------------------------------------------

KEYWORDS = set("if then else elif fi while until do done esac ! { } [[ ]]".split())
BUILTINS = set(". : [ alias bg break builtin caller cd command continue declare echo eval exec exit export false getopts hash help jobs kill let local "
               "mapfile popd printf pushd pwd read readarray readonly return set shift shopt source test time times trap true type ulimit umask unset "
               "wait".split())


def programs_in_bash(text):
    """The words with which simple commands begin, without functions of the script and of common.sh."""
    functions = set(re.findall(r"^\s*(\w+)\(\)", text + (ROOT / "scripts/common.sh").read_text(), re.MULTILINE))
    text = text.replace("\\\n", " ")
    text = re.sub(r"<<-?\s*['\"]?(\w+)['\"]?([^\n]*)\n.*?\n\s*\1\n", r"\2\n", text, flags=re.DOTALL)  # here-documents
    text = re.sub(r"(^|\s)#.*$", r"\1", text, flags=re.MULTILINE)
    text = re.sub(r"'[^']*'", "Q", text)
    parts = []
    while found := re.search(r"\$\(([^()]*)\)", text):
        parts.append(found[1])
        text = text[: found.start()] + "X" + text[found.end():]
    commands = set()
    for part in [text, *parts]:
        part = re.sub(r'"[^"]*"', "Q", part)
        part = re.sub(r"\[\[.*?\]\]|\w+\+?=\([^)]*\)", " ", part)  # conditions and arrays
        part = re.sub(r"\bcase\b.*?\bin\b", " ", part)
        part = re.sub(r"(^|;;)[^()\n;]*\)(?=\s|$)", r"\1", part, flags=re.MULTILINE)  # the patterns of a case
        for command in re.split(r"\n|;|&&|\|\||\||[()]|&(?!>)", part):
            words = command.split()
            while words and (words[0] in KEYWORDS or words[0] in {"exec", "command"} or re.match(r"\w+\+?=|\d?[<>]", words[0])):
                words = words[1:]
            if words and re.fullmatch(r"[a-z][\w.+-]+", words[0]) and words[0] not in {"for", "case", "select"}:
                commands.add(words[0])
    return commands - BUILTINS - functions


def looks_like_a_command(text):
    return re.match(r"[a-z][\w.+-]+ (-\w|netns |link |addr |route |qdisc |add |del )", text)


def programs_in_python(text):
    """Words that are run, looked up with shutil.which, or first in a list or a text that reads like a command."""
    for node in ast.walk(ast.parse(text)):
        name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        first = node.args[0] if isinstance(node, ast.Call) and node.args else None
        if name.startswith(("subprocess.", "os.exec")) and isinstance(first, ast.List) and first.elts:
            first = first.elts[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str) and "/" not in first.value:
                yield first.value
        elif name == "shutil.which" and isinstance(first, ast.Constant):
            yield first.value
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and looks_like_a_command(node.value):
            yield from known([node.value.split()[0]])
        elif isinstance(node, ast.List) and node.elts and isinstance(node.elts[0], ast.Constant) and isinstance(node.elts[0].value, str):
            yield from known([node.elts[0].value])


def programs_in_cpp(text):
    yield from re.findall(r'\bexeclp?\(\s*"([a-z][\w.+-]*)"', text)
    yield from known(re.findall(r'\{\s*"([a-z][\w.+-]+)"', text))
    yield from known(found.split()[0] for found in re.findall(r'"([a-z][\w.+-]+ [^"\n]*)"', text) if looks_like_a_command(found))


def known(words):
    """The words that are programs here or in the list."""
    listed = needs()["program"]
    return [word for word in words if "/" not in word and (word in listed or shutil.which(word, path=SYSTEM_PATH))]


def programs_in(path):
    if path.suffix not in {"", ".py", ".cpp", ".h"}:
        return []
    text = path.read_text(errors="ignore")
    if path.suffix == ".py" or text.startswith("#!/usr/bin/env python3"):
        return programs_in_python(text)
    if path.suffix in {".cpp", ".h"}:
        return programs_in_cpp(text) if path.relative_to(ROOT).parts[0] != "src" else []  # the library itself calls none
    return programs_in_bash(text) if text.startswith("#!/bin/bash") else []


@functools.cache
def programs_of_every_debian():
    """The programs of packages that no Debian lacks."""
    shown = subprocess.run(["dpkg-query", "-W", "-f", "${Package} ${Priority} ${Essential}\n"], capture_output=True, text=True, check=True).stdout
    packages = [line.split()[0] for line in shown.splitlines() if "required" in line or "yes" in line or line.startswith("apt ")]
    files = subprocess.run(["dpkg-query", "-L", *packages], capture_output=True, text=True, check=True).stdout.splitlines()
    return {os.path.basename(path) for path in files if re.match(r"/(usr/)?s?bin/", path)}


def every_debian_has(program):
    """Also where it is a link to one of them, as awk is to mawk."""
    path = shutil.which(program, path=SYSTEM_PATH)
    return program in programs_of_every_debian() or (path is not None and os.path.basename(os.path.realpath(path)) in programs_of_every_debian())


@unittest.skipUnless(shutil.which("dpkg-query"), "only Debian's database says what comes with the system")
class Needs(unittest.TestCase):
    def test_every_header_that_is_included_is_in_the_list_or_comes_with_the_compiler(self):
        there = headers_of_the_compiler() | needs()["header"]
        families = {name.split("/")[0] for name in needs()["header"] if "/" in name and not name.startswith(("gtest/", "gmock/"))}
        missing = [f"{path.relative_to(ROOT)}: <{name}>" for path in sources() if path.suffix in {".h", ".cpp", ".cu", ".cuh"}
                   for name in sorted(headers_in(path.read_text())) if name not in there and name.split("/")[0] not in families]
        self.assertEqual(missing, [], "scripts/needs.txt does not name these")

    def test_every_program_that_is_called_is_in_the_list_or_in_every_debian(self):
        there = needs()["program"] | ONLY_WHERE_THEY_ARE | GIVEN
        callers = {}
        for path in sources():
            for name in programs_in(path):
                callers.setdefault(name, path.relative_to(ROOT))
        self.assertIn("ninja", callers)
        missing = [f"{path}: {name}" for name, path in sorted(callers.items()) if name not in there and not every_debian_has(name)]
        self.assertEqual(missing, [], "scripts/needs.txt does not name these")

    def test_what_is_in_the_list_is_used(self):
        included = {name for path in sources() if path.suffix in {".h", ".cpp"} for name in headers_in(path.read_text())}
        self.assertEqual(needs()["header"] - included, set())


class Finds(unittest.TestCase):
    def test_a_header_of_a_library_and_none_of_libtorchs(self):
        self.assertEqual(headers_in("#include <zlib.h>\n#include <ATen/ATen.h>\n#include \"own.h\"\n#  include <gmock/gmock.h>\n"), {"zlib.h", "gmock/gmock.h"})

    def test_the_programs_that_a_script_calls(self):
        script = "if ! jq . <<<x; then\n  FOO=1 rsync -a | tee 'not this'\nfi\nnumber=$(bc <<<1) # dc\nown() { :; }\nown\ncat <<EOF\ncurl\nEOF\n"
        self.assertEqual(programs_in_bash(script), {"jq", "rsync", "tee", "bc", "cat"})

    def test_the_programs_that_python_and_cpp_call(self):
        self.assertEqual(set(programs_in_python("subprocess.run(['jq', '.'])\nshutil.which('rsync')\nf(['ip', 'link'])\nx = 'tc -V'\ny = ['fp16']")),
                         {"jq", "rsync", "ip", "tc"})
        self.assertEqual(set(programs_in_cpp('execlp("jq", "jq"); run({"ip", "link"}); run("tc -V"); say("link is up");')), {"jq", "ip", "tc"})


if __name__ == "__main__":
    sys.exit(unittest.main())
