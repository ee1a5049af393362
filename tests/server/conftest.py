"""Fixtures of the tests of servers."""

import pytest

from server.engine_places import PLACES, Place, place_of


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Place:
    """A store and an engine, of each kind."""
    return place_of(request.param, request)
