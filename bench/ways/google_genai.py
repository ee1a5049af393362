"""The google-genai package: typed streams."""

from collections.abc import Callable
from functools import cache
from typing import Any

import httpx2
from google import genai
from google.genai import types

Take = Callable[[str], object]


@cache
def client(url: str) -> genai.Client:
    # As it is, the client allows a hundred connections, too few for a thousand streams.
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    http = httpx2.AsyncClient(limits=limits, timeout=600)
    return genai.Client(api_key="none", http_options=types.HttpOptions(base_url=url, httpx_async_client=http))


async def generate(url: str, take: Take) -> None:
    stream: Any = await client(url).aio.models.generate_content_stream(model="gemini-3-flash", contents="Say it.")
    async for chunk in stream:
        for part in chunk.candidates[0].content.parts or ():
            if part.text and not part.thought:
                take(part.text)


PLAYERS = {"sdk": {"generate": generate}}
PROGRAMS = {}
