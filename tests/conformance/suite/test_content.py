"""What a user can show the model: pictures, documents, sound. What the provider does not take is refused or told."""

import io
import struct
import wave
import zlib

import pytest

from conformance.suite.subjects import Subject
from conformance.suite.wires import Text
from sidestream.errors import UnsupportedError
from sidestream.messages.message import DataPart
from sidestream.providers.anthropic.provider import text_pdf
from sidestream.providers.capabilities import instead_of


def red_square(side: int = 64) -> bytes:
    """A picture that a model can see."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + b"\xff\0\0" * side) * side
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def silence(seconds: int = 1) -> bytes:
    """A second of nothing, as WAV."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(b"\0\0" * 8000 * seconds)
    return file.getvalue()


FILES = {
    "images_in": (DataPart(red_square(), "image/png", "square.png"), "Which colour is this? One word.", "Red.", "red"),
    "documents_in": (
        DataPart(text_pdf("The password is swordfish."), "application/pdf", "note.pdf"),
        "What is the password in this document? One word.",
        "Swordfish.",
        "swordfish",
    ),
    "audio_in": (DataPart(silence(), "audio/wav", "note.wav"), "Is there speech in this? Yes or no.", "No.", ""),
}


@pytest.mark.parametrize("kind", FILES)
async def test_file_is_sent_or_refused_as_claimed(subject: Subject, kind: str) -> None:
    file, prompt, answer, gist = FILES[kind]
    is_claimed = getattr(subject.caps, kind)
    if not is_claimed and instead_of(subject.caps, kind) is None:
        async with subject.open() as talk:
            with pytest.raises(UnsupportedError):
                await talk.agent.send([prompt, file])
            assert talk.transport.calls == []
        return
    if not is_claimed and subject.setting == "live":
        pytest.skip(f"not claimed: {instead_of(subject.caps, kind)}")
    async with subject.open(Text(answer)) as talk:
        result = await talk.agent.send([prompt, file])
        (body,) = talk.bodies
    assert subject.tells(result.output, answer, gist)
    shown = subject.wire.files(body)
    if is_claimed:
        assert len(shown) == 1
    else:
        # The file is attached all the same, or the model is told of it.
        assert shown or file.name in str(body)


async def test_image_bytes_are_sent_unchanged(wired: Subject) -> None:
    import base64

    async with wired.open(Text("Red.")) as talk:
        await talk.agent.send(["Which colour?", DataPart(red_square(), "image/png")])
        (body,) = talk.bodies
    assert base64.b64encode(red_square()).decode() in str(body)
