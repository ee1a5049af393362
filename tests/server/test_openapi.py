"""The description of the server's API: complete, valid, and true of the answers in a session."""

import json
import re
import runpy
from base64 import b64encode
from pathlib import Path
from typing import Any, get_type_hints

import httpx2
import jsonschema
import msgspec
import pytest
from openapi_spec_validator import validate
from starlette.applications import Starlette
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from requirements import requirement
from server.chat_client import user
from server.serving import agent_of, serving
from sidestream import jsontext
from sidestream.protocols.ai_sdk import data_parts
from sidestream.protocols.ai_sdk.data_parts import DataParts
from sidestream.server import create_app
from sidestream.server.openapi import OPERATIONS, endpoints
from sidestream.testing import FakeProvider, ResponsesScript, error_reply
from sidestream.transport.waits import RequestWait
from support.places import ROOT

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)
PAGES = ("/assets/", "/c/", "/r/", "/view/", "/settings/", "/icon", "/licences.txt")
Json = Any


def document(app: Any, path: str = "/openapi.json") -> Json:
    return TestClient(app, base_url="http://127.0.0.1").get(path).json()


@requirement("R214")
def test_every_endpoint_is_described(tmp_path: Path):
    app = create_app("local", store=tmp_path / "talks.db")
    found = endpoints(app.routes)
    assert set(found) == set(OPERATIONS), "add the endpoint to OPERATIONS in server/openapi.py"
    assert all(found.values())
    paths = {route.path for route in app.routes if isinstance(route, Route)}
    described = {re.sub(r"\{(\w+)\}", r"{\1}", path) for path in document(app)["paths"]}
    rest = {re.sub(r":\w+", "", path) for path in paths} - described
    assert all(path == "/" or path.startswith(PAGES) for path in rest), rest


@requirement("R214")
def test_description_is_valid_openapi(tmp_path: Path):
    app = create_app("local", store=tmp_path / "talks.db", tokens=["token-of-anna-0123456789"])
    described = document(app)
    validate(described)
    assert described["openapi"] == "3.1.0"
    assert described["servers"] == [{"url": "/"}]
    assert described["paths"]["/api/runs"]["get"]["security"] == [{"token": []}]
    outer = Starlette(routes=[Mount("/ai", app)])
    assert document(outer, "/ai/openapi.json")["servers"] == [{"url": "/ai"}]


@requirement("R214")
def test_documented_endpoints_are_up_to_date() -> None:
    page = (ROOT / "docs/server.md").read_text("utf-8")
    filled = runpy.run_path(str(ROOT / "tools/docs/generate.py"))["with_endpoints"](page)
    assert filled == page, "run: python tools/docs/generate.py"


@requirement("R214")
def test_typescript_types_are_up_to_date() -> None:
    tool = runpy.run_path(str(ROOT / "tools/ui_types.py"))
    for path in tool["TARGETS"]:
        assert path.read_text("utf-8") == tool["typescript"](), "run: python -m tools.ui_types"


@requirement("R214")
def test_every_data_part_has_type() -> None:
    folder = Path(data_parts.__file__).parent
    text = "".join(path.read_text("utf-8") for path in folder.glob("*.py"))
    sent = {*re.findall(r'data_part\(\s*"(\w+)"', text), *re.findall(r'"type": "data-(\w+)"', text)}
    assert sent == get_type_hints(DataParts).keys(), "add the part to data_parts.py"
    wait = RequestWait(reason="retry", since=1.0, until=2.0, message="m", cause="429", attempt=2, attempts=3)
    assert {*jsontext.as_object(wait.part().data)} == get_type_hints(data_parts.WaitingData).keys()


class Checked:
    """Compares every JSON answer of a client with its description, and each `data-*` part with its type."""

    def __init__(self, client: httpx2.AsyncClient, described: Json) -> None:
        self.client = client
        self.seen: set[str] = set()
        self.parts: set[str] = set()
        self._described = described
        self._shapes = get_type_hints(DataParts, include_extras=True)

    async def ask(self, method: str, path: str, body: Json = None, *, status: int = 200) -> Json:
        response = await self.client.request(method, path, json=body)
        assert response.status_code == status, f"{method} {path}: {response.text}"
        endpoint, operation = self._operation(method, path.partition("?")[0])
        self.seen.add(endpoint)
        answers = operation["responses"]
        answer = answers.get(str(status), answers["default"])
        kind = response.headers.get("content-type", "").partition(";")[0]
        if kind == "text/event-stream":
            assert kind in answer["content"]
            return self._chunks(response.text)
        if not response.content:
            assert "content" not in answer
            return None
        if "application/octet-stream" in answer["content"] or kind != "application/json":
            return response.content
        schema = answer["content"]["application/json"]["schema"]
        found = response.json()
        jsonschema.validate(found, {**schema, "components": self._described["components"]})
        if body is not None and status < 400:
            sent = operation["requestBody"]["content"]["application/json"]["schema"]
            jsonschema.validate(body, {**sent, "components": self._described["components"]})
        return found

    def _operation(self, method: str, path: str) -> tuple[str, Json]:
        for template, operations in self._described["paths"].items():
            pattern = re.sub(r"\{\w+\}", "[^/]+", template)
            if re.fullmatch(pattern, path) and method.lower() in operations:
                return f"{method} {template}", operations[method.lower()]
        raise AssertionError(f"{method} {path} is not described")

    def _chunks(self, text: str) -> list[Json]:
        chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        for chunk in chunks:
            kind = str(chunk.get("type"))
            if kind.startswith("data-"):
                shape = self._shapes[kind.removeprefix("data-")]
                self.parts.add(kind)
                msgspec.convert(chunk["data"], shape, strict=False)
                assert chunk["data"].keys() <= get_type_hints(shape).keys(), kind
        return chunks


def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


@requirement("R214")
async def test_answers_of_session_match_description(tmp_path: Path):
    replies = [
        ResponsesScript().reasoning("Think.").web_search("orders").function_call("refund", {"order": "7"}).reply(),
        ResponsesScript().code_interpreter("print(1)").image(PNG).text("Done.").reply(),
        error_reply(400, "invalid_request_error", "no"),
        *(ResponsesScript().text("Fine.").reply() for _ in range(9)),
    ]
    picture = {"type": "file", "mediaType": "image/png", "url": f"data:image/png;base64,{b64encode(PNG).decode()}"}
    mcp = tmp_path / "mcp.json"
    mcp.write_text('{"mcpServers": {"time": {"command": "time-server"}}}')
    async with (
        FakeProvider(replies) as fake,
        serving(
            {"main": agent_of(fake, tools=[refund], approval="ask")},
            tmp_path,
            allows_admin=True,
            mcp_file=str(mcp),
            index_folders=[str(tmp_path)],
        ) as (_, client),
    ):
        checked = Checked(client, (await client.get("/openapi.json")).json())
        ask = checked.ask
        # A chat with a file, an approval, a failure and a steering message that comes too late.
        question = user("Refund order 7.")
        question["parts"].append(picture)
        await ask("POST", "/api/chat", {"id": "c1", "messages": [question]})
        chat = await ask("GET", "/api/chat/c1")
        (waiting,) = [part for part in chat["messages"][-1]["parts"] if part["type"] == "data-approval"]
        approval = {"approvalId": waiting["data"]["approval"], "digest": waiting["data"]["digest"]}
        decided = {"id": "c1", "decisions": [{**approval, "approved": True, "remember": "conversation"}]}
        await ask("POST", "/api/chat", decided)
        grants = await ask("GET", "/api/chat/c1/grants")
        (url,) = {part["url"] for part in (await ask("GET", "/api/chat/c1"))["messages"][0]["parts"] if "url" in part}
        assert await ask("GET", url) == PNG
        await ask("POST", "/api/chat", {"id": "c1", "messages": [user("And now?", "u2")]})
        await ask("GET", "/api/chat/c1/stream", status=204)
        await ask("POST", "/api/chat/c1/stop")
        await ask("POST", "/api/chat/c1/steer", {"text": "Wait."}, status=409)
        run = (await ask("GET", "/api/chat/c1"))["run"]["id"]
        for path in ("records", "export"):
            await ask("GET", f"/api/runs/{run}/{path}")
        await ask("POST", f"/api/runs/{run}/resume", status=202)
        await ask("POST", f"/api/runs/{run}/stop")
        last = (await ask("GET", f"/api/runs/{run}/records"))["records"][-1]["seq"]
        await ask("POST", f"/api/runs/{run}/fork", {"at": last}, status=201)
        for grant in grants["grants"]:
            await ask("DELETE", f"/api/chat/c1/grants/{grant['id']}", status=204)
        # The compatible APIs.
        response = await ask("POST", "/v1/responses", {"model": "main", "input": "Hi"})
        for path in ("", "/input_items"):
            await ask("GET", f"/v1/responses/{response['id']}{path}")
        await ask("POST", f"/v1/responses/{response['id']}/cancel")
        await ask("POST", "/v1/responses/input_tokens", {"input": "Hi"})
        await ask("POST", "/v1/responses/compact", {"model": "main", "input": "Hi"})
        await ask("GET", f"/v1/containers/cntr_{response['id'].removeprefix('resp_')}/files", status=404)
        await ask("DELETE", f"/v1/responses/{response['id']}")
        asked = [{"role": "user", "content": "Hi"}]
        await ask("POST", "/v1/chat/completions", {"model": "main", "messages": asked})
        await ask("POST", "/v1/messages", {"model": "main", "messages": asked, "max_tokens": 9})
        await ask("POST", "/v1/messages", {"model": "nobody", "messages": asked, "max_tokens": 9}, status=404)
        await ask("POST", "/v1/messages/count_tokens", {"model": "main", "messages": asked})
        items = [{"role": "user", "content": "Hi"}]
        conversation = (await ask("POST", "/v1/conversations", {"items": items}))["id"]
        await ask("GET", f"/v1/conversations/{conversation}")
        await ask("POST", f"/v1/conversations/{conversation}", {"metadata": {"a": "b"}})
        await ask("POST", f"/v1/conversations/{conversation}/items", {"items": items})
        listed = await ask("GET", f"/v1/conversations/{conversation}/items")
        await ask("GET", f"/v1/conversations/{conversation}/items/{listed['first_id']}")
        await ask("DELETE", f"/v1/conversations/{conversation}/items/{listed['first_id']}", status=400)
        await ask("DELETE", f"/v1/conversations/{conversation}")
        agui = {"threadId": "c2", "runId": "r1", "messages": [{"id": "1", "role": "user", "content": "Hi"}]}
        await ask("POST", "/api/agui", {**agui, "tools": [], "context": [], "state": {}, "forwardedProps": {}})
        # The console.
        for path in ("about", "models", "keys", "mcp", "indexes", "engine", "runs", "conversations"):
            await ask("GET", f"/api/{path}")
        await ask("PATCH", "/api/conversations/c1", {"title": "Refund", "pinned": True})
        await ask("GET", "/api/conversations?search=Refund")
        await ask("GET", "/v1/models")
        await ask("GET", "/v1/models/main")
        await ask("POST", "/api/sign-in", status=204)
        await ask("PUT", "/api/mcp/time", {"disabled": True})
        await ask("DELETE", "/api/mcp/time")
        await ask("DELETE", "/api/chat/c1", status=204)
        await ask("GET", "/api/runs/none/records", status=404)
        for path in ("/healthz", "/readyz", "/openapi.json"):
            await ask("GET", path)
    assert {"data-run", "data-step", "data-tool", "data-approval", "data-notice"} <= checked.parts
    assert len(checked.seen) > 45
