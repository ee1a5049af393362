"""Options, headers and embeddings that OpenAI's two APIs share. Pure."""

import base64
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, field
from msgspec.structs import replace

from sidestream import jsontext
from sidestream.errors import ProtocolError
from sidestream.jsontext import JsonObject, is_array, is_object
from sidestream.parts import InputUsage, Usage
from sidestream.providers.embedding import EmbeddingCall, EmbeddingsResult, Vector
from sidestream.providers.shared.decoding import count_in
from sidestream.providers.shared.encoding import checked_options, given
from sidestream.tools.configs import Config
from sidestream.transport.calls import HttpCall, response_object

MAX_BATCH = 2048
"""Maximum strings in one request."""


class Moderation(Config, frozen=True, kw_only=True):
    """Moderation settings. A moderation model scores or blocks input and output."""

    model: str
    input: Literal["score", "block"] | None = None
    output: Literal["score", "block"] | None = None


FILE_SCHEME = "openai-file"
"""URL scheme of uploaded files, as in `LinkPart("openai-file:file-…")`."""

HEADER_VARIABLES: Mapping[str, str] = {"OpenAI-Organization": "OPENAI_ORG_ID", "OpenAI-Project": "OPENAI_PROJECT_ID"}
"""Environment variables with the default values of headers, by header."""


def request_headers(organization: str | None, project: str | None, extra_headers: Mapping[str, str]) -> dict[str, str]:
    """Build the headers of one request. They override those of the endpoint."""
    headers = {"OpenAI-Organization": organization, "OpenAI-Project": project}
    return {name: value for name, value in headers.items() if value} | {**extra_headers}


def plain_options(options: Config, forms: Mapping[str, Callable[[Any], Any]]) -> JsonObject:
    """Return the options that are set, under their own names, each encoded by its form."""
    return {name: form(value) for name, form in forms.items() if (value := getattr(options, name)) not in (None, ())}


def as_json(value: Any) -> Any:
    """Convert the value of an option to JSON. Returns None for a config without set fields."""
    if isinstance(value, tuple):
        return list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return (given(value) or None) if isinstance(value, Config) else value


def moderation_body(moderation: Moderation) -> JsonObject:
    """Encode moderation settings, in the form that both APIs expect."""
    policy = {side: {"mode": mode} for side, mode in given(moderation, {"input": "input", "output": "output"}).items()}
    return {"model": moderation.model, **({"policy": policy} if policy else {})}


class OpenAIEmbeddingOptions(Config, frozen=True, kw_only=True):
    """Options of an embeddings request."""

    dimensions: Annotated[int, Meta(ge=1)] | None = None
    """Length of each vector. None means the model's own."""
    encoding_format: Literal["float", "base64"] | None = None
    """Encoding of the response. `base64` is a quarter of the size, with the same vectors."""
    user: str | None = None
    """Opaque id of the end user."""
    batch_size: Annotated[int, Meta(ge=1, le=MAX_BATCH)] = 512
    """Strings per request. Requests are also limited in tokens, so long strings need small batches."""
    extra_body: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fields to merge into each request."""


_DEFAULT = OpenAIEmbeddingOptions()
_WIRE = {"dimensions": "dimensions", "encoding_format": "encoding_format", "user": "user"}


def embedding_calls(call: HttpCall, model: str, texts: Sequence[str], options: Any = None) -> list[EmbeddingCall]:
    """Return one call per batch, or none for empty input. Raises UnsupportedError for options of another provider."""
    chosen = checked_options(options, _DEFAULT, "OpenAI embeddings")
    fields = given(chosen, _WIRE) | chosen.extra_body
    size = chosen.batch_size
    batches = [list(texts[start : start + size]) for start in range(0, len(texts), size)]
    return [
        EmbeddingCall(replace(call, body=jsontext.dumps({"model": model, "input": batch, **fields})), len(batch))
        for batch in batches
    ]


def decode_embeddings(body: bytes, count: int, model: str) -> EmbeddingsResult:
    """Parse the vectors of a batch. Raises ProtocolError unless there is one for each input string."""
    answer = response_object(body)
    entries = answer.get("data")
    if not is_array(entries):
        raise ProtocolError("the response has no list of embeddings")
    vectors: dict[int, Vector] = {}
    for position, entry in enumerate(entries):
        if not is_object(entry):
            raise ProtocolError("an embedding is not a JSON object")
        index = entry.get("index", position)
        if type(index) is not int or not 0 <= index < count or index in vectors:
            raise ProtocolError(f"the embedding index {index!r:.40} is repeated or out of range")
        vectors[index] = _vector(entry.get("embedding"))
    if len(vectors) != count:
        raise ProtocolError(f"the response has {len(vectors)} vectors for {count} inputs")
    usage = answer.get("usage")
    return EmbeddingsResult(
        vectors=tuple(vectors[index] for index in range(count)),
        model=model,
        usage=_usage(usage) if is_object(usage) else Usage(),
    )


def _vector(value: Any) -> Vector:
    try:
        if isinstance(value, str):
            data = base64.b64decode(value, validate=True)
            return struct.unpack(f"<{len(data) // 4}f", data)
        if is_array(value) and all(type(number) in (int, float) for number in value):
            return tuple(float(number) for number in value)
    except (ValueError, OverflowError, struct.error):
        pass
    raise ProtocolError("an embedding is not a list of numbers")


def _usage(usage: JsonObject) -> Usage:
    tokens = count_in(usage, "prompt_tokens")
    return Usage(input=InputUsage(tokens, tokens), raw=usage)
