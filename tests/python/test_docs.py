"""The examples in docstrings run as they stand."""

import ast
import doctest
import importlib
import pathlib
import pkgutil

import brigade
from brigade import _native


def run_examples():
    results = {}
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
    for found in pkgutil.iter_modules(brigade.__path__, "brigade."):
        if found.name in ("brigade._native", "brigade.__main__"):
            continue
        module = importlib.import_module(found.name)
        failed, tried = doctest.testmod(module, optionflags=flags)
        results[found.name] = (failed, tried)
    results["brigade"] = tuple(doctest.testmod(brigade, optionflags=flags))
    return results


def test_every_example_runs(ranks):
    results = ranks(1, run_examples)[0]
    assert all(failed == 0 for failed, _ in results.values()), results
    assert sum(tried for _, tried in results.values()) > 40, results


DOCS = pathlib.Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "python.md").read_text() + (DOCS / "facts.md").read_text()


def run_page(folder):
    """Runs the Python blocks of the two pages, one after the other, in one namespace, and returns what each rank printed."""
    import contextlib
    import io
    import os
    import re
    from unittest import mock

    os.chdir(folder)
    pieces = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    printed = io.StringIO()
    space = {"__name__": "page"}
    with (mock.patch("torch.distributed.init_process_group"), mock.patch("torch.distributed.destroy_process_group"),
          contextlib.redirect_stdout(printed)):
        for piece in pieces:
            exec(compile(piece, "docs", "exec"), space)
    return len(pieces), printed.getvalue()


def test_every_piece_of_the_pages_runs_and_says_what_they_say(ranks, tmp_path):
    (pieces, printed), (_, nothing) = ranks(2, run_page, str(tmp_path))
    assert pieces == 7 and nothing == ""
    assert "bytes sent for" in printed
    assert (tmp_path / "run/manifest.safetensors").exists()
    # Checks that the page's statements about DDP's mixed precision still hold.
    for kind in ("copies", "views"):
        told, = [line for line in PAGE.replace("`", "\n").splitlines() if line.startswith(f"{kind} [")]
        seen, = [line for line in printed.splitlines() if line.startswith(f"{kind} [")]
        assert told.split(",")[1:] == seen.split(",")[1:]  # the first values come from uninitialized memory
        first = seen.split("[")[1].split(",")[0]
        assert float(first) > 0.1


def test_the_stub_names_what_the_native_module_has():
    tree = ast.parse((pathlib.Path(brigade.__file__).parent / "_native.pyi").read_text())
    told = {node.name: {each.name for each in getattr(node, "body", []) if isinstance(each, ast.FunctionDef)}
            for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    public = {name for name in dir(_native) if not name.startswith("_")}
    assert set(told) == public
    for name, methods in told.items():
        found = getattr(_native, name)
        if isinstance(found, type) and not issubclass(found, BaseException):
            assert {each for each in methods if each.startswith("__")} <= {"__init__", *vars(found)}, name
            have = {each for each in vars(found) if not each.startswith("_")}
            assert {each for each in methods if not each.startswith("__")} == have, name
