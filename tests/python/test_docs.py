"""The examples in docstrings run as they stand."""

import doctest
import importlib
import pkgutil

import brigade


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
