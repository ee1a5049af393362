"""What a history is made of: messages and their parts, and their JSON form.

Values are frozen. Metadata holds JSON values only and is never sent to a model; keys that begin with `_` belong to the
provider that wrote them, and `_provenance` to the run (`messages/provenance.py`).
"""

from collections.abc import Collection, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct

from sidestream import jsontext
from sidestream.errors import ConfigurationError
from sidestream.jsontext import is_array, is_object
from sidestream.text.reprs import ShortRepr

if TYPE_CHECKING:
    from pathlib import Path

PRIVATE_KEYS = "_*"
"""In a list of metadata keys: every key that begins with `_`."""
Role = Literal["system", "user", "model", "tool"]
Numbers = tuple[int, int]
"""The first and the last of several numbers."""


class _MessagePart(ShortRepr, Struct, frozen=True, tag_field="type", omit_defaults=True, gc=False):
    pass


class TextPart(_MessagePart, frozen=True, tag="text"):
    """Text. `id` is the block of the stream it came from, if it came from one."""

    text: str
    id: str | None = None


class ThinkingPart(_MessagePart, frozen=True, tag="thinking"):
    """Reasoning that the model showed. For people to read: what the provider wants back is in the message's session."""

    text: str
    id: str | None = None


class DataPart(_MessagePart, frozen=True, tag="data"):
    """Bytes: an image, a document, a file that a tool made."""

    bytes: bytes
    mime_type: str
    name: str | None = None

    def save(self, path: "str | Path") -> "Path":
        """Writes the bytes to this path, or into this folder under a safe name; returns their path. See `File.save`."""
        from sidestream.files.saving import save

        return save(self.bytes, path, self.name, self.mime_type)

    def _repr_html_(self) -> str:
        from sidestream.text.html import file_html

        return file_html(self.bytes, self.mime_type, self.name)


class LinkPart(_MessagePart, frozen=True, tag="link"):
    """Something that lives at a URL."""

    url: str
    mime_type: str | None = None
    name: str | None = None


class ToolCallPart(_MessagePart, frozen=True, tag="tool-call"):
    """The model calls a client tool. `input_text` is set where the model's text was no JSON object."""

    id: str
    name: str
    input: Any = None
    input_text: str | None = None


class ToolResultPart(_MessagePart, frozen=True, tag="tool-result"):
    """What a client tool gave back: a JSON value."""

    id: str
    name: str
    result: Any
    is_error: bool = False
    acknowledged: bool = False
    """True: a person has seen the safety checks of the call and approved it, which the provider learns."""
    passages: Numbers | None = None
    """The numbers of the passages that an answer may cite. None means that it holds none, whatever its shape:
    only the run sets this, for the results of a source that it ran itself."""


class ApprovalPart(_MessagePart, frozen=True, tag="approval"):
    """A person's decision on a call that the provider wants to make, e.g. of a remote MCP server."""

    id: str
    """The id of the approval request."""
    is_approved: bool
    reason: str | None = None


ToolPart = ToolCallPart | ToolResultPart
"""A call of a tool, or its result."""
NOT_EXECUTED = "This call was not executed."
"""What stands in for a result that nobody gave."""

Content = TextPart | DataPart | LinkPart
"""What a tool can show a model."""
MessagePart = TextPart | ThinkingPart | DataPart | LinkPart | ToolCallPart | ToolResultPart | ApprovalPart
"""What a message consists of."""


class ChatMessage(ShortRepr, Struct, frozen=True, omit_defaults=True, weakref=True):
    """One message of a history."""

    role: Role
    parts: tuple[MessagePart, ...] = ()
    metadata: dict[str, Any] = {}

    @classmethod
    def system(cls, text: str) -> "ChatMessage":
        """A message that instructs the model."""
        return cls("system", (TextPart(text),))

    @classmethod
    def user(cls, *content: str | MessagePart) -> "ChatMessage":
        """A message from the user; strings become text parts."""
        return cls("user", tuple(TextPart(c) if isinstance(c, str) else c for c in content))

    @classmethod
    def model(cls, *content: str | MessagePart, metadata: dict[str, Any] | None = None) -> "ChatMessage":
        """A message from the model; strings become text parts. `metadata` is what was known of it besides its parts."""
        return cls("model", tuple(TextPart(c) if isinstance(c, str) else c for c in content), metadata or {})

    @property
    def text(self) -> str:
        """All text parts, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def tool_calls(self) -> tuple[ToolCallPart, ...]:
        """The client tool calls in this message."""
        return tuple(part for part in self.parts if isinstance(part, ToolCallPart))


def only_text(message: ChatMessage) -> str | None:
    """The text of a message that is one text and nothing else, as most of a long history are; None for any other."""
    parts = message.parts
    return part.text if len(parts) == 1 and type(part := parts[0]) is TextPart and not message.metadata else None


@cache
def _decoder() -> msgspec.json.Decoder[list[ChatMessage]]:
    return msgspec.json.Decoder(list[ChatMessage])


def messages_to_json(messages: Iterable[ChatMessage]) -> str:
    """A history as JSON text; bytes are base64.

    ```python
    result = await agent.send("My name is Ada.")
    saved = messages_to_json(result.messages)
    result = await agent.send("What is my name?", history=messages_from_json(saved))
    ```
    """
    return jsontext.dumps(list(messages)).decode()


def messages_from_json(text: str | bytes) -> list[ChatMessage]:
    """The history that `messages_to_json` wrote."""
    try:
        return _decoder().decode(text)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        return msgspec.convert(jsontext.loads(text), list[ChatMessage])


def strip_metadata(
    messages: Sequence[ChatMessage], *, keep: Collection[str] = (), drop: Collection[str] = ()
) -> list[ChatMessage]:
    """The same history without metadata, for small histories.

    Private `_` keys stay, so that sessions continue, and so do those in `keep`; those in `drop` go. `"_*"` in `drop`
    means every private key.
    """
    for name, keys in (("keep", keep), ("drop", drop)):
        if isinstance(keys, str):
            raise ConfigurationError(f"{name} is a list of keys; write strip_metadata(messages, {name}=[{keys!r}])")
    drops_private = PRIVATE_KEYS in drop

    def stays(key: str) -> bool:
        if key in drop:
            return False
        return key in keep or (key.startswith("_") and not drops_private)

    return [
        msgspec.structs.replace(message, metadata=kept)
        if len(kept := {key: value for key, value in message.metadata.items() if stays(key)}) < len(message.metadata)
        else message
        for message in messages
    ]


BROWSER_STATE = "browser_state"
"""The `type` of a value beside the content of a result: what only one provider reads (`actions.BrowserState`)."""


def content_of_result(result: object) -> tuple[Content, ...]:
    """The texts and files of a tool's result that is made of them, as JSON; empty for any other result."""
    if not is_array(result) or not result:
        return ()
    content = [entry for entry in result if not (is_object(entry) and entry.get("type") == BROWSER_STATE)]
    try:
        parts = msgspec.convert(content, tuple[Content, ...])
    except msgspec.ValidationError:
        return ()
    return parts if any(not isinstance(part, TextPart) for part in parts) else ()
