"""Previews: pictures that a tool or a model shows on the way to its final one."""

from typing import TYPE_CHECKING

from msgspec import Struct

from sidestream import jsontext
from sidestream.files import media_types
from sidestream.stream.parts import Custom, StreamPart, ToolResult
from sidestream.text.reprs import ShortRepr

if TYPE_CHECKING:
    from pathlib import Path

THOUGHT_IMAGE = ".thought-image"
"""How the kind of a custom part ends that holds a picture of the model's reasoning."""


class Preview(ShortRepr, Struct, frozen=True, kw_only=True):
    """A preliminary picture; the final one is a `File`."""

    index: int
    """Its place among the previews of its call, from 0."""
    data: bytes
    mime_type: str
    tool: str | None = None
    call_id: str | None = None

    def save(self, path: "str | Path") -> "Path":
        """Writes the picture to this path, or into this folder as `preview-INDEX`; returns its path."""
        from sidestream.files.saving import save

        return save(self.data, path, f"preview-{self.index}", self.mime_type)

    def _repr_html_(self) -> str:
        from sidestream.text.html import file_html

        return file_html(self.data, self.mime_type, f"preview {self.index}")


def preview_of(part: StreamPart) -> Preview | None:
    """The preview in a part of the stream; None if it holds none."""
    if isinstance(part, ToolResult) and part.preliminary:
        fields = jsontext.as_object(part.result)
        return _preview(fields.get("partial_image_b64"), fields.get("partial_image_index"), part.tool, part.id)
    if isinstance(part, Custom) and part.kind.endswith(THOUGHT_IMAGE):
        fields = jsontext.as_object(part.data)
        return _preview(fields.get("data"), fields.get("index"), None, None)
    return None


def _preview(encoded: object, index: object, tool: str | None, call_id: str | None) -> Preview | None:
    data = media_types.from_base64(encoded) if isinstance(encoded, str) else None
    if data is None:
        return None
    number = index if type(index) is int else 0
    return Preview(index=number, data=data, mime_type=media_types.sniff(data), tool=tool, call_id=call_id)
