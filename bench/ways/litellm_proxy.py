"""LiteLLM's proxy, with one model and nothing else configured."""

import json
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench import relaying
from bench.relaying import Relay, completion_body

_relays: dict[str, Relay] = {}


def _relay(url: str) -> Relay:
    if url not in _relays:
        model = {"model": "openai/main", "api_base": f"{url}/v1", "api_key": "none"}
        config = Path(tempfile.mkdtemp(prefix="sidestream-bench-")) / "config.yaml"
        settings = {
            "model_list": [{"model_name": "main", "litellm_params": model}],
            "general_settings": {"dangerously_permit_weak_or_unset_master_key": True},
        }
        config.write_text(json.dumps(settings), "utf-8")  # JSON is YAML.
        port = relaying.free_port()
        program = str(Path(sys.executable).parent / "litellm")
        command = [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
        _relays[url] = relaying.started(command, port, "/v1/chat/completions", completion_body)
    return _relays[url]


def _through(
    measure: Callable[[Relay, dict[str, Any]], Awaitable[dict[str, Any]]],
) -> Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]:
    async def run(url: str, task: dict[str, Any]) -> dict[str, Any]:
        return await measure(_relay(url), task)

    return run


PROGRAMS = {
    "relay": _through(relaying.throughput),
    "relay-lag": _through(relaying.lag),
    "relay-idle": _through(relaying.idle),
}


async def close() -> None:
    """Ends the proxies."""
    for relay in _relays.values():
        relay.close()
