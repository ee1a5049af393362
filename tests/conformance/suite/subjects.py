"""Who is tested: each provider over a scripted server, the embedded model, and, with `make live`, the real APIs.

To put a provider of yours to the suite, add a row to `ROWS`.
"""

import importlib.util
import json
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal, NamedTuple

from conformance.suite.wires import (
    Bedrock,
    Completions,
    GenerateContent,
    Interactions,
    Json,
    Messages,
    Responses,
    Said,
    Script,
    Vertex,
    Wire,
    XaiResponses,
)
from sidestream import Agent, OpenAIChatOptions, OpenAIResponsesOptions
from sidestream.errors import ConfigurationError
from sidestream.limits import Limits
from sidestream.parts import StreamPart
from sidestream.providers.anthropic import AnthropicOptions, AnthropicThinking
from sidestream.providers.anthropic.clouds import HOSTS
from sidestream.providers.capabilities import Capabilities
from sidestream.providers.google import GoogleInteractionsOptions, GoogleOptions, GoogleThinking
from sidestream.providers.openai import responses
from sidestream.providers.openai.chat import PRESETS
from sidestream.providers.openai.responses.options import Reasoning
from sidestream.providers.protocol import Provider
from sidestream.providers.registry import caps_of, find_provider
from sidestream.stream import grammar
from sidestream.testing import FakeProvider, Received, Reply
from sidestream.transport.calls import HttpCall, HttpResponse, Transport
from sidestream.wire.http import HttpTransport, close_session
from sidestream.wire.retry import RetryPolicy

KEY = "sk-canary-0123456789abcdef"
LIVE = "SIDESTREAM_LIVE"
"""With a provider's name behind it (`SIDESTREAM_LIVE_GROQ`) a variable that names the model to test there."""
LIVE_PLUGIN = "sidestream-live"
AT_ONCE = RetryPolicy(wait_initial_s=0.001, wait_max_s=0.002)
BOUNDED = Limits(first_byte_timeout_s=60, idle_timeout_s=60, max_steps=6)


class Row(NamedTuple):
    """A provider in the suite."""

    provider: str
    wire: Wire
    cheap: str | None
    """The model for `make live`; None: it must be named."""
    options: Any
    """For short answers."""
    thinks: Any
    """The options under which the model thinks aloud."""
    prefix: str = ""
    """What stands before a model's name."""
    named: str = ""
    """The model for scripts, if the provider has no default."""

    @property
    def id(self) -> str:
        return f"{self.provider}-{self.prefix.rstrip('/')}" if self.prefix else self.provider


CHAT = OpenAIChatOptions(max_completion_tokens=2000)
THINKING_CHAT = OpenAIChatOptions(max_completion_tokens=4000, reasoning_effort="medium")
ROWS = (
    Row(
        "openai-responses",
        Responses(),
        "gpt-5.4-mini",
        OpenAIResponsesOptions(max_output_tokens=2000),
        OpenAIResponsesOptions(reasoning=Reasoning(effort="medium", summary="detailed")),
    ),
    Row(
        "xai",
        XaiResponses(),
        None,
        OpenAIResponsesOptions(max_output_tokens=2000),
        OpenAIResponsesOptions(reasoning=Reasoning(effort="high", summary="detailed")),
    ),
    Row("openai", Completions(), "gpt-5.4-mini", CHAT, THINKING_CHAT),
    Row("openrouter", Completions(), None, CHAT, THINKING_CHAT),
    Row(
        "anthropic",
        Messages(),
        "claude-haiku-5-5",
        AnthropicOptions(max_tokens=1000),
        AnthropicOptions(max_tokens=4000, thinking=AnthropicThinking(type="enabled", budget_tokens=1024)),
    ),
    Row(
        "google",
        GenerateContent(),
        "gemini-3-flash-preview",
        GoogleOptions(max_output_tokens=2000),
        GoogleOptions(thinking=GoogleThinking(include_thoughts=True, level="high")),
    ),
    Row(
        "google",
        Interactions(),
        "gemini-3-flash-preview",
        GoogleInteractionsOptions(max_output_tokens=2000),
        GoogleInteractionsOptions(thinking_level="high", thinking_summaries="auto"),
        prefix="interactions/",
    ),
)
CLAUDE = next(row for row in ROWS if row.provider == "anthropic")
CLOUDS = tuple(
    Row(name, wire, None, CLAUDE.options, CLAUDE.thinks, named=f"{prefix}claude-sonnet-5-5{suffix}")
    for name, wire, prefix, suffix in (
        ("anthropic-vertex", Vertex(), "", "@20261001"),
        ("anthropic-bedrock", Bedrock(), "us.anthropic.", "-20261001-v1:0"),
    )
)
"""Hosts whose requests or streams have another form. Faults of the network are not tested for them again."""
EMBEDDED = Row("local", Completions(), None, OpenAIChatOptions(temperature=0, max_completion_tokens=60), None)
THINKING = OpenAIResponsesOptions(reasoning=Reasoning(effort="high", summary="detailed"))
OTHER_PRESETS = (
    *(Row(preset.name, Completions(), None, CHAT, THINKING_CHAT) for preset in PRESETS if preset.name != "openrouter"),
    *(Row(preset.name, Responses(), None, None, THINKING) for preset in responses.PRESETS if preset.name != "xai"),
    *(Row(host.name, Messages(), None, CLAUDE.options, CLAUDE.thinks) for host in HOSTS),
)


class Watched:
    """A transport that keeps the calls that it passes on."""

    def __init__(self, inner: Transport) -> None:
        self.calls: list[HttpCall] = []
        self._inner = inner

    async def open(self, call: HttpCall, limits: Limits) -> HttpResponse:
        self.calls.append(call)
        return await self._inner.open(call, limits)

    async def download(self, call: HttpCall, limits: Limits) -> bytes:
        self.calls.append(call)
        return await self._inner.download(call, limits)


class Talk(NamedTuple):
    """An agent of the provider, and what went out."""

    agent: Agent[Any]
    transport: Watched
    fake: FakeProvider | None

    @property
    def bodies(self) -> list[Json]:
        """The requests that were made, each once however often it was tried."""
        return [json.loads(call.body) for call in self.transport.calls if call.body]


class Subject(NamedTuple):
    """A provider in one of the three settings."""

    row: Row
    setting: Literal["scripted", "embedded", "live"]
    model: str

    @property
    def id(self) -> str:
        return self.row.id

    @property
    def wire(self) -> Wire:
        return self.row.wire

    @property
    def provider(self) -> Provider:
        return find_provider(self.row.provider)

    @property
    def caps(self) -> Capabilities:
        return caps_of(self.provider, self.model.partition(":")[2])

    def tells(self, text: str, exactly: str, gist: str) -> bool:
        """Whether a text is what was scripted; of a real model, whether it holds the gist of it."""
        return text == exactly if self.setting == "scripted" else gist.lower() in text.lower()

    @asynccontextmanager
    async def open(self, *answers: Said | tuple[Said, ...] | Reply, **settings: Any) -> AsyncGenerator[Talk]:
        """An agent. The answers are what a scripted server says; real models are asked by the prompt to say it."""
        given: dict[str, Any] = {"options": self.row.options, "limits": BOUNDED, **settings}
        inner = given.pop("inner", None)
        try:
            if self.setting != "scripted":
                transport = Watched(inner or self.provider.transport("", HttpTransport) or HttpTransport())
                yield Talk(Agent(self.model, transport=transport, **given), transport, None)
                return
            transport = Watched(inner or HttpTransport(retry=AT_ONCE))
            script = [self.answer(answer) for answer in answers]
            async with FakeProvider(script, base_path=self.wire.base_path) as fake:
                agent = Agent(
                    self.model, **{"base_url": fake.base_url, "api_key": KEY, "transport": transport, **given}
                )
                yield Talk(agent, transport, fake)
                assert fake.unexpected == []
        finally:
            await close_session()

    def answer(self, answer: Said | tuple[Said, ...] | Reply) -> Any:
        """What the server gives: a stream where one is asked for, else the whole answer."""
        if isinstance(answer, Reply):
            return answer
        said = (answer,) if hasattr(answer, "_fields") else answer
        script: Script = self.wire.script(*said)
        return lambda request: script.reply() if _asks_for_stream(request) else script.whole_reply()


def _asks_for_stream(request: Received) -> bool:
    return request.asks_for_stream


async def run_parts(agent: Agent[Any], prompt: Any, **call: Any) -> list[StreamPart]:
    """The parts of a run; they are legal."""
    async with agent.stream(prompt, **call) as run:
        parts = [part async for part in run]
    grammar.check(parts)
    return parts


def scripted() -> list[Subject]:
    """Each provider over a server that says what a test tells it to."""
    return [_scripted(row) for row in ROWS]


def clouds() -> list[Subject]:
    """Known APIs on clouds, over such a server."""
    return [_scripted(row) for row in CLOUDS]


def _scripted(row: Row) -> Subject:
    model = row.named or row.prefix + find_provider(row.provider).default_models["chat"]
    return Subject(row, "scripted", f"{row.provider}:{model}")


def embedded() -> tuple[Subject, str | None]:
    """The embedded model, and why it cannot be tested here."""
    from sidestream.providers.local.files import PACKAGES, folder_of

    missing = [name for name in ("xllamacpp", "numpy", "tokenizers") if importlib.util.find_spec(name) is None]
    for package in PACKAGES.values():
        try:
            folder_of(package)
        except ConfigurationError:
            missing.append(package.distribution)
    reason = f"no embedded model: {', '.join(missing)} not installed (`make setup` installs them)" if missing else None
    return Subject(EMBEDDED, "embedded", "local"), reason


def live(environment: Mapping[str, str]) -> tuple[list[Subject], dict[str, str]]:
    """The providers that can be tested for real, and why the others cannot."""
    found: list[Subject] = []
    left_out = {EMBEDDED.id: "runs in `make test`, with the real model"}
    for row in (*ROWS, *OTHER_PRESETS):
        variables: tuple[str, ...] = getattr(find_provider(row.provider), "key_variables", ())
        choice = f"{LIVE}_{re.sub(r'[^A-Z0-9]', '_', row.id.upper())}"
        model = environment.get(choice, "").strip() or row.cheap
        if variables and not any(environment.get(name, "").strip() for name in variables):
            left_out[row.id] = f"{' or '.join(variables)} is not set"
        elif model is None:
            left_out[row.id] = f"no model is named: set {choice}"
        else:
            found.append(Subject(row, "live", f"{row.provider}:{row.prefix}{model.removeprefix(row.prefix)}"))
    return found, left_out
