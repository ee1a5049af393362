"""What a message says: text, refusal, reasoning, sources, speech."""

import base64
import binascii
from collections.abc import Callable
from typing import Any

from sidestream import deliverables, jsontext
from sidestream.jsontext import JsonObject, is_object, objects, text_in
from sidestream.providers.openai_chat import shapes
from sidestream.providers.openai_chat.context import WIRE
from sidestream.providers.openai_chat.state import State
from sidestream.stream.parts import File, Raw, Source


def on_reasoning(s: State, value: str) -> None:
    """`reasoning-start`, `reasoning-delta`; `reasoning-end` when something else comes."""
    if value:
        s.reasoning_delta(value)


def on_reasoning_details(s: State, value: list[JsonObject]) -> None:
    """Kept for `reasoning-end`, in its `provider_metadata`."""
    if value:
        s.open_reasoning()
        s.reasoning_details += value


def on_content(s: State, value: str | list[JsonObject]) -> None:
    """`text-start`, `text-delta`; a list by the type of its entries."""
    if isinstance(value, str):
        if value:
            s.text_delta("text", value, s.logprobs.pop("content", None))
        return
    for entry in value:
        handler = CONTENT.get(str(entry.get("type")))
        if handler is None or not handler(s, entry):
            s.raw()


def _text_entry(s: State, entry: JsonObject) -> bool:
    """`text-delta`."""
    text = text_in(entry, "text")
    if text is not None:
        on_content(s, text)
    return text is not None


def _thinking_entry(s: State, entry: JsonObject) -> bool:
    """`reasoning-delta`."""
    texts = [text_in(part, "text") for part in objects(entry.get("thinking"))]
    on_reasoning(s, "".join(text for text in texts if text is not None))
    return bool(texts) and None not in texts


CONTENT: dict[str, Callable[[State, JsonObject], bool]] = {"text": _text_entry, "thinking": _thinking_entry}
"""Type of an entry, where content is a list → its handler, which says whether it understood."""


def on_refusal(s: State, value: str) -> None:
    """`text-delta` in a block of its own; the finish reason tells that it is a refusal."""
    if value:
        s.text_delta("refusal", value, s.logprobs.pop("refusal", None))


def on_annotations(s: State, value: list[JsonObject]) -> None:
    """`source`; also on `text-end`."""
    for annotation in value:
        if annotation in s.annotations:
            continue
        s.annotations.append(annotation)
        citation = annotation.get("url_citation")
        if annotation.get("type") != "url_citation" or not is_object(citation):
            s.out.append(Raw(s.context.provider, annotation))
            continue
        text_id = s.texts.get("text")
        s.out.append(
            Source(
                f"{text_id or s.block_id('text')}:source:{len(s.annotations) - 1}",
                "url",
                url=text_in(citation, "url"),
                title=text_in(citation, "title"),
                start=_place(citation, "start_index"),
                end=_place(citation, "end_index"),
                text_id=text_id,
            )
        )


def _place(citation: JsonObject, key: str) -> int | None:
    value = citation.get(key)
    return value if type(value) is int else None


def on_audio(s: State, value: shapes.AudioPiece) -> None:
    """`text-delta` of what is said, in a block of its own; `file` when the answer is complete."""
    s.audio_facts |= {key: given for key in ("id", "expires_at") if (given := getattr(value, key)) is not None}
    if value.data:
        s.audio.append(value.data)
    if value.transcript:
        s.text_delta("transcript", value.transcript)


AUDIO_TYPES = {
    "wav": "audio/wav",
    "mp3": "audio/mpeg",
    "flac": "audio/flac",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "pcm16": "audio/pcm",
}
"""Format that was asked for → media type."""


def end_audio(s: State) -> None:
    """Delivers what was spoken."""
    if not s.audio:
        return
    data = _joined(s.audio)
    if data is None:
        s.out.append(Raw(s.context.provider, {"audio": {**s.audio_facts, "data": "".join(s.audio)}}))
        return
    asked = s.context.audio_format or ""
    mime_type = AUDIO_TYPES.get(asked) or deliverables.sniff(data)
    ending = "pcm" if asked == "pcm16" else asked or deliverables.extension(mime_type)
    name = f"audio.{ending}"
    file_id = str(s.audio_facts.get("id") or s.block_id("audio"))
    s.out.append(File(file_id, mime_type, name, data, provider_metadata={WIRE: s.audio_facts}))


def _joined(pieces: list[str]) -> bytes | None:
    """The bytes of base64 in pieces: each encoded by itself, or one text that was cut anywhere."""
    try:
        return b"".join(base64.b64decode(piece, validate=True) for piece in pieces)
    except (binascii.Error, ValueError):
        return deliverables.from_base64("".join(pieces))


def keep_logprobs(s: State) -> None:
    """Probabilities of tokens that came without text, e.g. those of a call, are told with the end."""
    for kind in ("content", "refusal"):
        if rest := jsontext.as_list(s.logprobs.get(kind)):
            kept: list[Any] = s.facts.setdefault("logprobs", [])
            kept += rest
