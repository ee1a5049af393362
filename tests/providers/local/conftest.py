"""The embedded model, one server for all tests of a process."""

from collections.abc import AsyncGenerator, Generator

import pytest

from sidestream.providers.local.server import stop_now
from sidestream.wire.http import close_session


@pytest.fixture(scope="session", autouse=True)
def server_ends() -> Generator[None]:
    """Ends the server that the tests have started."""
    yield
    stop_now()


@pytest.fixture
async def connections() -> AsyncGenerator[None]:
    """Closes the connections of a test to the server."""
    yield
    await close_session()
