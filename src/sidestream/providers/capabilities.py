"""What a provider can do, as data that it carries: `find_provider("google").caps`.

The provider suite (tests/conformance/suite) holds every provider to what it says here, both ways: what is claimed
works, and what is not claimed is refused with an UnsupportedError or done in the way that `instead` tells.
"""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

TypedOutput = Literal["none", "native", "tool", "instruction", "deferred"]
"""How an answer gets its type: the API takes the schema; the answer is the input of a call; the schema is put into the
instructions; or the conversation is sent once more, without tools, for the typed answer."""


class Capabilities(Struct, frozen=True, kw_only=True):
    """What an API takes and gives. One model behind it may take less. The defaults claim nothing."""

    streaming: bool = False
    """Answers come piece by piece."""
    client_tools: bool = False
    """The model calls functions of yours."""
    parallel_tool_calls: bool = False
    """It may call several at once."""
    typed_output: TypedOutput = "none"
    """How the default model gives typed output."""
    typed_output_with_tools: TypedOutput = "none"
    """The same, where it also has tools."""
    images_in: bool = False
    documents_in: bool = False
    """PDFs."""
    audio_in: bool = False
    thinking: bool = False
    """What the model thinks can be shown."""
    server_sessions: bool = False
    """The server keeps the conversation, and only what is new is sent."""
    background: bool = False
    """Answers go on without a connection, and can be taken up again."""
    embeddings: bool = False
    """There is a default model for them."""
    media: bool = False
    """Files are made to order."""
    list_models: bool = False
    instead: Mapping[str, str] = {}
    """Capability that is not there → what happens then, where that is not an UnsupportedError."""


INSTEAD: Mapping[str, str] = {
    "streaming": "the answer comes in one piece",
    "parallel_tool_calls": "one call per step",
    "thinking": "nothing of it is shown",
    "server_sessions": "the whole history is sent each time",
    "background": "its options have no such field",
}
"""What happens at every provider where a capability is not there; all others raise an UnsupportedError."""

UNKNOWN = Capabilities()
"""For a provider that says nothing."""


def caps_of(provider: object, model: str = "") -> Capabilities:
    """What a provider says that it can do, with this model; `UNKNOWN` where it says nothing.

    A provider with several APIs says more in `model_caps`: the beginning of a model's name → what goes for it.
    """
    by_name: Mapping[str, Any] = getattr(provider, "model_caps", {})
    found = next((caps for beginning, caps in by_name.items() if model.startswith(beginning)), None)
    caps = getattr(provider, "caps", None) if found is None else found
    return caps if isinstance(caps, Capabilities) else UNKNOWN


def instead_of(caps: Capabilities, name: str) -> str | None:
    """What happens where a capability is not there; None: an UnsupportedError."""
    return caps.instead.get(name) or INSTEAD.get(name)
