"""What requests may add to the agents of a server, through each of its APIs."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import connect

from requirements import requirement
from server.chat_client import serving as socket_serving
from server.serving import agent_of
from sidestream import Agent, CodeInterpreter, Limits, WebSearch
from sidestream.errors import ConfigurationError
from sidestream.server import create_app
from sidestream.server.responses.service import find_response
from sidestream.testing import FakeProvider, ResponsesScript
from support.serving import served
from support.stores import BOUND_S

SYSTEM = "You help customers."
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
USER = [{"role": "user", "content": "Hi."}]
PARTS = {"id": "one", "message": {"role": "user", "parts": [{"type": "text", "text": "Hi."}]}}
AGUI = {"threadId": "two", "runId": "r", "messages": [{"id": "m", "role": "user", "content": "Hi."}]}
FUNCTION = {"name": "f", "description": "", "parameters": SCHEMA}
COMPLETIONS: dict[str, Any] = {"messages": USER}
MESSAGES: dict[str, Any] = {"messages": USER, "max_tokens": 100}
RESPONSES: dict[str, Any] = {"input": "Hi."}

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/responses", RESPONSES | {"tools": [{"type": "shell"}]}, "tools"),
    ("/v1/responses", RESPONSES | {"tools": [{"type": "web_search", "search_context_size": "high"}]}, "tools"),
    ("/v1/responses", RESPONSES | {"tools": [{"type": "function", **FUNCTION}]}, "tools"),
    ("/v1/responses", RESPONSES | {"instructions": "Obey."}, "instructions"),
    ("/v1/responses", {"input": [{"role": "developer", "content": "Obey."}, *USER]}, "input"),
    ("/v1/responses", RESPONSES | {"temperature": 0.1}, "temperature"),
    ("/v1/responses", RESPONSES | {"reasoning": {"effort": "high"}}, "reasoning.effort"),
    ("/v1/responses", RESPONSES | {"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
    (
        "/v1/responses",
        RESPONSES | {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}},
        "text.format",
    ),
    ("/v1/responses/compact", RESPONSES | {"model": "support", "instructions": "Obey."}, "instructions"),
    ("/v1/chat/completions", COMPLETIONS | {"tools": [{"type": "function", "function": FUNCTION}]}, "tools"),
    ("/v1/chat/completions", {"messages": [{"role": "system", "content": "Obey."}, *USER]}, "messages"),
    ("/v1/chat/completions", COMPLETIONS | {"reasoning_effort": "low"}, "reasoning_effort"),
    ("/v1/chat/completions", COMPLETIONS | {"response_format": {"type": "json_object"}}, "response_format"),
    ("/v1/messages", MESSAGES | {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]}, "tools"),
    ("/v1/messages", MESSAGES | {"tools": [{"name": "f", "input_schema": SCHEMA}]}, "tools"),
    ("/v1/messages", MESSAGES | {"system": "Obey."}, "system"),
    ("/v1/messages", MESSAGES | {"stop_sequences": ["x"]}, "stop_sequences"),
    ("/api/chat", PARTS | {"tools": ["shell"]}, "tools"),
    ("/api/chat", PARTS | {"tools": ["code-execution"]}, "tools"),
    ("/api/chat", PARTS | {"functions": [{"name": "f", "schema": SCHEMA}]}, "functions"),
    ("/api/chat", PARTS | {"thinking": "high"}, "thinking"),
    ("/api/agui", AGUI | {"tools": [FUNCTION]}, "tools"),
    ("/api/agui", AGUI | {"forwardedProps": {"tools": ["shell"]}}, "forwardedProps.tools"),
]


def locked(fake: FakeProvider, **settings: Any) -> Agent[Any]:
    return agent_of(fake, system=SYSTEM, server_side_tools=[WebSearch(allowed_domains=["example.com"])], **settings)


@requirement("R211")
async def test_agents_refuse_what_requests_add(tmp_path: Path):
    async with asyncio.timeout(BOUND_S), FakeProvider() as fake:
        app = create_app({"support": locked(fake)}, store=tmp_path / "talks.db")
        async with served(app) as url, httpx2.AsyncClient(base_url=url) as client:
            for path, body, param in REFUSED:
                answer = await client.post(path, json=body)
                assert answer.status_code == 403, (path, body, answer.text)
                error = answer.json()["error"]
                assert error["type"] == "permission_error", error
                if path == "/v1/messages":  # This API has no field for the parameter.
                    assert error["message"].startswith(f"{param}: "), error
                else:
                    assert (error["param"], error["code"]) == (param, "not_allowed"), error
            assert (await client.get("/api/conversations")).json()["conversations"] == []
        assert fake.requests == []


@requirement("R211")
async def test_closed_agents_answer_plain_requests_of_every_api(tmp_path: Path):
    plain: list[tuple[str, dict[str, Any]]] = [
        ("/v1/responses", RESPONSES | {"store": False, "include": ["reasoning.encrypted_content"]}),
        ("/v1/responses", RESPONSES | {"tools": [{"type": "web_search"}], "tool_choice": "auto"}),
        ("/v1/chat/completions", COMPLETIONS | {"store": False, "max_tokens": 50}),
        ("/v1/messages", MESSAGES),
        ("/api/chat", PARTS | {"tools": ["web_search"]}),
        ("/api/agui", AGUI),
    ]
    replies = [ResponsesScript().text("Hello.").reply() for _ in plain]
    async with asyncio.timeout(BOUND_S), FakeProvider(replies) as fake:
        app = create_app({"support": locked(fake, max_tokens=80)}, store=tmp_path / "talks.db")
        async with served(app) as url, httpx2.AsyncClient(base_url=url) as client:
            for path, body in plain:
                answer = await client.post(path, json=body)
                assert answer.status_code == 200, (path, answer.text)
        # A name alone is the agent's own tool, with the agent's restrictions.
        for request in fake.requests:
            assert request.json["instructions"] == SYSTEM
            (tool,) = request.json["tools"]
            assert (tool["type"], tool["filters"]) == ("web_search", {"allowed_domains": ["example.com"]})
        assert [request.json["max_output_tokens"] for request in fake.requests] == [80, 80, 50, 80, 80, 80]


@requirement("R211")
async def test_requests_lower_limits_but_never_raise_them(tmp_path: Path):
    replies = [ResponsesScript().text("Hello.").reply() for _ in range(2)]
    async with asyncio.timeout(BOUND_S), FakeProvider(replies) as fake:
        agent = locked(fake, limits=Limits(max_tool_calls=4))
        app = create_app({"support": agent}, store=tmp_path / "talks.db")
        async with served(app) as url, httpx2.AsyncClient(base_url=url) as client:
            for given, expected in ((2, 2), (1000, 4)):
                answer = await client.post("/v1/responses", json=RESPONSES | {"max_tool_calls": given})
                assert answer.status_code == 200
                info = await find_response(app.state.server, "", answer.json()["id"])
                assert info.job.limits == {"max_tool_calls": expected}


@requirement("R211")
async def test_stored_instructions_do_not_reach_closed_agent(tmp_path: Path):
    replies = [ResponsesScript().text("Hello.").reply() for _ in range(2)]
    async with asyncio.timeout(BOUND_S), FakeProvider(replies) as fake:
        app = create_app({"support": locked(fake)}, store=tmp_path / "talks.db")
        async with served(app) as url, httpx2.AsyncClient(base_url=url) as client:
            items = [{"type": "message", "role": "developer", "content": "Obey."}]
            made = (await client.post("/v1/conversations", json={"items": items})).json()
            refused = await client.post("/v1/responses", json=RESPONSES | {"conversation": made["id"]})
            assert (refused.status_code, refused.json()["error"]["param"]) == (403, "input")
            empty = (await client.post("/v1/conversations", json={})).json()
            assert (
                await client.post("/v1/responses", json=RESPONSES | {"conversation": empty["id"]})
            ).status_code == 200
            await client.post(f"/v1/conversations/{empty['id']}/items", json={"items": items})
            again = await client.post("/v1/responses", json=RESPONSES | {"conversation": empty["id"]})
            assert (again.status_code, again.json()["error"]["code"]) == (403, "not_allowed")
        assert len(fake.requests) == 1


@requirement("R211")
async def test_each_kind_is_opened_separately_and_by_name(tmp_path: Path):
    opened: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
        (
            {"allows_tools": ["code_interpreter"]},
            {"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]},
            {"tools": [{"type": "shell"}]},
        ),
        (
            {"allows_functions": "f"},
            {"tools": [{"type": "function", **FUNCTION}], "tool_choice": {"type": "function", "name": "f"}},
            {"tools": [{"type": "function", **FUNCTION, "name": "g"}]},
        ),
        ({"allows_instructions": True}, {"instructions": "Be brief."}, {"temperature": 0.5}),
        ({"allows_settings": ["temperature"]}, {"temperature": 0.5}, {"top_p": 0.5}),
    ]
    for index, (settings, accepted, refused) in enumerate(opened):
        async with asyncio.timeout(BOUND_S), FakeProvider([ResponsesScript().text("Hello.").reply()]) as fake:
            app = create_app({"support": locked(fake)}, store=tmp_path / f"{index}.db", **settings)
            async with served(app) as url, httpx2.AsyncClient(base_url=url) as client:
                assert (await client.post("/v1/responses", json=RESPONSES | refused)).status_code == 403, settings
                assert (await client.post("/v1/responses", json=RESPONSES | accepted)).status_code == 200, settings
            assert len(fake.requests) == 1


@requirement("R211")
async def test_web_ui_is_told_what_is_allowed(tmp_path: Path):
    async with asyncio.timeout(BOUND_S), FakeProvider() as fake:
        agents = {"support": locked(fake), "coder": agent_of(fake, server_side_tools=[CodeInterpreter()])}
        app = create_app(agents, store=tmp_path / "talks.db", allows_settings=["temperature"], allows_models=True)
        async with served(app) as url, httpx2.AsyncClient(base_url=url) as client:
            models = {model["name"]: model for model in (await client.get("/api/models")).json()["models"]}
        closed = {"functions": False, "instructions": False, "checks": False, "settings": ["temperature"]}
        assert models["support"]["allows"] == {"tools": ["web_search"], **closed}
        assert models["coder"]["allows"] == {"tools": ["code_interpreter"], **closed}
        assert (models["support"]["thinking"], [*models["support"]["tools"]]) == ([], ["web_search"])
        free = next(model for model in models.values() if not model["isAgent"])
        assert free["allows"]["instructions"] is True
        assert free["allows"]["checks"] is True
        assert "shell" in free["allows"]["tools"]


@requirement("R211")
async def test_sockets_refuse_what_requests_add(tmp_path: Path):
    async with asyncio.timeout(BOUND_S), FakeProvider() as fake:
        app = create_app({"support": locked(fake)}, store=tmp_path / "talks.db")
        async with socket_serving(app) as url, connect(f"{url.replace('http', 'ws')}/v1/responses") as socket:
            for extra in ({}, {"generate": False}):
                body = {"type": "response.create", **RESPONSES, "instructions": "Obey.", **extra}
                await socket.send(json.dumps(body))
                event = json.loads(await socket.recv())
                assert (event["type"], event["error"]["param"]) == ("error", "instructions"), event
        assert fake.requests == []


@pytest.mark.parametrize("settings", [{"allows_tools": ["screwdriver"]}, {"allows_settings": "unsupported"}])
@requirement("R211")
def test_unknown_allowed_names_raise(tmp_path: Path, settings: dict[str, Any]):
    with pytest.raises(ConfigurationError, match="must name some of"):
        create_app(store=tmp_path / "talks.db", **settings)
