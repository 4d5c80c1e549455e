import pytest
from workers import Teams


def pytest_configure(config):
    config.addinivalue_line("markers", "check: needs more than the other tests; `make check` runs it")


@pytest.fixture(scope="session")
def ranks():
    """Gives ranks(size, function, *arguments): every rank of a job of `size` calls the function; returns their results by rank."""
    teams = Teams()
    yield teams.run
    teams.close()
