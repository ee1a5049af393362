"""Provider capabilities as data, for example `find_provider("google").caps`.

The conformance suite (tests/conformance/suite) tests every provider against its capabilities: a declared capability
must work, and an undeclared one must raise UnsupportedError or behave as `instead` describes.
"""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

TypedOutput = Literal["none", "native", "tool", "instruction", "deferred"]
"""How typed output is produced: by the API's schema support, as the input of a tool call, by instructions that contain
the schema, or by sending the conversation once more without tools."""


class Capabilities(Struct, frozen=True, kw_only=True):
    """The features that an API supports. A model behind it may support fewer. By default, none."""

    streaming: bool = False
    """Whether responses can be streamed."""
    client_tools: bool = False
    """Whether models call client tools."""
    parallel_tool_calls: bool = False
    """Whether a model may make several calls in one step."""
    typed_output: TypedOutput = "none"
    """How the default model produces typed output."""
    typed_output_with_tools: TypedOutput = "none"
    """How the default model produces typed output in a request with tools."""
    images_in: bool = False
    documents_in: bool = False
    """Whether PDFs are accepted as input."""
    audio_in: bool = False
    thinking: bool = False
    """Whether thinking can be shown."""
    server_sessions: bool = False
    """Whether the server keeps the conversation, so that only new messages are sent."""
    background: bool = False
    """Whether responses continue without a connection and can be resumed."""
    embeddings: bool = False
    """Whether there is a default embeddings model."""
    media: bool = False
    """Whether files can be generated on request."""
    list_models: bool = False
    settings: frozenset[str] = frozenset()
    """Portable settings that the provider maps to its own parameters."""
    instead: Mapping[str, str] = {}
    """Behaviour in place of an UnsupportedError, by missing capability."""


INSTEAD: Mapping[str, str] = {
    "streaming": "the response is not streamed",
    "parallel_tool_calls": "one call per step",
    "thinking": "reasoning is not shown",
    "server_sessions": "the whole history is sent each time",
    "background": "the provider's options have no such field",
}
"""Behaviour of all providers, by missing capability. Other missing capabilities raise UnsupportedError."""

UNKNOWN = Capabilities()
"""Capabilities of a provider that does not declare any."""


def declared_caps(provider: object, model: str = "") -> Capabilities:
    """Return the capabilities that a provider object declares for a model.

    A provider with several APIs may declare `model_caps`, a mapping from model-name prefixes to capabilities.
    """
    by_name: Mapping[str, Any] = getattr(provider, "model_caps", {})
    found = next((caps for beginning, caps in by_name.items() if model.startswith(beginning)), None)
    caps = getattr(provider, "caps", None) if found is None else found
    return caps if isinstance(caps, Capabilities) else UNKNOWN


def instead_of(caps: Capabilities, name: str) -> str | None:
    """Return what happens if a capability is missing. None means an UnsupportedError."""
    return caps.instead.get(name) or INSTEAD.get(name)
