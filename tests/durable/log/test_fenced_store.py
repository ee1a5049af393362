"""Appends under a claim, while the store fails."""

import pytest

from sidestream.durable.log.fenced_store import FencedStore
from sidestream.durable.log.jobs import token_at
from sidestream.errors import FencedError, StoreError
from support.engines import Fleet, talk
from support.stores import rows

FLEETS = ("embedded-sqlite", "embedded-postgresql")


class Failing(FencedStore):
    """Fails so many times, before or after it has written."""

    def __init__(self, inner, failures: int, *, writes: bool) -> None:
        super().__init__(inner, "")
        self.left, self.writes = failures, writes

    async def append(self, conversation, after, rows, blobs=None, *, flush=True, token=None) -> None:
        self.left -= 1
        if self.left < 0 or self.writes:
            await self.shared.append(conversation, after, rows, blobs, flush=flush, token=token)
        if self.left >= 0:
            raise StoreError("the connection broke")


@pytest.mark.parametrize("writes", [False, True])
async def test_append_outlasts_short_failure(fleet: Fleet, writes: bool):
    await talk(fleet.store)
    failing = Failing(fleet.store, 2, writes=writes)
    await FencedStore(failing, token_at(1000.0), patience_s=30.0).append("talk", 1, rows(2, 3))
    assert [row.seq for row in await fleet.store.read("talk")] == [1, 2, 3]


async def test_long_store_failure_ends_claim(fleet: Fleet):
    await talk(fleet.store)
    fenced = FencedStore(Failing(fleet.store, 1000, writes=False), token_at(1000.0), patience_s=0.1)
    with pytest.raises(FencedError):
        await fenced.append("talk", 1, rows(2, 3))
    assert isinstance(fenced.failure, StoreError)
    assert await fleet.store.read("talk") == rows(1, 1)
