"""`sidestream serve` as a process: its caps, and what it deletes."""

import asyncio
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from msgspec.structs import replace

from cli.command import COMMAND, KEY
from requirements import requirement
from sidestream.store import open_store
from sidestream.testing import FakeProvider, ResponsesScript
from support.children import started
from support.serving import printed_address
from support.stores import BOUND_S, message


@requirement("F46", "R144")
async def test_served_store_expires_and_callers_have_quotas(tmp_path: Path) -> None:
    path = tmp_path / "talks.db"
    store = open_store(path)
    for name, age_s in (("/old", 7200.0), ("/new", 60.0)):
        await store.append(name, 0, [replace(message(1, "Hi."), time=time.time() - age_s)])
    body: Any = {"model": "openai-responses", "messages": [{"role": "user", "content": "Hi."}]}
    async with asyncio.timeout(BOUND_S), FakeProvider([ResponsesScript().text("Hello.").reply()]) as fake:
        env = {
            **os.environ,
            "XDG_CONFIG_HOME": str(tmp_path),
            "XDG_DATA_HOME": str(tmp_path),
            "OPENAI_API_KEY": KEY,
            "OPENAI_BASE_URL": fake.base_url,
        }
        options = ("-m", "openai-responses", "--port", "0", "--store", str(path))
        caps = ("--expire-after", "1h", "--requests-per-minute", "1", "--max-runs", "5", "--max-cost-per-day", "9.5")
        with started(*COMMAND, "serve", *options, *caps, stdout=-1, env=env, cwd=tmp_path) as process:
            assert process.stdout is not None
            url, token = printed_address(await asyncio.to_thread(process.stdout.readline))
            async with httpx2.AsyncClient(base_url=url, headers=token, timeout=BOUND_S) as client:
                first = await client.post("v1/chat/completions", json=body)
                second = await client.post("v1/chat/completions", json=body)
            assert first.json()["choices"][0]["message"]["content"] == "Hello."
            assert (second.status_code, second.json()["error"]["code"]) == (429, "rate_limit_exceeded")
            while await store.read("/old"):
                pass
    assert len(await store.read("/new")) == 1
    await store.aclose()


@requirement("R140")
async def test_default_dialect_is_serve_option(tmp_path: Path) -> None:
    options = ("-m", "openai-responses", "--port", "0", "--store", str(tmp_path / "talks.db"))
    body = {"model": "openai-responses", "input": "Hi.", "user": "somebody"}
    async with asyncio.timeout(BOUND_S), FakeProvider([ResponsesScript().text("Hello.").reply()] * 2) as fake:
        env = {
            **os.environ,
            "XDG_CONFIG_HOME": str(tmp_path),
            "XDG_DATA_HOME": str(tmp_path),
            "OPENAI_API_KEY": KEY,
            "OPENAI_BASE_URL": fake.base_url,
        }
        command = (*COMMAND, "serve", *options, "--dialect", "open-responses")
        with started(*command, stdout=-1, env=env, cwd=tmp_path) as process:
            assert process.stdout is not None
            url, token = printed_address(await asyncio.to_thread(process.stdout.readline))
            async with httpx2.AsyncClient(base_url=url, headers=token, timeout=BOUND_S) as client:
                strict = (await client.post("v1/responses", json=body)).json()
                vendor = (await client.post("v1/responses?dialect=openai", json=body)).json()
    assert "user" not in strict
    assert vendor["user"] == "somebody"


@pytest.mark.parametrize(
    "options",
    [
        ("--dialect", "other"),
        ("--expire-after", "soon"),
        ("--max-runs", "0"),
        ("--requests-per-minute", "0"),
        ("--max-cost-per-day", "0"),
    ],
)
def test_invalid_option_is_rejected_before_start(options: tuple[str, str]) -> None:
    from click.testing import CliRunner

    from sidestream.cli.main import commands

    result = CliRunner().invoke(commands, ["serve", *options])
    assert result.exit_code == 2
    assert options[0] in result.output


@requirement("R144", "F33")
@pytest.mark.parametrize("store", ["damaged", "no-folder", "postgresql"])
def test_unusable_store_is_reported_in_one_line_without_url(store: str, tmp_path: Path) -> None:
    (tmp_path / "damaged.db").write_bytes(b"no database" * 1000)
    locations = {
        "damaged": str(tmp_path / "damaged.db"),
        "no-folder": str(tmp_path / "damaged.db" / "talks.db"),
        "postgresql": "postgresql://user:canary-password@127.0.0.1:1/none",
    }
    code, out, err = run_serve(tmp_path, "-m", "openai-responses", "--store", locations[store])
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "canary" not in err


@requirement("R144")
@pytest.mark.parametrize(("model", "said"), [("nosuch:model", "unknown provider"), ("anthropic", "ANTHROPIC_API_KEY")])
def test_unusable_model_is_rejected_before_start(model: str, said: str, tmp_path: Path) -> None:
    code, out, err = run_serve(tmp_path, "-m", model)
    assert (code, out) == (2, "")
    assert said in err


@requirement("R144", "F43")
@pytest.mark.parametrize(("options", "are_named"), [((), True), (("--agent", "mine=shop:agent"), False)])
async def test_mcp_file_servers_are_named_if_models_may_use_them(
    tmp_path: Path, options: tuple[str, ...], are_named: bool
) -> None:
    servers = {"files": {"command": "true"}, "off": {"disabled": True}, "bad": {"command": "true", "nonsense": 1}}
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    (tmp_path / "shop.py").write_text('from sidestream import Agent\nagent = Agent("openai-responses")\n')
    env = {
        **os.environ,
        "XDG_CONFIG_HOME": str(tmp_path),
        "XDG_DATA_HOME": str(tmp_path),
        "OPENAI_API_KEY": KEY,
        "PYTHONPATH": str(tmp_path),
    }
    env.pop("SIDESTREAM_MODEL", None)
    command = (*COMMAND, "serve", "--port", "0", "--store", str(tmp_path / "talks.db"), *options)
    async with asyncio.timeout(BOUND_S):
        with (
            (tmp_path / "stderr").open("wb") as errors,
            started(*command, stdout=-1, stderr=errors, env=env, cwd=tmp_path) as process,
        ):
            assert process.stdout is not None
            url, token = printed_address(await asyncio.to_thread(process.stdout.readline))
            async with httpx2.AsyncClient(base_url=url, headers=token) as client:
                assert (await client.get("api/about")).status_code == 200
    said = (tmp_path / "stderr").read_text()
    assert ("MCP servers in .mcp.json: files\n" in said) == are_named
    assert "left out an MCP server: .mcp.json: server 'bad'" in said


def run_serve(path: Path, *options: str) -> tuple[int, str, str]:
    """The exit code of a server that does not start, and what it wrote."""
    env = {**os.environ, "XDG_CONFIG_HOME": str(path), "XDG_DATA_HOME": str(path), "OPENAI_API_KEY": KEY}
    env.pop("ANTHROPIC_API_KEY", None)
    env.pop("ANTHROPIC_AUTH_TOKEN", None)
    done = subprocess.run(
        [*COMMAND, "serve", "--port", "0", *options], env=env, cwd=path, capture_output=True, text=True, timeout=BOUND_S
    )
    return done.returncode, done.stdout, done.stderr


@requirement("R215")
async def test_serve_names_page_and_refuses_unknown_panel(tmp_path: Path) -> None:
    env = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path), "OPENAI_API_KEY": KEY}
    (tmp_path / "acme.svg").write_text("<svg/>")
    options = ("-m", "openai-responses", "--port", "0", "--store", str(tmp_path / "talks.db"))
    named = (
        "--title",
        "Acme help",
        "--icon",
        "acme.svg",
        "--greeting",
        "Hi.",
        "--example",
        "A?",
        "--panel",
        "settings",
    )
    async with asyncio.timeout(BOUND_S):
        with started(*COMMAND, "serve", *options, *named, stdout=-1, env=env, cwd=tmp_path) as process:
            assert process.stdout is not None
            url, token = printed_address(await asyncio.to_thread(process.stdout.readline))
            async with httpx2.AsyncClient(base_url=url, headers=token, timeout=BOUND_S) as client:
                about = (await client.get("api/about")).json()
                icon = await client.get("icon")
        assert (about["greeting"], about["examples"], about["panels"]) == ("Hi.", ["A?"], ["settings"])
        assert icon.headers["content-type"] == "image/svg+xml"
        command = [*COMMAND, "serve", *options, "--panel", "key"]
        wrong = await asyncio.to_thread(
            subprocess.run, command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=BOUND_S, check=False
        )
    assert (wrong.returncode != 0, "Page.panels" in wrong.stderr) == (True, True)
