"""A server on loopback that gives one pre-rendered stream to every request."""

import asyncio
import sys

from sidestream.testing.script import encode_events, responses_text

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def render(events: int, *, one_per_chunk: bool) -> list[bytes]:
    """The stream as HTTP chunks: 8 KiB each, or one per event."""
    stream = responses_text([f"word{n} " for n in range(events)])
    frames = [encode_events([event]) for event in stream]
    if one_per_chunk:
        pieces = frames
    else:
        body = b"".join(frames)
        pieces = [body[at : at + 8192] for at in range(0, len(body), 8192)]
    return [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces] + [b"0\r\n\r\n"]


async def serve(events: int) -> None:
    batched, single = render(events, one_per_chunk=False), render(events, one_per_chunk=True)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(
                    (
                        int(line.split(b":")[1])
                        for line in head.lower().split(b"\r\n")
                        if line.startswith(b"content-length")
                    ),
                    0,
                )
                await reader.readexactly(length)
                writer.write(HEAD)
                for piece in single if b"/single/" in head else batched:
                    writer.write(piece)
                    await writer.drain()
                    if b"/single/" in head:
                        await asyncio.sleep(0)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
