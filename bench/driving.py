"""`python -m bench.driving ENGINE STORE URL SLOTS`: a worker as `sidestream worker` runs it; its provider is at URL."""

import asyncio
import sys

from bench.processes import allow_many_files

AGENT = "main"


async def main() -> None:
    from sidestream import Agent, open_store
    from sidestream.durable import WorkerService, open_engine

    engine_name, where, url, slots = sys.argv[1:]
    store = open_store(where)
    engine = open_engine(engine_name, store)
    agent = Agent("openai", base_url=f"{url}/v1", api_key="none")
    service = WorkerService(store, engine, {AGENT: agent}, allows_models=False, slots=int(slots))
    print("ready", flush=True)
    await service.run()


if __name__ == "__main__":
    allow_many_files()
    asyncio.run(main())
