"""Opens file indexes for programs and commands."""

import os
from collections.abc import Sequence

from sidestream.agent.services import services_of
from sidestream.limits import DEFAULT_LIMITS
from sidestream.portable.index import Index
from sidestream.portable.index.opening import DEFAULT_MODEL, database_at


def open_index(
    where: str | os.PathLike[str] | None = None, *, embeddings: str | None = None, vectors: bool = True
) -> Index:
    """Opens an index of files: a path, or a `postgresql://` URL; without one, `SIDESTREAM_INDEX` or the user's own.

    `embeddings` is the model of its vectors, e.g. `"openai"` or `"openai?embeddings=text-embedding-3-small"`; by
    default the embedded one, which needs no key and no network. With `vectors=False` only words are compared.

    ```python
    async with open_index() as index:
        await index.add("docs")
        for passage in await index.search("how are retries configured?"):
            print(passage.filename, passage.page, passage.text)
    ```
    """
    services = services_of(DEFAULT_LIMITS)

    async def embed(texts: Sequence[str]) -> Sequence[Sequence[float]]:
        return (await services.embed(embeddings, texts)).vectors

    return Index(database_at(where), embed if vectors else None, embeddings or DEFAULT_MODEL)
