"""Engines for tests of servers whose runs are driven by workers: where their store is, and how the engine is named."""

import secrets

import pytest
from msgspec import Struct

PLACES = ("embedded-sqlite", "embedded-postgresql", "temporal")
LEASE_S = 3.0
"""Of workers in processes of their own, which are silent for a second now and then on a busy machine."""


class Place(Struct, frozen=True):
    """A store and an engine, as a command line names them."""

    where: str
    engine: str


def place_of(name: str, request: pytest.FixtureRequest) -> Place:
    """An empty store and its engine."""
    if name == "embedded-postgresql":
        return Place(request.getfixturevalue("postgres_url"), "embedded")
    where = str(request.getfixturevalue("tmp_path") / "talks.db")
    if name == "temporal":
        address = request.getfixturevalue("temporal_server")
        return Place(where, f"temporal://{address}?prefix=test-{secrets.token_hex(6)}&lease={2 * LEASE_S:g}")
    return Place(where, "embedded")
