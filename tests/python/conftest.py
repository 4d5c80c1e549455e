import os

import pytest
from workers import Teams

# torch's store asks the name server what 127.0.0.1 is called: one that is slow to answer must not slow the tests.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")


@pytest.fixture(scope="session")
def ranks():
    """ranks(size, function, *arguments): every rank of a job of `size` calls the function; their results by rank."""
    teams = Teams()
    yield teams.run
    teams.close()
