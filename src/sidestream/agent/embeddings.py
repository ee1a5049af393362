"""Embeddings of texts as vectors, in batches, and the similarity of two vectors."""

import asyncio
import math
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Any

from sidestream.errors import ConfigurationError, ProtocolError, RunError, UnsupportedError
from sidestream.limits import Limits
from sidestream.parts import Usage
from sidestream.providers.embedding import EmbeddingCall, EmbeddingsResult, EmbedsText, Vector
from sidestream.providers.protocol import ChatModel, Provider, Settings
from sidestream.providers.registry import ModelString
from sidestream.run.run_log import log_embedded, log_refused, log_sent
from sidestream.transport.calls import Transport

MAX_PARALLEL = 4
"""Maximum concurrent batches."""
_PURPOSE = "embeddings"


def embeddings_model(chosen: ModelString, provider: Provider, settings: Settings) -> ChatModel:
    """Create the model that a model string names for embeddings, else the provider's default.

    Raises UnsupportedError if there is none.
    """
    name = chosen.models.get("embeddings") or provider.default_models.get("embeddings")
    if not name:
        raise UnsupportedError(f"{provider.name} does not support embeddings")
    return provider.chat_model(name, settings)


async def embed(
    model: ChatModel, transport: Transport, limits: Limits, texts: Iterable[str], options: Any = None
) -> EmbeddingsResult:
    """Return the vectors of the texts, in their order. If a batch fails, its error is raised."""
    if not isinstance(model, EmbedsText):
        raise UnsupportedError(f"{model.provider} does not support embeddings")
    calls = model.embedding_calls(_checked_texts(texts), options)
    gate, began_s = asyncio.Semaphore(MAX_PARALLEL), monotonic()

    async def fetch(batch: EmbeddingCall) -> EmbeddingsResult:
        async with gate:
            try:
                exchange = await transport.open(batch.call, limits)
            except RunError as error:
                log_refused(_PURPOSE, error)
                raise
            log_sent(model, _PURPOSE, exchange)
            try:
                body = await exchange.body()
            finally:
                await exchange.aclose()
        return model.read_embeddings(body, batch.count)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(fetch(batch)) for batch in calls]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    batches = [task.result() for task in tasks]
    vectors = tuple(vector for batch in batches for vector in batch.vectors)
    _check(vectors)
    used = sum((batch.usage for batch in batches), start=Usage())
    result = EmbeddingsResult(vectors=vectors, model=model.name, usage=used)
    log_embedded(result, len(batches), monotonic() - began_s)
    return result


def cosine_similarity(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the cosine of the angle between two vectors.

    It is 1 for the same direction, 0 for orthogonal vectors, and -1 for opposite directions.

    ```python
    print(cosine_similarity([1, 0], [1, 1]))  # 0.7071067811865475
    ```

    Raises ConfigurationError if the vectors differ in length, or one is zero or not finite.
    """
    if len(a) != len(b):
        raise ConfigurationError(
            f"vectors must have the same length, not {len(a)} and {len(b)}; embed both with the same model and size"
        )
    lengths = math.hypot(*a), math.hypot(*b)
    if not all(lengths):
        raise ConfigurationError("cannot compare a vector of zeros")
    if not all(map(math.isfinite, lengths)):
        raise ConfigurationError("cannot compare a vector with non-finite values")
    cosine = sum((x / lengths[0]) * (y / lengths[1]) for x, y in zip(a, b, strict=True))
    return max(-1.0, min(1.0, cosine))


def _checked_texts(texts: Iterable[str]) -> list[str]:
    # A string is also a sequence of strings, one per letter.
    if isinstance(texts, str):
        raise ConfigurationError("texts must be a list of strings; use embed_query for one string")
    found: list[Any] = list(texts)
    for index, text in enumerate(found):
        if not isinstance(text, str):
            raise ConfigurationError(f"texts must contain only strings, not {type(text).__name__} (index {index})")
    return found


def _check(vectors: Sequence[Vector]) -> None:
    if len({len(vector) for vector in vectors}) > 1 or not all(vectors):
        raise ProtocolError("the vectors are empty or differ in length")
    # A sum is finite only if its terms are.
    if not all(math.isfinite(sum(vector)) for vector in vectors):
        raise ProtocolError("a vector contains a non-finite value")
