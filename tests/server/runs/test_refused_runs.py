"""Runs whose request cannot even be made end with the reason."""

import json
from pathlib import Path

from requirements import requirement
from server.serving import serving
from sidestream import Agent, FileSearch
from sidestream.testing import FakeProvider


@requirement("R141")
async def test_run_fails_with_reason_when_request_cannot_be_built(tmp_path: Path):
    async with FakeProvider() as fake:
        tools = [FileSearch(stores=["vs_1"], execution="provider")]
        agent = Agent("openai", base_url=fake.base_url, api_key="none", server_side_tools=tools)
        async with serving({"main": agent}, tmp_path) as (_, client):
            body = {"model": "main", "input": "Find it.", "store": True, "stream": True}
            response = await client.post("/v1/responses", json=body)
            events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
            assert events[-1]["type"] == "response.failed"
            assert "does not host FileSearch" in events[-1]["response"]["error"]["message"]
    assert fake.requests == []
