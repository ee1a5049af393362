"""Embeddings: calls for any number of texts, in batches, and vectors in the order of the texts. Pure."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from sidestream import jsontext
from sidestream.configs import Config
from sidestream.errors import ProtocolError
from sidestream.jsontext import JsonObject, is_array, is_object, objects
from sidestream.providers.calls import HttpCall
from sidestream.providers.encoding import given
from sidestream.providers.endpoints import Endpoint, response_object
from sidestream.providers.google.endpoint import model_path
from sidestream.providers.google.values import count_in
from sidestream.stream.parts import InputUsage, Usage

BATCH = 100
"""How many texts the API takes at once."""


class GoogleEmbeddingOptions(Config, frozen=True, kw_only=True):
    """What the vectors are for, and how long they are."""

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
    title: str | None = None
    """Of a document that is to be retrieved."""
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    extra_body: dict[str, Any] = field(default_factory=dict[str, Any])
    """Merged into each text's request."""


class Embedded(Struct, frozen=True):
    """Vectors in the order of the texts, and what they cost."""

    vectors: tuple[tuple[float, ...], ...] = ()
    usage: Usage = Usage()


_DEFAULT = GoogleEmbeddingOptions()
_WIRE = {"task_type": "taskType", "title": "title", "dimensions": "outputDimensionality"}


def embedding_calls(
    endpoint: Endpoint, model: str, texts: Sequence[str], options: GoogleEmbeddingOptions = _DEFAULT
) -> list[HttpCall]:
    """One call per batch; none for no texts."""
    path = model_path(model)
    fields = given(options, _WIRE) | options.extra_body
    calls: list[HttpCall] = []
    for start in range(0, len(texts), BATCH):
        requests = [
            {"model": path, "content": {"parts": [{"text": text}]}, **fields} for text in texts[start : start + BATCH]
        ]
        calls.append(endpoint.call(f"{path}:batchEmbedContents", jsontext.dumps({"requests": requests})))
    return calls


def decode_embeddings(bodies: Sequence[bytes], count: int) -> Embedded:
    """The vectors of all batches. Raises ProtocolError where there is not one for each of the `count` texts."""
    vectors: list[tuple[float, ...]] = []
    tokens = 0
    for body in bodies:
        answer = response_object(body)
        vectors += [_vector(entry) for entry in objects(answer.get("embeddings"))]
        usage = answer.get("usageMetadata")
        tokens += count_in(usage, "promptTokenCount") if is_object(usage) else 0
    if len(vectors) != count:
        raise ProtocolError(f"{count} texts were sent, but {len(vectors)} vectors came back")
    return Embedded(tuple(vectors), Usage(input=InputUsage(tokens, tokens)))


def _vector(entry: JsonObject) -> tuple[float, ...]:
    values = entry.get("values")
    if not is_array(values) or not all(isinstance(value, int | float) for value in values):
        raise ProtocolError("an embedding has no list of numbers")
    try:
        return tuple(float(value) for value in values)
    except OverflowError:
        raise ProtocolError("an embedding has a number that is too large") from None
