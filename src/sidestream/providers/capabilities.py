"""What a provider can do, as data that it carries: `find_provider("google").caps`.

The provider suite (tests/conformance/suite) tests every provider against its capabilities, both ways: what is claimed
works, and what is not claimed raises an UnsupportedError or behaves as `instead` describes.
"""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

TypedOutput = Literal["none", "native", "tool", "instruction", "deferred"]
"""How an answer gets its type: the API supports schemas; the answer is the input of a call; the schema is part of the
instructions; or the conversation is sent once more, without tools, for the typed answer."""


class Capabilities(Struct, frozen=True, kw_only=True):
    """What an API supports. A single model behind it may support less. The defaults claim nothing."""

    streaming: bool = False
    """Answers are streamed."""
    client_tools: bool = False
    """The model calls client tools."""
    parallel_tool_calls: bool = False
    """It may call several at once."""
    typed_output: TypedOutput = "none"
    """How the default model returns typed output."""
    typed_output_with_tools: TypedOutput = "none"
    """The same, in a request with tools."""
    images_in: bool = False
    documents_in: bool = False
    """PDFs."""
    audio_in: bool = False
    thinking: bool = False
    """Thinking can be shown."""
    server_sessions: bool = False
    """The server keeps the conversation, and only what is new is sent."""
    background: bool = False
    """Answers continue without a connection, and can be resumed."""
    embeddings: bool = False
    """There is a default model for them."""
    media: bool = False
    """Files are generated on request."""
    list_models: bool = False
    settings: frozenset[str] = frozenset()
    """The portable settings that it maps to its own parameters."""
    instead: Mapping[str, str] = {}
    """Missing capability → what happens instead of an UnsupportedError."""


INSTEAD: Mapping[str, str] = {
    "streaming": "the answer comes in one piece",
    "parallel_tool_calls": "one call per step",
    "thinking": "nothing of it is shown",
    "server_sessions": "the whole history is sent each time",
    "background": "its options have no such field",
}
"""Missing capability → what happens at every provider. All others raise an UnsupportedError."""

UNKNOWN = Capabilities()
"""For a provider that does not declare its capabilities."""


def declared_caps(provider: object, model: str = "") -> Capabilities:
    """The capabilities that a provider object declares for a model.

    A provider with several APIs may declare `model_caps`: prefix of a model's name → its capabilities.
    """
    by_name: Mapping[str, Any] = getattr(provider, "model_caps", {})
    found = next((caps for beginning, caps in by_name.items() if model.startswith(beginning)), None)
    caps = getattr(provider, "caps", None) if found is None else found
    return caps if isinstance(caps, Capabilities) else UNKNOWN


def instead_of(caps: Capabilities, name: str) -> str | None:
    """What happens if a capability is missing; None: an UnsupportedError."""
    return caps.instead.get(name) or INSTEAD.get(name)
