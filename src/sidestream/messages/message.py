"""Messages of a history and their parts, with their JSON form.

Values are frozen. Metadata holds JSON values only and is never sent to a model. Keys that begin with `_` belong to the
provider that wrote them, and `_provenance` to the run (`messages/provenance.py`).
"""

from collections.abc import Collection, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec
from msgspec import Struct, field

from sidestream import jsontext
from sidestream.errors import ConfigurationError
from sidestream.files import Saveable
from sidestream.jsontext import is_array, is_object
from sidestream.text.reprs import ShortRepr

if TYPE_CHECKING:
    from os import PathLike

PRIVATE_KEYS = "_*"
"""Pattern for all keys that begin with `_`, in a list of metadata keys."""
Role = Literal["system", "user", "model", "tool"]
Destination = Literal["model", "container"]
"""Destination of a file: the model, and containers in which tools run code; or only these containers."""
Numbers = tuple[int, int]
"""The first and the last of a range of numbers."""


class _MessagePart(ShortRepr, Struct, frozen=True, tag_field="type", omit_defaults=True, gc=False):
    pass


class TextPart(_MessagePart, frozen=True, tag="text"):
    """A piece of text. `id` is the stream block it came from, if any."""

    text: str
    id: str | None = None


class ThinkingPart(_MessagePart, frozen=True, tag="thinking"):
    """Reasoning that the model showed, for display only. What the provider needs back is in the message's session.

    A message without a session, such as one that a client of a server sends back, has it in the other fields.
    """

    text: str
    id: str | None = None
    signature: str | None = None
    """Provider's signature of the text."""
    encrypted_content: str | None = None
    """Reasoning in a form that only the provider can read."""
    provider: str | None = None
    """Provider that gets the signature or encrypted content. None means that no provider gets it."""


class DataPart(Saveable, _MessagePart, frozen=True, tag="data"):
    """The bytes of an image, a document or a file that a tool made.

    `DataPart(b"a,b", "text/csv", "sales.csv", to="container")` is for the code that tools run: the model is told its
    name, type and size. Files that tools make are of this kind.
    """

    data: bytes = field(name="bytes")
    mime_type: str
    name: str | None = None
    to: Destination = "model"

    @classmethod
    def from_path(
        cls,
        path: "str | PathLike[str]",
        *,
        mime_type: str | None = None,
        name: str | None = None,
        to: Destination = "model",
    ) -> Self:
        """Read a file. `mime_type` is detected from its content and name unless given, `name` is its own.

        Raises ConfigurationError if it cannot be read.
        """
        from pathlib import Path

        from sidestream.files import media_types

        file = Path(path)
        try:
            data = file.read_bytes()
        except IsADirectoryError:
            raise ConfigurationError(f"{file} is a folder; pass its files one by one") from None
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from None
        return cls(data, mime_type or media_types.sniff(data, file.name), name or file.name, to)

    def _contents(self) -> tuple[bytes | None, str | None, str, str | None]:
        return self.data, self.name, self.mime_type, None

    @property
    def bytes(self) -> Any:
        """Former name of `data`."""
        import warnings

        warnings.warn("DataPart.bytes is deprecated: use DataPart.data", DeprecationWarning, stacklevel=2)
        return self.data


class LinkPart(_MessagePart, frozen=True, tag="link"):
    """A link to content at a URL."""

    url: str
    mime_type: str | None = None
    name: str | None = None


class ToolCallPart(_MessagePart, frozen=True, tag="tool-call"):
    """A call of a client tool. `input_text` is set if the model's input was not a JSON object."""

    id: str
    name: str
    input: Any = None
    input_text: str | None = None


class ToolResultPart(_MessagePart, frozen=True, tag="tool-result"):
    """The result of a client tool, a JSON value."""

    id: str
    name: str
    result: Any
    is_error: bool = False
    acknowledged: bool = False
    """Whether the user saw the call's safety checks and approved it, which is reported to the provider."""
    passages: Numbers | None = None
    """First and last number of the passages that an answer may cite. None means there are none, whatever the result's
    shape. Only the run sets this, for results of a source that it ran itself."""


class ApprovalPart(_MessagePart, frozen=True, tag="approval"):
    """A user's decision on a call that the provider wants to make, such as of a remote MCP server."""

    id: str
    """Id of the approval request."""
    is_approved: bool
    reason: str | None = None


ToolPart = ToolCallPart | ToolResultPart
"""A tool call or its result."""
NOT_EXECUTED = "This call was not executed."
"""Result of a call that has none."""

Content = TextPart | DataPart | LinkPart
"""Content that a tool can show a model."""
MessagePart = TextPart | ThinkingPart | DataPart | LinkPart | ToolCallPart | ToolResultPart | ApprovalPart
"""Any part of a message."""


class ChatMessage(ShortRepr, Struct, frozen=True, omit_defaults=True, weakref=True):
    """A message of a history."""

    role: Role
    parts: tuple[MessagePart, ...] = ()
    metadata: dict[str, Any] = {}

    @classmethod
    def system(cls, text: str) -> "ChatMessage":
        """Create a message that instructs the model."""
        return cls("system", (TextPart(text),))

    @classmethod
    def user(cls, *content: str | MessagePart) -> "ChatMessage":
        """Create a message from the user. Strings become text parts."""
        return cls("user", tuple(TextPart(c) if isinstance(c, str) else c for c in content))

    @classmethod
    def model(cls, *content: str | MessagePart, metadata: dict[str, Any] | None = None) -> "ChatMessage":
        """Create a message from the model. Strings become text parts. `metadata` is never sent to a model."""
        return cls("model", tuple(TextPart(c) if isinstance(c, str) else c for c in content), metadata or {})

    @property
    def text(self) -> str:
        """All text parts, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def tool_calls(self) -> tuple[ToolCallPart, ...]:
        """The client tool calls in this message."""
        return tuple(part for part in self.parts if isinstance(part, ToolCallPart))


def only_texts(messages: Sequence[ChatMessage]) -> tuple[list[str | None], list[ChatMessage]]:
    """Return the text of each message that has one text part and no metadata, or None, and the messages without one."""
    texts = [
        part.text
        if len(parts := message.parts) == 1 and type(part := parts[0]) is TextPart and not message.metadata
        else None
        for message in messages
    ]
    if None not in texts:
        return texts, []
    return texts, [message for message, text in zip(messages, texts, strict=True) if text is None]


@cache
def _decoder() -> msgspec.json.Decoder[list[ChatMessage]]:
    return msgspec.json.Decoder(list[ChatMessage])


def messages_to_json(messages: Iterable[ChatMessage]) -> str:
    """Convert a history to JSON text, with bytes as base64.

    ```python
    result = await agent.send("My name is Ada.")
    saved = messages_to_json(result.messages)
    result = await agent.send("What is my name?", history=messages_from_json(saved))
    ```
    """
    return jsontext.dumps(list(messages)).decode()


def messages_from_json(text: str | bytes) -> list[ChatMessage]:
    """Parse the history that `messages_to_json` wrote."""
    try:
        return _decoder().decode(text)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        return msgspec.convert(jsontext.loads(text), list[ChatMessage])


def strip_metadata(
    messages: Sequence[ChatMessage], *, keep: Collection[str] = (), drop: Collection[str] = ()
) -> list[ChatMessage]:
    """Return the history without metadata, to make it smaller.

    Private `_` keys are kept so that sessions continue, as are those in `keep`. Those in `drop` are removed; `"_*"` in
    `drop` means every private key.
    """
    for name, keys in (("keep", keep), ("drop", drop)):
        if isinstance(keys, str):
            raise ConfigurationError(
                f"{name} must be a list of keys, not a string; use strip_metadata(messages, {name}=[{keys!r}])"
            )
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
"""`type` of a value beside a result's content that only one provider reads (`actions.BrowserState`)."""


def file_note(part: DataPart) -> str:
    """Return the text that names a file whose content is not sent to the model."""
    name = part.name or "without a name"
    return f"[File {name} ({part.mime_type}, {len(part.data)} bytes): it is in the container, and not shown here]"


def content_of_result(result: object) -> tuple[Content, ...]:
    """Return the content of a result that is a JSON list of texts and files, or an empty tuple for any other result."""
    if not is_array(result) or not result:
        return ()
    content = [entry for entry in result if not (is_object(entry) and entry.get("type") == BROWSER_STATE)]
    try:
        parts = msgspec.convert(content, tuple[Content, ...])
    except msgspec.ValidationError:
        return ()
    return parts if any(not isinstance(part, TextPart) for part in parts) else ()


def shown_of_result(result: object) -> tuple[Content, ...]:
    """Return the content of a result as the model sees it, with notes in place of files for containers."""
    content = content_of_result(result)
    if not content:
        return ()
    return tuple(
        TextPart(file_note(part)) if isinstance(part, DataPart) and part.to == "container" else part for part in content
    )
