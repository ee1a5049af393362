"""The runs of an owner that are in progress, whichever process drives them."""

from sidestream.durable.open_runs import job_of, open_run, steps_of
from sidestream.jsontext import JsonObject
from sidestream.server.core import Server

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
    started = open_run(rows)
    job = job_of(started)
    if started is None or job is None:
        return None
    first = next(row for row in rows if row.run == started.run and row.kind == started.kind)
    return {
        "id": started.run,
        "chat": conversation,
        "api": job.api,
        "model": job.agent,
        "cost": sum(step.usage.cost or 0.0 for step in steps_of(rows, started.run)),
        "readers": server.runs.readers.count(conversation),
        "since": first.time,
        "at": job.at if job.attempt == 0 else None,
    }
