"""Malformed requests of the Responses API: a typed error that names the parameter, and nothing is sent to a model."""

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from requirements import requirement
from server.response_client import ADD, responding, said
from server.serving import serving
from sidestream.server import Caps
from sidestream.server.errors import RequestError
from sidestream.server.responses.input_items import compacted_item, compacted_text

Json = Any
HELLO: Json = {"input": "Hi"}
PNG = "data:image/png;base64,iVBORw0KGgo="


def message(*content: Json, role: str = "user") -> Json:
    return {"input": [{"type": "message", "role": role, "content": list(content)}]}


def answered_with(schema: Json) -> Json:
    return {**HELLO, "text": {"format": {"type": "json_schema", "name": "n", "schema": schema}}}


BAD: list[tuple[Json, str | None]] = [
    ({}, "input"),
    ({"input": []}, "input"),
    ({"input": ""}, "input"),
    ({"input": 7}, "input"),
    ({"input": ["text"]}, "input[0]"),
    ({"input": [{"type": "nothing"}]}, "input[0].type"),
    ({"input": [{}]}, "input[0].type"),
    ({"input": [{"role": "nobody", "content": "Hi"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": ""}]}, "input[0].content"),
    (message({"type": "input_text", "text": ""}), "input[0].content"),
    ({"input": [{"role": "assistant", "content": "Hi"}]}, "input"),
    ({"input": [{"role": "system", "content": "Hi"}]}, "input"),
    (message({"type": "nothing"}), "input[0].content[0].type"),
    (message({"type": "input_text"}), "input[0].content[0].text"),
    (message({"type": "input_text", "text": 7}), "input[0].content[0].text"),
    (message({"type": "input_image", "image_url": "file:///etc/passwd"}), "input[0].content[0].image_url"),
    (message({"type": "input_image", "image_url": "data:image/png;base64,%%"}), "input[0].content[0].image_url"),
    (message({"type": "input_image", "file_id": "file_1"}), "input[0].content[0].file_id"),
    (message({"type": "input_image", "image_url": "x" * (20 * 1024 * 1024 + 1)}), "input[0].content[0].image_url"),
    (message({"type": "input_video", "video_url": "x"}), "input[0].content[0].video_url"),
    (message({"type": "input_file"}), "input[0].content[0].file_data"),
    (message({"type": "input_image", "image_url": PNG}, role="system"), "input[0].content"),
    ({"input": [{"type": "function_call", "name": "add", "arguments": "{}"}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call_output", "call_id": "c1"}]}, "input[0].output"),
    ({"input": [{"type": "function_call_output", "call_id": "c1", "output": "3"}]}, "input[0].call_id"),
    ({"input": [{"type": "mcp_approval_response", "approval_request_id": "x"}]}, "input[0].approve"),
    ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input[0].encrypted_content"),
    ({**HELLO, "temperature": 3}, "temperature"),
    ({**HELLO, "temperature": "hot"}, "temperature"),
    ({**HELLO, "top_p": -1}, "top_p"),
    ({**HELLO, "max_output_tokens": 0}, "max_output_tokens"),
    ({**HELLO, "max_tool_calls": 0}, "max_tool_calls"),
    ({**HELLO, "top_logprobs": 21}, "top_logprobs"),
    ({**HELLO, "stream": "yes"}, "stream"),
    ({**HELLO, "truncation": "some"}, "truncation"),
    ({**HELLO, "service_tier": "gold"}, "service_tier"),
    ({**HELLO, "reasoning": {"effort": "much"}}, "reasoning.effort"),
    ({**HELLO, "reasoning": {"summary": "long"}}, "reasoning.summary"),
    ({**HELLO, "text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({**HELLO, "text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    (answered_with({}), "text.format.schema"),
    (answered_with({"type": "array", "items": {}}), "text.format.schema"),
    (answered_with({"$ref": "#/$defs/missing"}), "text.format.schema"),
    ({**HELLO, "text": {"verbosity": "chatty"}}, "text.verbosity"),
    ({**HELLO, "metadata": {"a": 7}}, "metadata[...]"),
    ({**HELLO, "metadata": {str(n): "" for n in range(17)}}, "metadata"),
    ({**HELLO, "prompt_cache_key": "x" * 65}, "prompt_cache_key"),
    ({**HELLO, "safety_identifier": "x" * 129}, "safety_identifier"),
    ({**HELLO, "prompt": {"id": "p"}}, "prompt"),
    ({**HELLO, "background": True, "store": False}, "background"),
    ({**HELLO, "previous_response_id": "x", "conversation": "y"}, "previous_response_id"),
    ({**HELLO, "tools": [{}]}, "tools[0].type"),
    ({**HELLO, "tools": [{"type": "telepathy"}]}, "tools[0].type"),
    ({**HELLO, "tools": [{"type": "function"}]}, "tools[0].name"),
    ({**HELLO, "tools": [{**ADD, "name": "a b"}]}, "tools[0].name"),
    ({**HELLO, "tools": [{**ADD, "parameters": {"type": "array"}}]}, "tools[0].parameters"),
    ({**HELLO, "tools": [{**ADD, "parameters": 7}]}, "tools[0].parameters"),
    ({**HELLO, "tools": [{**ADD, "parameters": {"type": "object", "properties": 7}}]}, "tools[0].parameters"),
    ({**HELLO, "tools": [{"type": "custom"}]}, "tools[0].name"),
    ({**HELLO, "tools": [ADD, ADD]}, "tools[1].name"),
    ({**HELLO, "tools": [{"type": "file_search"}]}, "tools[0]"),
    ({**HELLO, "tools": [{"type": "web_search", "search_context_size": "huge"}]}, "tools[0]"),
    ({**HELLO, "tools": [{"type": "file_search", "vector_store_ids": ["v"], "filters": {"type": "like"}}]}, "tools[0]"),
    (
        {**HELLO, "tools": [{"type": "code_interpreter", "container": {"network_policy": {"domain_secrets": []}}}]},
        "tools[0].container.network_policy.domain_secrets",
    ),
    ({**HELLO, "tools": [ADD], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
    ({**HELLO, "tools": [ADD], "tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice.tools"),
    ({**HELLO, "tools": [ADD], "tool_choice": "sometimes"}, "tool_choice"),
    (
        {**HELLO, "tools": [ADD], "tool_choice": {"type": "allowed_tools", "tools": [{"type": "web_search"}]}},
        "tool_choice.tools[0]",
    ),
]


@requirement("R140")
async def test_malformed_request_gets_typed_error_with_param(tmp_path: Path):
    async with responding([], tmp_path) as served, httpx2.AsyncClient() as client:
        for body, param in BAD:
            answer = await client.post(f"{served.url}/v1/responses", json={"model": "main", **body})
            error = answer.json()["error"]
            assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param), body
            assert error["message"], body
            assert error.keys() == {"message", "type", "param", "code"}
        assert not served.fake.requests
        assert await served.server.store.conversations() == []


HALF = '"\\ud83d"'
"""A string of JSON that is half a character."""


@requirement("R140")
@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/responses", '{"input": "Hi", "truncation": HALF}', "truncation"),
        ("/v1/responses", '{"input": "Hi", "tools": [{"type": "image_generation", "quality": HALF}]}', "tools[0]"),
        ("/v1/responses", '{"input": "Hi", "tools": [{"type": "function", "name": HALF}]}', "tools[0].name"),
        ("/v1/responses/input_tokens", '{"input": "Hi", "tool_choice": HALF}', "tool_choice"),
        ("/v1/conversations", '{"items": HALF}', "items"),
        ("/v1/chat/completions", '{"messages": [{"role": HALF}]}', "messages[0].role"),
        ("/v1/messages", '{"messages": HALF}', None),
    ],
)
async def test_lone_surrogate_in_field_is_rejected(path: str, body: str, param: str | None, tmp_path: Path):
    async with responding([], tmp_path) as served, httpx2.AsyncClient() as client:
        headers = {"content-type": "application/json"}
        answer = await client.post(served.url + path, content=body.replace("HALF", HALF), headers=headers)
        assert (answer.status_code, answer.json()["error"].get("param")) == (400, param)


@requirement("R140")
async def test_deeply_nested_schema_is_rejected(tmp_path: Path):
    schema: Json = {}
    for _ in range(300):
        schema = {"type": "object", "properties": {"a": schema}}
    async with responding([], tmp_path) as served, httpx2.AsyncClient() as client:
        body = {**HELLO, "tools": [{"type": "function", "name": "f", "parameters": schema}]}
        answer = await client.post(f"{served.url}/v1/responses", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools[0].parameters")


@requirement("R140")
async def test_lone_surrogate_in_text_is_accepted(tmp_path: Path):
    async with responding(said("Hello."), tmp_path) as served, httpx2.AsyncClient() as client:
        headers = {"content-type": "application/json"}
        answer = await client.post(f"{served.url}/v1/responses", content=f'{{"input": {HALF}}}', headers=headers)
        assert answer.json()["output"][0]["content"][0]["text"] == "Hello."


STRICT: list[tuple[Json, str]] = [
    ({**HELLO, "max_output_tokens": 15}, "max_output_tokens"),
    ({**HELLO, "reasoning": {"effort": "minimal"}}, "reasoning.effort"),
    ({**HELLO, "text": {"format": {"type": "json_object"}}}, "text.format"),
    ({**HELLO, "include": ["file_search_call.results"]}, "include[0]"),
    ({**HELLO, "service_tier": "scale"}, "service_tier"),
    ({**HELLO, "safety_identifier": "x" * 65}, "safety_identifier"),
]


@requirement("R140")
async def test_open_responses_dialect_rejects_openai_only_fields(tmp_path: Path):
    async with responding(said("1", "2", "{}", "4", "5", "6"), tmp_path) as served, httpx2.AsyncClient() as client:
        for body, param in STRICT:
            url, given = f"{served.url}/v1/responses", {"model": "main", **body}
            refused = await client.post(url, json=given, headers={"OpenResponses-Version": "1"})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
            assert (await client.post(url, json=given)).status_code == 200


@requirement("R140")
async def test_unknown_model_response_or_conversation_is_not_found(tmp_path: Path):
    missing = "resp_" + "0" * 32 + "2"
    async with serving("local", tmp_path, allows_models=False) as (_, client):
        for method, path, body, param, code in [
            ("POST", "/v1/responses", {**HELLO, "model": "nobody"}, "model", "model_not_found"),
            (
                "POST",
                "/v1/responses",
                {**HELLO, "previous_response_id": missing},
                "previous_response_id",
                "previous_response_not_found",
            ),
            (
                "POST",
                "/v1/responses",
                {**HELLO, "previous_response_id": "../x"},
                "previous_response_id",
                "previous_response_not_found",
            ),
            ("POST", "/v1/responses", {**HELLO, "conversation": "conv_0"}, "conversation", "not_found"),
            ("POST", "/v1/responses", {**HELLO, "conversation": "../talk"}, "conversation", "not_found"),
            (
                "POST",
                "/v1/responses",
                {"input": [{"type": "item_reference", "id": "msg_0"}]},
                "input[0].id",
                "not_found",
            ),
            ("GET", f"/v1/responses/{missing}", None, None, "not_found"),
            ("GET", "/v1/responses/resp_x", None, None, "not_found"),
            ("DELETE", f"/v1/responses/{missing}", None, None, "not_found"),
            ("POST", f"/v1/responses/{missing}/cancel", {}, None, "not_found"),
            ("GET", f"/v1/responses/{missing}/input_items", None, None, "not_found"),
            ("GET", "/v1/conversations/conv_0", None, None, "not_found"),
        ]:
            answer = await client.request(method, path, json=body)
            error = answer.json()["error"]
            assert (answer.status_code, error["type"], error["param"], error["code"]) == (
                404,
                "not_found",
                param,
                code,
            ), path


@requirement("R140")
async def test_invalid_bodies_are_rejected(tmp_path: Path):
    async with serving("local", tmp_path) as (server, client):
        for data, kind, status in (
            (b'{"input": "Hi', "application/json", 400),
            (b"[]", "application/json", 400),
            (b"\xff", "application/json", 400),
            (b"[" * 100_000, "application/json", 400),
            (b"input=Hi", "application/x-www-form-urlencoded", 415),
        ):
            answer = await client.post("/v1/responses", content=data, headers={"content-type": kind})
            assert (answer.status_code, bool(answer.json()["error"]["message"])) == (status, True)
        assert await server.store.conversations() == []


@requirement("R140")
async def test_truncated_body_starts_no_run(tmp_path: Path):
    async with responding(said("Hi."), tmp_path) as served:
        host, port = served.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /v1/responses HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n"
        writer.write(head.encode() + b'{"model": "main", "inp')
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert await reader.read() == b""
        answer = await served.client.responses.create(model="main", input="Hi")  # The next one is served.
        assert answer.output_text == "Hi."
        assert len(served.fake.requests) == 1


@requirement("R140")
@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("stream=true&starting_after=x", "starting_after"),
        ("stream=true&starting_after=-1", "starting_after"),
        ("starting_after=3", "starting_after"),
        ("dialect=latin", "dialect"),
    ],
)
async def test_invalid_retrieval_query_is_rejected_with_param(query: str, param: str, tmp_path: Path):
    async with responding(said("Hi."), tmp_path) as served, httpx2.AsyncClient() as client:
        response = await served.client.responses.create(model="main", input="Hi")
        answer = await client.get(f"{served.url}/v1/responses/{response.id}?{query}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        for wrong in ("limit=0", "limit=101", "limit=x", "order=up", "after=msg_0"):
            answer = await client.get(f"{served.url}/v1/responses/{response.id}/input_items?{wrong}")
            assert answer.json()["error"]["param"] == wrong.partition("=")[0]


@requirement("R140")
async def test_errors_have_types_of_their_dialect(tmp_path: Path):
    caps = Caps(requests_per_minute=1)
    async with responding(said("1"), tmp_path, server={"caps": caps}) as served, httpx2.AsyncClient() as client:
        url, body = f"{served.url}/v1/responses", {"model": "main", **HELLO}
        assert (await client.post(url, json=body)).status_code == 200
        for headers, kind in (({}, "rate_limit_error"), ({"OpenResponses-Version": "1"}, "too_many_requests")):
            refused = await client.post(url, json=body, headers=headers)
            assert (refused.status_code, refused.json()["error"]["type"]) == (429, kind)
            assert int(refused.headers["retry-after"]) > 0


def test_compaction_without_its_mark_is_refused():
    content = compacted_item("A summary.", "c1")["encrypted_content"]
    assert compacted_text(content, "input") == "A summary."
    with pytest.raises(RequestError):
        compacted_text(content.removeprefix("ssc1_"), "input")
