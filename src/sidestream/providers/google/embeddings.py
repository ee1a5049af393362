"""Embedding requests in batches, and the decoding of their vectors. Pure."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from sidestream import jsontext
from sidestream.errors import ProtocolError
from sidestream.jsontext import JsonObject, is_array, is_object, objects
from sidestream.parts import InputUsage, Usage
from sidestream.providers.embedding import EmbeddingCall, EmbeddingsResult, Vector
from sidestream.providers.google.endpoint import model_path
from sidestream.providers.shared.decoding import count_in
from sidestream.providers.shared.encoding import checked_options, given
from sidestream.providers.shared.endpoints import Endpoint
from sidestream.tools.configs import Config
from sidestream.transport.calls import response_object

BATCH = 100
"""Maximum number of texts per request."""


class GoogleEmbeddingOptions(Config, frozen=True, kw_only=True):
    """Options for embeddings."""

    task_type: (
        Literal[
            "RETRIEVAL_QUERY",
            "RETRIEVAL_DOCUMENT",
            "SEMANTIC_SIMILARITY",
            "CLASSIFICATION",
            "CLUSTERING",
            "QUESTION_ANSWERING",
            "FACT_VERIFICATION",
            "CODE_RETRIEVAL_QUERY",
        ]
        | None
    ) = None
    """Purpose of the vectors, which the model optimises for."""
    title: str | None = None
    """Title of a document, for `RETRIEVAL_DOCUMENT`."""
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    """Length of each vector. None means the model's own."""
    extra_body: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fields merged into each text's request."""


_DEFAULT = GoogleEmbeddingOptions()
_WIRE = {"task_type": "taskType", "title": "title", "dimensions": "outputDimensionality"}


def embedding_calls(endpoint: Endpoint, model: str, texts: Sequence[str], options: Any = None) -> list[EmbeddingCall]:
    """Return one call per batch of texts. Raises UnsupportedError if the options are another provider's."""
    chosen = checked_options(options, _DEFAULT, "Google embeddings")
    path = model_path(model)
    fields = given(chosen, _WIRE) | chosen.extra_body
    calls: list[EmbeddingCall] = []
    for start in range(0, len(texts), BATCH):
        batch = texts[start : start + BATCH]
        requests = [{"model": path, "content": {"parts": [{"text": text}]}, **fields} for text in batch]
        call = endpoint.call(f"{path}:batchEmbedContents", jsontext.dumps({"requests": requests}))
        calls.append(EmbeddingCall(call, len(batch)))
    return calls


def decode_embeddings(body: bytes, count: int, model: str) -> EmbeddingsResult:
    """Return the vectors of a batch, in the order of its texts. Raises ProtocolError unless there are `count`."""
    answer = response_object(body)
    vectors = tuple(_vector(entry) for entry in objects(answer.get("embeddings")))
    if len(vectors) != count:
        raise ProtocolError(f"the response has {len(vectors)} vectors for {count} inputs")
    usage = answer.get("usageMetadata")
    tokens = count_in(usage, "promptTokenCount") if is_object(usage) else 0
    return EmbeddingsResult(vectors=vectors, model=model, usage=Usage(input=InputUsage(tokens, tokens)))


def _vector(entry: JsonObject) -> Vector:
    values = entry.get("values")
    if not is_array(values) or not all(isinstance(value, int | float) for value in values):
        raise ProtocolError("an embedding is not a list of numbers")
    try:
        return tuple(float(value) for value in values)
    except OverflowError:
        raise ProtocolError("an embedding contains a number that is too large") from None
