"""Turns as streams of chunks, built from the records of a log, from its start or after a sequence number."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from sidestream import jsontext
from sidestream.durable.log.jobs import Job, job_in
from sidestream.errors import StoreError
from sidestream.jsontext import JsonObject
from sidestream.protocols.ai_sdk.content import UrlOf
from sidestream.protocols.ai_sdk.message import DONE, Chunk
from sidestream.server.chat.branches import Blobs, Link, TurnEncoder, chunks_of, loaded, message_id_of
from sidestream.server.server import Server
from sidestream.store.records import MessageAdded, Record, RunStarted
from sidestream.text.redaction import redact


async def turn_records(
    server: Server, conversation: str, turn_start: int, run_start: int
) -> AsyncGenerator[list[Record]]:
    """Yield the records of a turn up to the end of the run that started or resumed it with the record `run_start`.

    Keeps the batches in which the records arrived. Ends when the conversation is free for the next run.
    """
    job: Job | None = None
    async with aclosing(server.runs.read(conversation, turn_start - 1)) as batches:
        async for batch in batches:
            records: list[Record] = []
            for record in batch:
                is_next = record.seq > run_start and isinstance(record.body, MessageAdded)
                if isinstance(record.body, RunStarted):
                    last, job = job, job_in(record.body.details)
                    is_next = record.seq > run_start and (last is None or not last.is_continued_by(job))
                if is_next:
                    yield records
                    return
                records.append(await loaded(server, conversation, record))
            yield records


EncoderOf = Callable[[str, str, UrlOf], TurnEncoder]
"""Creates the encoder of a turn from its message id, its run id and a function that maps blobs to URLs."""


async def turn_chunks(
    server: Server,
    conversation: str,
    turn_start: int,
    run_start: int,
    encoder_of: EncoderOf,
    link: Link,
    after: int = 0,
) -> AsyncGenerator[list[Chunk]]:
    """Yield the chunks of a turn in batches.

    With `after`, yields what is open at that record, and then the chunks of the records after it.
    """
    blobs = Blobs(link)
    encoder: TurnEncoder | None = None
    is_joined = after < turn_start
    try:
        async with aclosing(turn_records(server, conversation, turn_start, run_start)) as batches:
            async for records in batches:
                chunks: list[Chunk] = []
                for record in records:
                    blobs.add(record.blobs)
                    if encoder is None:
                        if not isinstance(record.body, RunStarted):
                            continue
                        encoder = encoder_of(message_id_of(record.run), record.run, blobs.url_of)
                    if record.seq > after and not is_joined:
                        is_joined = True
                        chunks += encoder.rejoined()
                    new = chunks_of(record, encoder)
                    if record.seq > after:
                        chunks += new
                if chunks:
                    yield chunks
    except StoreError as error:
        encoder = encoder or encoder_of("", "", blobs.url_of)
        yield encoder.failed(redact(f"the run could not be recorded: {error}"))


async def sse_frames(chunks: AsyncGenerator[list[JsonObject]], end: bytes = DONE) -> AsyncGenerator[bytes]:
    """Encode chunks as server-sent events."""
    async with aclosing(chunks) as batches:
        async for batch in batches:
            if batch:
                yield b"".join(b"data: " + jsontext.dumps(chunk) + b"\n\n" for chunk in batch)
    if end:
        yield end
