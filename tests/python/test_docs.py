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


def test_the_stub_names_what_the_native_module_has():
    tree = ast.parse((pathlib.Path(brigade.__file__).parent / "_native.pyi").read_text())
    told = {node.name: {each.name for each in getattr(node, "body", []) if isinstance(each, ast.FunctionDef)}
            for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    public = {name for name in dir(_native) if not name.startswith("_")}
    assert set(told) == public
    for name, methods in told.items():
        found = getattr(_native, name)
        if isinstance(found, type) and not issubclass(found, BaseException):
            have = {each for each in vars(found) if not each.startswith("_")}
            assert methods - {"__init__"} == have, name
