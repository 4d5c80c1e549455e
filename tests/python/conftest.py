import pytest
from workers import Teams


def pytest_configure(config):
    config.addinivalue_line("markers", "check: needs more than the other tests; `make check` runs it")


@pytest.fixture(scope="session")
def ranks():
    """ranks(size, function, *arguments): every rank of a job of `size` calls the function; their results by rank."""
    teams = Teams()
    yield teams.run
    teams.close()
