"""Models of the user's own: by path, added from a path, and what is refused."""

import os
import struct
from pathlib import Path

import pytest

from sidestream import Agent
from sidestream.cli import exit_codes
from sidestream.cli.main import commands
from sidestream.errors import ConfigurationError, UnsupportedError
from sidestream.providers.local import stop
from sidestream.providers.local.files import CHAT, folder_of
from sidestream.providers.local.gguf import read_gguf
from sidestream.providers.local.sources import added_models, source_of


def embedded() -> Path:
    try:
        return folder_of(CHAT) / CHAT.files[0].path
    except ConfigurationError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data"


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf(**values: str | int) -> bytes:
    """A file with this header and one tensor."""
    body = b"GGUF" + struct.pack("<IQQ", 3, 1, len(values))
    for name, value in values.items():
        key = name.replace("__", ".")
        kind = struct.pack("<I", 8) + text(value) if isinstance(value, str) else struct.pack("<II", 4, value)
        body += text(key) + kind
    return body + text("weight") + struct.pack("<IQIQ", 1, 4, 0, 0) + b"\0" * 64


CHATTY = gguf(
    general__architecture="llama",
    general__name="Chatty",
    llama__context_length=4096,
    llama__block_count=2,
    llama__embedding_length=64,
    llama__attention__head_count=4,
    tokenizer__chat_template="{% for m in messages %}[{{ m.role }}]{% if tools %}{{ tools }}{% endif %}{% endfor %}",
)


async def test_any_gguf_file_is_model_by_path(tmp_path: Path, data: Path):
    path = tmp_path / "My Model.gguf"
    path.symlink_to(embedded())
    async with Agent(f"local:{path}?context=2048&threads=1", temperature=0) as agent:
        result = await agent.send("Repeat this sentence exactly: The capital of France is Paris.")
        assert "Paris" in result.output

        def get_weather(city: str) -> str:
            """The weather in a city."""
            return "sunny"

    async with Agent(f"local:{path}?context=4096&threads=1", tools=[get_weather], temperature=0) as agent:
        result = await agent.send("How is the weather in Paris?")
        assert [entry.result for entry in result.tool_results][:1] == ["sunny"]
    await stop()


def test_gguf_metadata_sets_runtime_defaults(tmp_path: Path, data: Path):
    (tmp_path / "a.gguf").write_bytes(CHATTY)
    info = read_gguf(tmp_path / "a.gguf")
    assert (info.name, info.context_tokens, info.layers, info.has_tools) == ("Chatty", 4096, 2, True)
    assert info.memory_bytes(1024) - info.memory_bytes(0) == 2 * 2 * 1024 * 4 * 16 * 2
    source = source_of(f"{tmp_path / 'a.gguf'}?context=1000&threads=3&gpu_layers=7")
    assert (source.runtime.context_tokens, source.runtime.threads, source.runtime.gpu_layers) == (1000, 3, 7)
    assert not source.uses_own_template
    assert source_of(str(tmp_path / "a.gguf")).runtime.context_tokens == 4096


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"GGUF",
        b"not a model",
        CHATTY[:200],
        CHATTY[:-64],
        b"GGUF" + struct.pack("<IQQ", 9, 0, 0),
        b"GGUF" + struct.pack("<IQQ", 3, 2**60, 1),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**62),
        gguf(general__architecture="bert"),
    ],
)
def test_invalid_gguf_file_raises_before_server_starts(tmp_path: Path, data: Path, content: bytes):
    (tmp_path / "bad.gguf").write_bytes(content)
    with pytest.raises(ConfigurationError):
        Agent(f"local:{tmp_path / 'bad.gguf'}")


@pytest.mark.parametrize("name", ["nothing.gguf", "unknown-name", "x.gguf?contexts=1", "smollm2-135m?threads=0"])
def test_unknown_model_or_option_raises(data: Path, name: str):
    with pytest.raises(ConfigurationError):
        source_of(name)


async def test_template_without_tool_support_rejects_tools(tmp_path: Path, data: Path):
    (tmp_path / "plain.gguf").write_bytes(
        gguf(general__architecture="llama", tokenizer__chat_template="{{ messages }}")
    )

    def now() -> str:
        """The time."""
        return "noon"

    agent = Agent(f"local:{tmp_path / 'plain.gguf'}", tools=[now])
    with pytest.raises(UnsupportedError):
        await agent.send("What time is it?")


def run(*arguments: str) -> int:
    code = commands(["local", *arguments], standalone_mode=False, prog_name="sidestream")
    return code if isinstance(code, int) else exit_codes.OK


def test_model_path_is_added_listed_and_removed(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "Chatty Q4.gguf").write_bytes(CHATTY)
    assert run("add", str(tmp_path / "Chatty Q4.gguf"), "--context", "512") == exit_codes.OK
    assert "local:chatty-q4" in capsys.readouterr().out
    assert source_of("chatty-q4").runtime.context_tokens == 512
    assert run("list") == exit_codes.OK
    shown = capsys.readouterr().out
    assert "chatty-q4  chat" in shown
    assert "fits" in shown
    assert run("remove", "chatty-q4") == exit_codes.OK
    assert added_models() == []
    assert (tmp_path / "Chatty Q4.gguf").exists()
    assert run("remove", "chatty-q4") == exit_codes.FAILED
    with pytest.raises(ConfigurationError):
        run("add", str(tmp_path / "Chatty Q4.gguf"), "--sha256", "0" * 64)
    with pytest.raises(ConfigurationError):
        run("add", "https://127.0.0.1/model.gguf")
    assert added_models() == []
