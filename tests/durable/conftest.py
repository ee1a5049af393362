"""The engines that the conformance tests run on: one factory each. A new adapter adds its own to `FLEETS`."""

import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from sidestream.durable.engines.embedded import EmbeddedEngine
from sidestream.durable.engines.protocol import Engine
from sidestream.store import open_store
from sidestream.store.protocol import SharedStore
from sidestream.store.wrapped import shared
from support.engines import LEASE_S, PATIENT_S, Fleet

TEMPORAL_LEASES = 2
"""How much longer leases are on Temporal for the same silence of a worker."""


@asynccontextmanager
async def opened_on(
    where: str, make: Callable[[SharedStore, float], Engine], engine: str = "embedded"
) -> AsyncGenerator[Fleet]:
    """Engines on a store, each over a connection of its own; `engine` is what `open_engine` calls them."""
    stores: list[SharedStore] = []
    engines: list[Engine] = []

    def opened() -> SharedStore:
        stores.append(shared(open_store(where)))
        return stores[-1]

    def another(lease_s: float = PATIENT_S) -> Engine:
        engines.append(make(opened(), lease_s))
        return engines[-1]

    try:
        yield Fleet(opened(), another, where, engine)
    finally:
        for made in engines:
            await made.aclose()
        for store in stores:
            await store.aclose()


def embedded(where: str) -> AbstractAsyncContextManager[Fleet]:
    return opened_on(where, lambda store, lease_s: EmbeddedEngine(store, lease_s=lease_s))


@asynccontextmanager
async def temporal(where: str, address: str) -> AsyncGenerator[Fleet]:
    """Engines on Temporal, each over a connection of its own."""
    from sidestream.durable.engines.temporal import TemporalEngine

    store = shared(open_store(where))
    url = f"temporal://{address}?prefix=test-{secrets.token_hex(6)}"
    engines: list[TemporalEngine] = []

    def another(lease_s: float = PATIENT_S * TEMPORAL_LEASES) -> Engine:
        engines.append(TemporalEngine(store, url, lease_s=lease_s))
        return engines[-1]

    try:
        # Longer than on other engines, since a heartbeat is a request.
        yield Fleet(store, another, where, url, 3.0 * TEMPORAL_LEASES, 1.2 * LEASE_S * TEMPORAL_LEASES)
    finally:
        for engine in engines:
            await engine.aclose()
        await store.aclose()


FLEETS: dict[str, tuple[str, Callable[..., AbstractAsyncContextManager[Fleet]]]] = {
    "embedded-sqlite": ("sqlite", embedded),
    "embedded-postgresql": ("postgresql", embedded),
    "temporal": ("sqlite", temporal),
}
"""By name: the database of the store, and what makes engines on the store at a place."""


@pytest.fixture
async def fleet(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Fleet]:
    """An empty store and its engines, of each kind."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    database, opens = FLEETS[request.param]
    where = str(tmp_path / "talks.db") if database == "sqlite" else request.getfixturevalue("postgres_url")
    servers = [request.getfixturevalue("temporal_server")] if opens is temporal else []
    async with opens(where, *servers) as fleet:
        yield fleet


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test on every engine; those of a module with `FLEETS` on these, of one with `DATABASE` on its engines."""
    if "fleet" in metafunc.fixturenames:
        names = getattr(metafunc.module, "FLEETS", FLEETS)
        database = getattr(metafunc.module, "DATABASE", None)
        chosen = [name for name in names if database in (None, FLEETS[name][0])]
        metafunc.parametrize("fleet", chosen, indirect=True)


@pytest.fixture
def store(fleet: Fleet) -> SharedStore:
    return fleet.store


@pytest.fixture
def engine(fleet: Fleet) -> Engine:
    return fleet.another()


@pytest.fixture
def brief(fleet: Fleet) -> Engine:
    """An engine whose claims are soon lost."""
    return fleet.another(lease_s=fleet.lease_s)
