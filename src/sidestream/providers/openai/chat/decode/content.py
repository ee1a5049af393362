"""Handlers for message content: text, refusals, reasoning, sources and speech."""

import base64
import binascii
from collections.abc import Callable
from typing import Any

from sidestream import jsontext
from sidestream.files import media_types
from sidestream.jsontext import JsonObject, as_object, is_array, is_object, objects, text_in
from sidestream.parts import File, Source
from sidestream.providers.openai.chat.decode import state
from sidestream.providers.openai.chat.decode.state import CompletionsState
from sidestream.providers.openai.chat.options import WIRE
from sidestream.providers.shared.decoding import int_in, parse_input


def on_reasoning(s: CompletionsState, value: str) -> None:
    """Emit `reasoning-start` and `reasoning-delta`. `reasoning-end` follows before other content."""
    if value:
        s.reasoning_delta(value)


def on_reasoning_details(s: CompletionsState, value: list[JsonObject]) -> None:
    """Keep the details for the `provider_metadata` of `reasoning-end`. A hosted call among them is emitted, too."""
    if value:
        s.open_reasoning()
        s.reasoning_details += value
    for detail in value:
        if detail.get("type") == "reasoning.server_tool_call" and (tool := text_in(detail, "tool_name")):
            given, key = detail.get("arguments"), text_in(detail, "id") or f"detail {len(s.hosted)}"
            asked = given if is_object(given) else parse_input(given if isinstance(given, str) else None)[0]
            call = s.hosted.get(key) or s.hosted_call(tool, asked or {}, detail)
            s.hosted[key] = call
            if detail.get("result") is not None:
                s.hosted_result(call, detail["result"], detail)


def on_content(s: CompletionsState, value: str | list[JsonObject]) -> None:
    """Emit `text-start` and `text-delta`. List entries are handled by their type."""
    if isinstance(value, str):
        if value:
            s.text_delta("text", value, s.logprobs.pop("content", None))
        return
    for entry in value:
        handler = CONTENT.get(str(entry.get("type")))
        if handler is None or not handler(s, entry):
            s.raw_chunk()


def _text_entry(s: CompletionsState, entry: JsonObject) -> bool:
    """Emit a `text-delta`."""
    text = text_in(entry, "text")
    if text is not None:
        on_content(s, text)
    return text is not None


def _thinking_entry(s: CompletionsState, entry: JsonObject) -> bool:
    """Emit a `reasoning-delta`."""
    texts = [text_in(part, "text") for part in objects(entry.get("thinking"))]
    on_reasoning(s, "".join(text for text in texts if text is not None))
    return is_array(entry.get("thinking")) and None not in texts


CONTENT: dict[str, Callable[[CompletionsState, JsonObject], bool]] = {"text": _text_entry, "thinking": _thinking_entry}
"""Handlers of list content, by entry type. A handler returns False for an entry that it cannot read."""


def on_refusal(s: CompletionsState, value: str) -> None:
    """Emit a `text-delta` in a separate block. The response finishes as a refusal."""
    if value:
        s.text_delta("refusal", value, s.logprobs.pop("refusal", None))


def on_annotations(s: CompletionsState, value: list[JsonObject]) -> None:
    """Emit a `source` for each annotation, and a web search for those before the text. All are also on `text-end`."""
    for annotation in value:
        name = jsontext.canonical(annotation)
        if name in s.annotations:
            continue
        s.count_entry()
        s.annotations[name] = annotation
        citation = annotation.get("url_citation", annotation if annotation.get("url") else None)
        if annotation.get("type") != "url_citation" or not is_object(citation):
            s.raw(annotation)
            continue
        text_id = s.texts.get("text")
        if text_id is None:
            s.early.append(citation)
            s.begin_search(annotation, {"results": s.early})
        start, end = int_in(citation, "start_index"), int_in(citation, "end_index")
        has_span = text_id is not None or bool(end)
        s.out.append(
            Source(
                f"{text_id or s.block_id('text')}:source:{len(s.annotations) - 1}",
                "url",
                url=text_in(citation, "url"),
                title=text_in(citation, "title") or None,
                start=start if has_span else None,
                end=end if has_span else None,
                text_id=text_id,
            )
        )


def on_images(s: CompletionsState, value: list[JsonObject]) -> None:
    """Emit a `file` for each generated image, once, with its bytes or its URL."""
    for image in value:
        url = text_in(as_object(image.get("image_url")), "url")
        if not url:
            s.raw_chunk()
        elif url not in s.found:
            s.count_entry()
            s.found.add(url)
            data = media_types.from_data_url(url)
            mime_type = media_types.sniff(data) if data else "image/png"
            number = len(s.found) - 1
            name = f"image_{number}.{media_types.extension(mime_type)}"
            s.out.append(File(f"{s.block_id('image')}:{number}", mime_type, name, data or None, None if data else url))


def extra(name: str) -> Callable[[CompletionsState, Any], None]:
    """Build a handler for a field that some hosts add to every token."""

    def handler(s: CompletionsState, value: Any) -> None:
        """Keep the value for the `provider_metadata` of the block's `text-end` or `reasoning-end`."""
        s.keep_extra(name, value)

    return handler


def on_audio(s: CompletionsState, value: state.AudioPiece) -> None:
    """Emit a `text-delta` for the transcript, in a separate block. A `file` follows when the response is complete."""
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
"""MIME types, by requested format."""


def end_audio(s: CompletionsState) -> None:
    """Emit the speech as a file."""
    if not s.audio:
        return
    data = _joined(s.audio)
    if data is None:
        s.raw({"audio": {**s.audio_facts, "data": "".join(s.audio)}})
        return
    requested = s.context.audio_format or ""
    mime_type = AUDIO_TYPES.get(requested) or media_types.sniff(data)
    ending = "pcm" if requested == "pcm16" else requested or media_types.extension(mime_type)
    name = f"audio.{ending}"
    file_id = str(s.audio_facts.get("id") or s.block_id("audio"))
    s.out.append(File(file_id, mime_type, name, data, provider_metadata={WIRE: s.audio_facts}))


def _joined(pieces: list[str]) -> bytes | None:
    """Decode base64 pieces, which were encoded one by one, or as one string that was split anywhere."""
    try:
        return b"".join(base64.b64decode(piece, validate=True) for piece in pieces)
    except (binascii.Error, ValueError):
        return media_types.from_base64("".join(pieces))


def keep_logprobs(s: CompletionsState) -> None:
    """Keep log probabilities of tokens without text, e.g. those of a call, for `finish`."""
    for kind in ("content", "refusal"):
        if rest := jsontext.as_list(s.logprobs.get(kind)):
            kept: list[Any] = s.facts.setdefault("logprobs", [])
            kept += rest
