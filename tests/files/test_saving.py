"""Files in prompts, and files saved to disk."""

from pathlib import Path

import pytest

from sidestream import Agent, ConfigurationError, DataPart, File, Preview
from sidestream.messages import messages_from_json
from sidestream.messages.message import ChatMessage, messages_to_json
from sidestream.testing import ScriptedModel, pixel_png

PNG = pixel_png(1, 2, 3)


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    path.write_bytes(PNG)
    return path


# Prompts


async def test_path_in_prompt_is_sent_as_file(photo: Path):
    model = ScriptedModel(["A pixel."])
    await Agent(model).send(["What is this?", photo])
    assert model.requests[0].messages[-1].parts[1] == DataPart(PNG, "image/png", "photo.png")


async def test_path_alone_is_prompt(photo: Path):
    model = ScriptedModel(["A pixel."])
    await Agent(model).send(photo)
    assert model.requests[0].messages[-1].parts == (DataPart(PNG, "image/png", "photo.png"),)


@pytest.mark.parametrize(("name", "problem"), [("missing.png", "No such file"), (".", "is a folder")])
async def test_unreadable_path_in_prompt_is_refused(tmp_path: Path, name: str, problem: str):
    agent = Agent(ScriptedModel(["Hi."]))
    with pytest.raises(ConfigurationError, match=problem):
        await agent.send(["Look.", tmp_path / name])


# Parts


def test_from_path_reads_bytes_type_and_name(photo: Path):
    assert DataPart.from_path(photo) == DataPart(PNG, "image/png", "photo.png")
    assert DataPart.from_path(str(photo)).name == "photo.png"


def test_from_path_takes_other_type_name_and_destination(photo: Path):
    part = DataPart.from_path(photo, mime_type="application/x-pixel", name="a.pix", to="container")
    assert part == DataPart(PNG, "application/x-pixel", "a.pix", to="container")


def test_bytes_have_one_name():
    files = (
        DataPart(PNG, "image/png"),
        File("f1", "image/png", data=PNG),
        Preview(index=0, data=PNG, mime_type="image/png"),
    )
    assert [file.data for file in files] == [PNG] * 3


def test_old_name_of_bytes_warns():
    with pytest.warns(DeprecationWarning, match=r"DataPart\.data"):
        assert DataPart(PNG, "image/png").bytes == PNG


def test_json_of_earlier_versions_can_be_read():
    text = '[{"role":"user","parts":[{"type":"data","bytes":"YSxi","mime_type":"text/csv"}]}]'
    messages = messages_from_json(text)
    assert messages == [ChatMessage.user(DataPart(b"a,b", "text/csv"))]
    assert '"bytes"' in messages_to_json(messages)


# Saving


def previews() -> list[Preview]:
    return [Preview(index=n, data=bytes([n]), mime_type="image/png") for n in range(3)]


def test_save_to_creates_folder_and_numbers_names(tmp_path: Path):
    folder = tmp_path / "a" / "out"
    saved = [preview.save_to(folder) for preview in (*previews(), *previews())]
    assert [path.read_bytes() for path in saved] == [b"\0", b"\1", b"\2"] * 2
    assert len(set(saved)) == 6


@pytest.mark.parametrize("file", [DataPart(PNG, "image/png", "../a.png"), File("f1", "image/png", "../a.png", PNG)])
def test_save_to_uses_safe_name(file: DataPart | File, tmp_path: Path):
    assert file.save_to(tmp_path) == tmp_path / "a.png"
    assert file.save_to(str(tmp_path)) == tmp_path / "a-1.png"
    assert file.save_to(tmp_path, overwrite=True) == tmp_path / "a.png"


def test_save_does_not_overwrite_file(tmp_path: Path):
    # A Path has no final slash, so this names a file.
    path = Path(f"{tmp_path}/out/")
    first, second, _ = previews()
    assert first.save(path) == path
    with pytest.raises(FileExistsError, match=r"overwrite=True.*save_to"):
        second.save(path)
    assert path.read_bytes() == b"\0"
    assert second.save(path, overwrite=True).read_bytes() == b"\1"


def test_save_refuses_file_without_bytes(tmp_path: Path):
    file = File("f1", "image/png", url="https://a.example/a.png")
    with pytest.raises(ConfigurationError, match="only a URL"):
        file.save_to(tmp_path)
