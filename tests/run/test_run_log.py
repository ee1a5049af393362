"""The log lines of a run."""

import logging
import re

import pytest

from sidestream import Agent
from sidestream.testing import FakeProvider, responses_text, sse
from sidestream.wire.http import close_session


async def test_debug_log_names_events_without_content(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, "sidestream")
    async with FakeProvider([sse(responses_text("Hello"))]) as fake:
        await Agent("openai-responses", base_url=fake.base_url, api_key="k").send("hi")
        await close_session()
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("event ")]
    assert all(re.fullmatch(r"event response\.[a-z_.]+ \(\d+ bytes\)", line) for line in lines)
    assert {"response.created", "response.output_text.delta", "response.completed"} <= {
        line.split()[1] for line in lines
    }
