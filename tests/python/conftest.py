import pytest
from workers import Teams


@pytest.fixture(scope="session")
def ranks():
    """ranks(size, function, *arguments): every rank of a job of `size` calls the function; their results by rank."""
    teams = Teams()
    yield teams.run
    teams.close()
