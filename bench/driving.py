"""`python -m bench.driving ENGINE STORE URL SLOTS`: run a worker as `sidestream worker` does, with its provider at URL.

For each line on stdin it prints, as JSON, the delays between the provider's events since the last line and their
records in the log. It exits when its stdin, a pipe, closes.
"""

import asyncio
import json
import re
import sys
import time
from collections.abc import Mapping, Sequence

from bench.lags import lag_figures
from sidestream import Agent, open_store
from sidestream.durable import WorkerService, open_engine
from sidestream.durable.worker.process_tuning import allow_many_streams, keep_what_is_loaded
from sidestream.store.records import Row
from sidestream.store.wrapped import WrappedStore

AGENT = "main"
_STAMP = re.compile(rb"\d{16}")


class TimedStore(WrappedStore):
    """Measures the age of each provider event when its record is stored, except the first of each run."""

    def __init__(self, where: str) -> None:
        super().__init__(open_store(where))
        self.lags_us: list[int] = []
        self._begun: set[str] = set()

    async def append(
        self,
        conversation: str,
        after: int,
        rows: Sequence[Row],
        blobs: Mapping[str, bytes] | None = None,
        *,
        flush: bool = True,
        token: str | None = None,
    ) -> None:
        await super().append(conversation, after, rows, blobs, flush=flush, token=token)
        now_us = time.monotonic_ns() // 1000
        stamps = [stamp for row in rows if row.kind in ("text-delta", "text") for stamp in _STAMP.findall(row.body)]
        self.lags_us += [now_us - int(stamp) for stamp in stamps[conversation not in self._begun :]]
        if stamps:
            self._begun.add(conversation)


async def main() -> None:
    engine_name, where, url, slots = sys.argv[1:]
    store = TimedStore(where)
    engine = open_engine(engine_name, store)
    agent = Agent("openai", base_url=f"{url}/v1", api_key="none")
    service = WorkerService(store, engine, {AGENT: agent}, allows_models=False, slots=int(slots))
    allow_many_streams()
    keep_what_is_loaded()
    working = asyncio.create_task(service.run())
    print("ready", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        lags_us, store.lags_us = store.lags_us, []
        print(json.dumps(lag_figures(lags_us)), flush=True)
    working.cancel()
    await asyncio.wait([working])


if __name__ == "__main__":
    asyncio.run(main())
