"""The runs of an owner that are in progress, whichever process drives them."""

from sidestream.durable.log.summaries import logged_run
from sidestream.errors import StoreError
from sidestream.jsontext import JsonObject
from sidestream.server.server import Server
from sidestream.store.records import open_run

HERE = "this server"


async def runs_in_progress(server: Server, owner: str) -> list[JsonObject]:
    """The owner's runs: who drives them, since when, and what they have cost. `chat` is the id in the store."""
    here = {str(entry["chat"]): entry for entry in server.runs.in_progress(owner)}
    found = [*here, *(id for id in await server.runs.driving.running(owner) if id not in here)]
    drivers = await server.runs.driving.drivers(found)
    listed: list[JsonObject] = []
    for id in found:
        entry = await _described(server, id)
        if entry is not None:
            driver = HERE if id in server.runs.live else drivers.get(id)
            listed.append({**entry, **here.get(id, {}), "driver": driver})
    return listed


async def _described(server: Server, conversation: str) -> JsonObject | None:
    rows = await server.store.read(conversation)
    try:
        run = logged_run(conversation, rows) if open_run(rows) is not None else None
    except StoreError:  # A damaged record; `logs check` reports why.
        return None
    job = run.job if run is not None else None
    if run is None or job is None:
        return None
    return {
        "id": run.id,
        "chat": conversation,
        "api": job.api,
        "model": job.agent,
        "cost": run.usage.cost if run.steps else 0.0,
        "readers": server.runs.readers.count(conversation),
        "since": run.began,
        "at": job.at if job.attempt == 0 else None,
    }
