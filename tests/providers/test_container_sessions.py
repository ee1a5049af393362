"""Sessions of several turns with files in a provider's container: upload, plot, follow-up, expiry, restart, switch."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from requirements import requirement
from sidestream import Agent, Chat, CodeInterpreter, DataPart, Limits, LinkPart, ProviderError, Shell
from sidestream.parts import Custom
from sidestream.providers import Settings, find_provider
from sidestream.testing import (
    ChatScript,
    FakeProvider,
    MessagesScript,
    Received,
    ResponsesScript,
    error_reply,
    json_reply,
    pixel_png,
)
from support.sandboxes import needs

SALES = DataPart(b"region,units\n" + b"North,12\n" * 20_000, "text/csv", "sales.csv", to="container")
PLOT = pixel_png()


class Host(NamedTuple):
    """A provider with containers."""

    model: str
    ran: Callable[..., Any]
    """The answer of a model that ran code in a container, perhaps with a plot."""
    files_of: Callable[[Any], list[str]]
    """Ids of the files that a request puts into the container."""


def _openai(container: str, *, plots: bool = False) -> Any:
    cited = {"type": "container_file_citation", "container_id": container, "file_id": "cfile_1", "filename": "plot.png"}
    notes = [{**cited, "start_index": 0, "end_index": 4}] if plots else []
    return ResponsesScript().code_interpreter("…", logs="ok", container_id=container).text("Done.", annotations=notes)


def _anthropic(container: str, *, plots: bool = False) -> Any:
    return MessagesScript(container=container).bash("…", files=["file_plot"] if plots else []).text("Done.")


def _openai_files(body: Any) -> list[str]:
    container = body["tools"][0]["container"]
    return [] if isinstance(container, str) else container.get("file_ids", [])


def _anthropic_files(body: Any) -> list[str]:
    blocks = [block for message in body["messages"] for block in message["content"]]
    return [block["file_id"] for block in blocks if block["type"] == "container_upload"]


HOSTS = [
    Host("openai-responses", _openai, _openai_files),
    Host("anthropic", _anthropic, _anthropic_files),
]


def serve_files(fake: FakeProvider) -> list[str]:
    """Accept uploads, as file-1, file-2, …, and serve the plot. Returns the names of uploaded files, as they come."""
    uploaded: list[str] = []

    def upload(request: Received) -> Any:
        found = re.search(rb'filename="([^"]*)"', request.body)
        assert found is not None
        uploaded.append(found[1].decode())
        return json_reply({"id": f"file-{len(uploaded)}", "filename": uploaded[-1], "bytes": 1})

    fake.on("POST", "/v1/files", upload)
    fake.on("POST", "/v1/containers/*/files", upload)
    fake.add_file("/v1/containers/cntr_1/files/cfile_1/content", PLOT)
    fake.on("GET", "/v1/files/file_plot", json_reply({"id": "file_plot", "filename": "plot.png"}))
    fake.add_file("/v1/files/file_plot/content", PLOT)
    return uploaded


def asked(fake: FakeProvider) -> list[Any]:
    """The bodies of the model's requests."""
    return [request.json for request in fake.requests if request.path.endswith(("/responses", "/messages"))]


def notices(result: Any) -> list[str]:
    return [part.kind for part in result.parts if isinstance(part, Custom)]


def agent_of(host: Host, fake: FakeProvider, **settings: Any) -> Agent:
    tool = CodeInterpreter(**{"reuse_container": True, **settings})
    return Agent(host.model, base_url=fake.base_url, api_key="k", server_side_tools=[tool])


@requirement("R192", "R193", "F24")
@pytest.mark.parametrize("host", HOSTS, ids=[host.model for host in HOSTS])
async def test_session_survives_expired_container_restart_and_switch(host: Host, tmp_path: Path) -> None:
    needs("bubblewrap")
    store = tmp_path / "talk.db"
    gone = error_reply(400, "invalid_request_error", "Container cntr_1 has expired")
    script = [host.ran("cntr_1"), host.ran("cntr_1", plots=True), host.ran("cntr_1")]
    async with FakeProvider([*(made.reply() for made in script), gone, host.ran("cntr_2").reply()]) as fake:
        uploaded = serve_files(fake)
        async with agent_of(host, fake) as agent:
            chat = Chat(agent, store=store, id="talk")
            await chat.send(["How many rows?", SALES])
            assert (uploaded, host.files_of(asked(fake)[-1])) == (["sales.csv"], ["file-1"])
            plotted = await chat.send("Plot them.")
            assert [(file.name, file.data) for file in plotted.files] == [("plot.png", PLOT)]
            third = await chat.send("Which colour?")
            assert (host.files_of(asked(fake)[-1]), notices(third)) == ([], [])
            # The container expires: the known file is named again, the plot is uploaded.
            fourth = await chat.send("Make it red.")
        assert uploaded == ["sales.csv", "plot.png"]
        assert host.files_of(asked(fake)[-1]) == ["file-1", "file-2"]
        assert notices(fourth) == ["sidestream.container-replaced", "sidestream.files-uploaded"]
        assert "Files of the conversation are there again: sales.csv, plot.png." in str(asked(fake)[-1])
        assert all(len(request.body) < 20_000 for request in fake.requests if "/files" not in request.path)

        # Another process continues in the new container.
        fake.add(host.ran("cntr_2").reply())
        async with agent_of(host, fake) as agent:
            fifth = await Chat(agent, store=store, id="talk").send("Thanks. Once more?")
        assert (uploaded, host.files_of(asked(fake)[-1])) == (["sales.csv", "plot.png"], [])
        assert (notices(fifth), "cntr_2" in str(asked(fake)[-1])) == ([], True)

    code = "import os\nprint(sorted(os.listdir('.')), len(open('sales.csv').readlines()))"
    call = ChatScript().tool_call("code_interpreter", {"code": code}).reply()
    async with FakeProvider([call, ChatScript().text("Exported.").reply()]) as fake:
        tools = [CodeInterpreter(sandbox="bubblewrap")]
        async with Agent("groq:m", base_url=fake.base_url, api_key="k", server_side_tools=tools) as here:
            last = await Chat(here, store=store, id="talk").send("Export all.")
        assert all(len(request.body) < 20_000 for request in fake.requests)
    assert last.tool_results[-1].result["outputs"][0]["logs"] == "['plot.png', 'sales.csv'] 20001\n"


@requirement("R193")
@pytest.mark.parametrize("host", HOSTS, ids=[host.model for host in HOSTS])
async def test_files_setting_is_uploaded_once(host: Host, tmp_path: Path) -> None:
    (tmp_path / "sales.csv").write_bytes(SALES.data)
    async with FakeProvider([host.ran("cntr_1").reply(), host.ran("cntr_2").reply()]) as fake:
        uploaded = serve_files(fake)
        tools = {"files": [str(tmp_path / "sales.csv")], "reuse_container": None}
        async with agent_of(host, fake, **tools) as agent:
            chat = Chat(agent)
            first = await chat.send("How many rows?")
            await chat.send("Sure?")
        assert [host.files_of(body) for body in asked(fake)] == [["file-1"]] * 2
    assert (uploaded, notices(first)) == (["sales.csv"], ["sidestream.files-uploaded"])


@requirement("R193")
async def test_new_file_is_uploaded_into_reused_container() -> None:
    host = HOSTS[0]
    answers = [host.ran("cntr_1"), ResponsesScript().text("Seen."), host.ran("cntr_1")]
    async with FakeProvider([answer.reply() for answer in answers]) as fake:
        uploaded = serve_files(fake)
        async with agent_of(host, fake) as agent:
            chat = Chat(agent)
            await chat.send("Start.")
            await chat.send(["And this?", SALES])  # It is uploaded, though no code runs.
            await chat.send("Sure?")
        paths = [request.path for request in fake.requests if request.path.endswith("/files")]
    assert (uploaded, paths) == (["sales.csv"], ["/v1/containers/cntr_1/files"])


@requirement("R193")
async def test_hosted_shell_gets_files() -> None:
    async with FakeProvider([ResponsesScript().text("Seen.").reply()]) as fake:
        serve_files(fake)
        async with Agent("openai-responses", base_url=fake.base_url, api_key="k", server_side_tools=[Shell()]) as agent:
            await agent.send(["Count.", SALES])
        assert asked(fake)[0]["tools"][0]["environment"] == {"type": "container_auto", "file_ids": ["file-1"]}


@requirement("R193")
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/files"])
async def test_fallback_model_gets_files_of_its_own(path: str) -> None:
    async with FakeProvider() as first, FakeProvider([HOSTS[1].ran("cntr_1").reply()]) as second:
        models: list[Any] = [
            find_provider(host.model).chat_model("m", Settings(api_key="k", base_url=fake.base_url))
            for host, fake in zip(HOSTS, (first, second), strict=True)
        ]
        uploaded = [serve_files(first), serve_files(second)]
        first.on("POST", path, error_reply(503))
        limits = Limits(max_retries=0)
        async with Agent(models=models, server_side_tools=[CodeInterpreter()], limits=limits) as agent:
            result = await agent.send(["Count.", SALES])
        assert HOSTS[1].files_of(asked(second)[0]) == ["file-1"]
    assert uploaded[1] == ["sales.csv"]
    assert "sidestream.model-fallback" in notices(result)


@requirement("R192", "F24")
@pytest.mark.parametrize("host", HOSTS, ids=[host.model for host in HOSTS])
async def test_expired_upload_is_uploaded_again(host: Host) -> None:
    gone = error_reply(404, "invalid_request_error", "File file-1 does not exist")
    async with FakeProvider([host.ran("cntr_1").reply(), gone, host.ran("cntr_2").reply()]) as fake:
        uploaded = serve_files(fake)
        async with agent_of(host, fake, reuse_container=None) as agent:
            chat = Chat(agent)
            await chat.send(["Count.", SALES])
            second = await chat.send("Again.")
        assert [host.files_of(body) for body in asked(fake)] == [["file-1"], ["file-1"], ["file-2"]]
    assert uploaded == ["sales.csv"] * 2
    assert notices(second) == ["sidestream.session-fallback", "sidestream.files-uploaded"]


@requirement("R193")
async def test_failed_upload_fails_run() -> None:
    async with FakeProvider([]) as fake:
        fake.on("POST", "/v1/files", error_reply(400, "invalid_request_error", "no space"))
        async with agent_of(HOSTS[0], fake) as agent:
            with pytest.raises(ProviderError, match="no space"):
                await agent.send(["Count.", SALES])


@requirement("R193")
@pytest.mark.parametrize("host", HOSTS, ids=[host.model for host in HOSTS])
async def test_missing_file_of_user_is_not_retried(host: Host) -> None:
    gone = error_reply(404, "invalid_request_error", "File file-9 does not exist")
    async with FakeProvider([gone]) as fake, agent_of(host, fake) as agent:
        with pytest.raises(ProviderError):
            await agent.send(["Count.", LinkPart("openai-file:file-9")])
        assert len(fake.requests) == 1
