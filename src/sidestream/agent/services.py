"""The services that an agent gives to locally executed tools, and file indexes for programs and commands."""

import os
from collections.abc import Sequence

from sidestream.agent.models import Models, http_transport
from sidestream.limits import DEFAULT_LIMITS, Limits
from sidestream.portable.index import Index
from sidestream.portable.index.opening import DEFAULT_MODEL, database_at
from sidestream.portable.services import Embeds, Services, StartsRuns
from sidestream.providers.embedding import EmbeddingsResult

EMBEDDER = "local"
"""Default embedding model, which needs no key."""


def services_of(limits: Limits, start_run: StartsRuns) -> Services:
    """Return the services of an agent with these limits. Keys of other models come from the environment."""
    return Services(limits=limits, start_run=start_run, embed=_embedder(limits), transport=http_transport)


def _embedder(limits: Limits) -> Embeds:
    embedders: dict[str, Models] = {}

    async def embed(model: str | None, texts: Sequence[str]) -> EmbeddingsResult:
        from sidestream.agent.embeddings import embed as embed_texts

        name = model or EMBEDDER
        models = embedders.get(name) or embedders.setdefault(name, Models(name, {}))
        return await embed_texts(models.embedder(), models.transport, limits, texts)

    return embed


def open_index(
    where: str | os.PathLike[str] | None = None, *, embeddings: str | None = None, vectors: bool = True
) -> Index:
    """Open a file index at a path or `postgresql://` URL, by default `SIDESTREAM_INDEX` or the user's own index.

    `embeddings` is the model of its vectors, such as `"openai"` or `"openai?embeddings=text-embedding-3-small"`. The
    default model is built in, and needs no key and no network. With `vectors=False` only words are compared.

    ```python
    async with open_index() as index:
        await index.add("docs")
        for passage in await index.search("how are retries configured?"):
            print(passage.filename, passage.page, passage.text)
    ```
    """
    embed_with = _embedder(DEFAULT_LIMITS)

    async def embed(texts: Sequence[str]) -> Sequence[Sequence[float]]:
        return (await embed_with(embeddings, texts)).vectors

    return Index(database_at(where), embed if vectors else None, embeddings or DEFAULT_MODEL)
