"""`sidestream keys` and `sidestream models`."""

import json
from pathlib import Path

import pytest

from cli.command import KEY, Run
from cli.driving import PATIENCE_S, Talks
from requirements import requirement
from sidestream.testing import FakeProvider, json_reply, responses_text, sse

NO_KEY = {"OPENAI_API_KEY": ""}
OTHER = "sk-canary-other-9a8b7c6d5e4f"


@requirement("R92", "F44")
def test_stored_key_is_used_without_environment_key(sidestream: Run, tmp_path: Path):
    assert sidestream("keys", "set", "openai_api_key", input=KEY + "\n", env=NO_KEY).returncode == 0
    file = Path(sidestream("keys", "path").stdout.strip())
    assert file == tmp_path / ".config/sidestream/keys.json"
    assert file.stat().st_mode & 0o777 == 0o600
    listed = sidestream("keys", "list", env=NO_KEY).stdout.splitlines()
    (line,) = [line for line in listed if line.startswith("OPENAI_API_KEY")]
    assert line.split()[1] == "file"
    assert "openai-responses" in line
    with FakeProvider([sse(responses_text("Hi")), sse(responses_text("Hi"))]).in_thread() as fake:
        sidestream("Hi", base_url=fake.base_url, env=NO_KEY)
        sidestream("Hi", base_url=fake.base_url, env={"OPENAI_API_KEY": OTHER})
    assert [request.headers["authorization"] for request in fake.requests] == [f"Bearer {KEY}", f"Bearer {OTHER}"]
    assert sidestream("keys", "remove", "OPENAI_API_KEY").returncode == 0
    assert json.loads(file.read_text()) == {}
    assert sidestream("Hi", env=NO_KEY).returncode == 2


def test_readable_key_file_warns_once_when_used(sidestream: Run, tmp_path: Path):
    sidestream("keys", "set", "OPENAI_API_KEY", input=KEY, env=NO_KEY)
    file = tmp_path / ".config/sidestream/keys.json"
    warning = f"warning: other users can read the keys in {file}; run: chmod 600 {file}\n"
    with FakeProvider([sse(responses_text("Hi"))] * 3).in_thread() as fake:
        assert "warning" not in sidestream("Hi", base_url=fake.base_url, env=NO_KEY).stderr
        file.chmod(0o644)
        assert sidestream("Hi", base_url=fake.base_url, env=NO_KEY).stderr.count(warning) == 1
        assert "chmod" not in sidestream("Hi", base_url=fake.base_url).stderr  # The environment has the key.
    assert sidestream("keys", "list").stderr.count(warning) == 1


def test_provider_name_selects_its_key_variable(sidestream: Run, tmp_path: Path):
    assert sidestream("keys", "set", "claude", input=OTHER).returncode == 0
    assert json.loads((tmp_path / ".config/sidestream/keys.json").read_text()) == {"ANTHROPIC_API_KEY": OTHER}


def test_typed_key_is_not_echoed(talks: Talks, tmp_path: Path):
    with talks("keys", "set", "ANTHROPIC_API_KEY", base_url="", terminal=True) as talk:
        talk.expect("not shown")
        talk.expect(": ")
        talk.send(OTHER + "\r")
        assert talk.process.wait(PATIENCE_S) == 0
        talk.end()
    assert OTHER not in talk.shown
    assert OTHER in (tmp_path / ".config/sidestream/keys.json").read_text()


@pytest.mark.parametrize(
    ("args", "piped"),
    [
        (("set", "OPENAI_API_KEY"), ""),
        (("set", "OPENAI_API_KEY"), "two words"),
        (("set", "OPENAI_API_KEY"), "a\nb"),
        (("set", "LD_PRELOAD"), "x"),
        (("set", "ollama"), "x"),
        (("remove", "OPENAI_API_KEY"), ""),
    ],
)
def test_invalid_key_is_rejected(sidestream: Run, tmp_path: Path, args: tuple[str, ...], piped: str):
    done = sidestream("keys", *args, input=piped)
    assert done.returncode == 2
    assert not (tmp_path / ".config/sidestream/keys.json").exists()


@pytest.mark.parametrize("content", ["{", "[]", ""])
def test_damaged_key_file_is_reported(sidestream: Run, tmp_path: Path, content: str):
    (tmp_path / ".config/sidestream/keys.json").write_text(content)
    done = sidestream("Hi", base_url="http://127.0.0.1:9/v1")
    assert done.returncode == 2
    assert "keys.json" in done.stderr


@requirement("R92")
def test_providers_are_listed_with_required_and_found_keys(sidestream: Run):
    done = sidestream("models")
    assert done.returncode == 0
    blocks = {block.split(":")[0]: block for block in done.stdout.replace("\n  ", "\t").splitlines()}
    assert "OPENAI_API_KEY is set" in blocks["openai-responses"]
    assert "web_search" in blocks["openai-responses"]
    assert "ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN is not set" in blocks["anthropic"]
    rows = [json.loads(line) for line in sidestream("models", "--json").stdout.splitlines()]
    assert [row["name"] for row in rows] == sorted(blocks)


@requirement("R92")
def test_models_of_provider_are_listed(sidestream: Run):
    answer = {"data": [{"id": "gpt-5.6"}, {"id": "text-embedding-3-small"}]}
    fake = FakeProvider()
    fake.on("GET", "/v1/models", json_reply(answer))
    with fake.in_thread():
        done = sidestream("models", "-m", "openai-responses", base_url=fake.base_url)
        rows = sidestream("models", "-m", "openai-responses", "--json", base_url=fake.base_url)
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["gpt-5.6", "chat"],
        ["text-embedding-3-small", "embeddings"],
    ]
    assert [json.loads(row)["name"] for row in rows.stdout.splitlines()] == ["gpt-5.6", "text-embedding-3-small"]


def test_unreachable_provider_is_reported_in_one_line(sidestream: Run):
    done = sidestream("models", "-m", "openai-responses", base_url="http://127.0.0.1:9/v1")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
