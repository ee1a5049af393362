"""What the explanation of a prompt cache says, against providers whose caches are simulated token by token."""

import json
import random
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cli.command import Run
from requirements import requirement
from sidestream import Agent, AnthropicOptions, Chat, Context, Hooks, OpenAIResponsesOptions, tool
from sidestream.messages.message import TextPart
from sidestream.parts import Finish, InputUsage, Usage
from sidestream.replay.prompt_cache import (
    FIRST,
    HOSTED,
    OFF,
    SESSION,
    SHORT,
    CacheCall,
    CacheStep,
    cache_steps,
    explain_cache,
)
from sidestream.replay.provider import decoder_of
from sidestream.store import open_store
from sidestream.store.log.requests import ConversationRequest
from sidestream.testing import ChatScript, FakeProvider, GeminiScript, MessagesScript, Recording, ResponsesScript
from sidestream.wire.sse import Splitter
from support.places import RECORDINGS, SHARED

WORDS = [
    "the",
    "of",
    "policy",
    "refund",
    "customer",
    "order,",
    "lamp.",
    "warehouse",
    "(delivery)",
    "within",
    "fourteen",
    "days",
    "unless",
    "shipment",
    "damaged",
    "carrier",
    "must",
    "inform",
    "support",
    "before",
    "noon;",
    "escalate",
    "unresolved",
    "complaints",
    "to",
    "team",
    "lead",
    "and",
    "write",
    "down",
    "number",
]
APIS = {
    "anthropic": "anthropic:claude-sonnet-4-5",
    "openai-responses": "openai-responses:gpt-5",
    "openai-chat": "openai-chat:gpt-5",
    "google": "google:gemini-2.5-pro",
}
RATES = {"anthropic": (3.75, 0.3), "openai-responses": (1.25, 0.125), "openai-chat": (1.25, 0.125)}
RATES["google"] = (1.25, 0.125)
"""Dollars per million tokens that were written or sent again, and of tokens read."""
TIMES = [
    "2026-11-18T09:00:{:02}Z",
    "18 November 2026 09:{:02}",
    "Nov {}, 2026",
    "it is 9:{:02} am",
    "09:{:02}:07.123",
    "17954604{:02}",
    "Wed, 18 Nov 2026 09:{:02}:00 GMT",
    "2026-11-18 09:{:02}",
    "a1b2c3d4-0000-4000-8000-0000000000{:02}",
    "nonce 8fK2xYq{:02}w",
]


def prose(seed: int, words: int) -> str:
    chosen = random.Random(seed)
    return " ".join(chosen.choice(WORDS) for _ in range(words))


def tokens_of(text: str) -> list[str]:
    """Split a text as the simulated providers do: words in pieces of five letters, and their spaces with them."""
    return re.findall(r" ?[A-Za-z]{1,5}|\d{1,2}| ?[^\w\s]{1,3}|\s|\w", text)


def unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: unmarked(inner) for key, inner in value.items() if key != "cache_control"}
    return [unmarked(inner) for inner in value] if isinstance(value, list) else value


class Cache:
    """A provider with a prompt cache."""

    def __init__(self, api: str) -> None:
        self.api = api
        self.prompts: list[list[str]] = []
        self.reads: list[int] = []
        self.unbroken: list[int] = []
        """What each request would have read if it had only added to the one before."""
        self._held: list[list[str]] = []
        self._last = 0
        """Tokens up to the last mark of the request before."""

    def expire(self) -> None:
        self._held.clear()

    def usage(self, body: dict[str, Any]) -> dict[str, int]:
        """Read and write the cache for a request, and return the counts of read, written and all tokens."""
        pieces = self._pieces(body)
        prompt = [token for text, _ in pieces for token in tokens_of(text)]
        if self.api == "anthropic":
            ends, count = list[int](), 0
            for text, is_marked in pieces:
                count += len(tokens_of(text))
                ends += [count] if is_marked else []
            read = max((len(held) for held in self._held if prompt[: len(held)] == held), default=0)
            written = max(ends) - read
            self.unbroken.append(self._last)
            self._held += [prompt[:end] for end in ends if end >= 1024]
            self._last = max(ends)
        else:
            shared = max((same(held, prompt) for held in self._held), default=0)
            read, written = self._floor(shared), 0
            self._held.append(prompt)
        self.unbroken = [0, *map(self._floor, map(len, self.prompts))] if self.api != "anthropic" else self.unbroken
        self.prompts.append(prompt)
        self.reads.append(read)
        return {"read": read, "written": written, "total": len(prompt)}

    def _floor(self, count: int) -> int:
        if self.api == "google":
            return count if count >= 2048 else 0
        return count - count % 128 if count >= 1024 else 0

    def _pieces(self, body: dict[str, Any]) -> list[tuple[str, bool]]:
        """Return the texts of a prompt in order, and whether a mark ends each."""
        tools = body.get("tools", [])
        system = body.get("system") or body.get("instructions") or body.get("systemInstruction") or []
        said = body.get("messages") or body.get("input") or body.get("contents") or []
        parts = [system] if isinstance(system, str | dict) else system
        found = [(json.dumps(unmarked(entry)), "cache_control" in entry) for entry in tools]
        for entry in parts:
            text = entry if isinstance(entry, str) else entry.get("text") or entry["parts"][0]["text"]
            found.append((text, "cache_control" in entry))
        for message in said:
            content = message.get("content") or message.get("parts")
            blocks = content if isinstance(content, list) else [{"text": content}] if content else [message]
            for block in blocks:
                text = block.get("text") or json.dumps(unmarked(block))
                found.append((f"\n{message.get('role')}: {text}", "cache_control" in block))
        return found

    def answer(self, text: str = "", call: str = "") -> Callable[[Any], Any]:
        """Return an answer that says something or calls a tool."""

        def reply(request: Any) -> Any:
            made: Any = self._script(self.usage(request.json), request.json.get("model"))
            if not call:
                return made.text(text).reply()
            name = {"anthropic": "tool_use", "openai-chat": "tool_call"}.get(self.api, "function_call")
            return getattr(made, name)(call, {"query": "lamp"}).reply()

        return reply

    def _script(self, used: dict[str, int], model: str) -> Any:
        read, written, total = used["read"], used["written"], used["total"]
        match self.api:
            case "anthropic":
                usage = {"input_tokens": total - read - written, "output_tokens": 20}
                usage |= {"cache_read_input_tokens": read, "cache_creation_input_tokens": written}
                return MessagesScript(model="claude-sonnet-4-5", usage=usage)
            case "openai-responses":
                details: dict[str, Any] = {"input_tokens_details": {"cached_tokens": read}}
                details |= {"input_tokens": total, "output_tokens": 20, "total_tokens": total + 20}
                return ResponsesScript(model="gpt-5", usage=details)
            case "openai-chat":
                details = {"prompt_tokens": total, "completion_tokens": 20, "total_tokens": total + 20}
                return ChatScript(model=model, usage={**details, "prompt_tokens_details": {"cached_tokens": read}})
            case _:
                usage = {"promptTokenCount": total, "cachedContentTokenCount": read, "candidatesTokenCount": 20}
                return GeminiScript(model="gemini-2.5-pro", usage={**usage, "totalTokenCount": total + 20})


def same(one: Sequence[str], other: Sequence[str]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


class Breaker(Hooks):
    """Changes the requests from the third turn on."""

    def __init__(self, kind: str, variant: int) -> None:
        self.kind, self.variant, self.turn = kind, variant, 0

    def before_request(self, request: Any, context: Any) -> Any:
        late, at = self.turn >= 2, self.variant
        match self.kind:
            case "time":
                now = TIMES[at].format(12 + late)
                head, _, tail = request.system.partition("#")
                return replace(request, system=f"{head} Now: {now}. {tail}")
            case "order" if late:
                tools = [*request.tools]
                one, other = at % 5, (at % 5 + 1 + at // 5) % 6
                tools[one], tools[other] = tools[other], tools[one]
                return replace(request, tools=tuple(tools))
            case "schema" if late:
                tools = [*request.tools]
                spec = tools[at % 6]
                fields = {**spec.parameters["properties"]}
                if at < 5:
                    fields |= {"limit": {"type": "integer"}}
                else:
                    fields |= {"query": {**fields["query"], "description": f"Words of at most {at} letters."}}
                tools[at % 6] = replace(spec, parameters={**spec.parameters, "properties": fields})
                return replace(request, tools=tuple(tools))
            case "edit" if late:
                messages = [*request.messages]
                places = [place for place, message in enumerate(messages[:5]) if message.role == "user"]
                place = places[at % len(places)]
                text = prose(at, 20 + at)
                messages[place] = replace(messages[place], parts=(TextPart(text),))
                return replace(request, messages=tuple(messages))
            case _:
                return request


def tools_of() -> list[Any]:
    def made(at: int) -> Any:
        @tool(name=f"tool_{at}", description=prose(100 + at, 60))
        def look(query: str, language: str = "en", pages: int = 3) -> str:
            return prose(at, 150)

        return look

    return [made(at) for at in range(6)]


async def session(where: Path, api: str, breaker: Breaker) -> Cache:
    """Four turns, the first with a tool, of which the third is the first one to be broken."""
    cache = Cache(api)
    options: Any = {
        "anthropic": AnthropicOptions(prompt_cache="5m"),
        "openai-responses": OpenAIResponsesOptions(store=False),
    }.get(api)
    async with FakeProvider([cache.answer(call="tool_2")]) as fake:
        fake.add(*(cache.answer(text=prose(at, 120)) for at in range(4)))
        system = prose(1, 900 + 40 * breaker.variant) + "#" + prose(2, 500)
        agent = Agent(
            APIS[api],
            api_key="k",
            base_url=fake.base_url,
            system=system,
            tools=tools_of(),
            hooks=[breaker],
            options=options,
        )
        async with aclosing(open_store(where)) as store:
            chat = Chat(agent, store=store, id="talk")
            for turn in range(4):
                breaker.turn = turn
                if breaker.kind == "lifetime" and turn == 2:
                    cache.expire()
                await chat.send(prose(50 + turn, 100))
    if breaker.kind == "lifetime":
        age(where, 3, 301 + 400 * breaker.variant)
    return cache


def age(where: Path, requests: int, seconds: float) -> None:
    """Make the first requests older, with all records before the next one."""
    with closing(sqlite3.connect(where)) as log, log:
        seqs = [seq for (seq,) in log.execute("SELECT seq FROM records WHERE kind = 'request-sent' ORDER BY seq")]
        log.execute("UPDATE records SET time = time - ? WHERE seq < ?", (seconds, seqs[requests]))


async def explained(where: Path) -> list[CacheStep]:
    async with aclosing(open_store(where)) as store:
        return await cache_steps(store, "talk")


EXPECTED = {"time": "time", "order": "tool-order", "schema": "tool-schema", "edit": "edit", "lifetime": "lifetime"}
SYSTEM = {
    "anthropic": "system[0].text",
    "openai-responses": "instructions",
    "openai-chat": "messages[0].content",
    "google": "systemInstruction.parts[0].text",
}


def path_of(api: str, breaker: Breaker) -> str:
    """A pattern of the path that the first differing field has."""
    match breaker.kind:
        case "time":
            return re.escape(SYSTEM[api])
        case "order":
            return "tools"
        case "schema":
            at = breaker.variant % 6
            tool = rf"tools\[0\]\.functionDeclarations\[{at}\]" if api == "google" else rf"tools\[{at}\]"
            return rf"{tool}\..*properties\.(limit|query\.description)"
        case _:
            return r"(messages|input|contents)\[\d+\]\.?(content|parts).*"


@requirement("R223")
@pytest.mark.parametrize("kind", EXPECTED)
@pytest.mark.parametrize("api", APIS)
async def test_cache_breaker_is_named(tmp_path: Path, api: str, kind: str):
    for variant in range(10):
        where = tmp_path / f"{variant}.db"
        breaker = Breaker(kind, variant)
        cache = await session(where, api, breaker)
        steps = await explained(where)
        assert [step.cause for step in steps] == [None, None, None, EXPECTED[kind], None]
        assert steps[0].note == FIRST
        broken = steps[3]
        if kind != "lifetime":
            assert broken.difference is not None
            assert re.fullmatch(path_of(api, breaker), broken.difference.path), str(broken.difference)
        for at, step in enumerate(steps[1:], 1):
            assert (step.prompt, step.read) == (len(cache.prompts[at]), cache.reads[at])
            shared = same(cache.prompts[at - 1], cache.prompts[at])
            if abs(shared / 1024 - 1) > 0.1:  # At the minimum, the estimate decides between all and nothing.
                assert step.expected == pytest.approx(cache.reads[at], rel=0.1, abs=128)
            if api != "anthropic":
                assert step.shared == pytest.approx(shared, rel=0.1, abs=64)
        lost = cache.unbroken[3] - cache.reads[3]
        assert lost > 100
        assert broken.lost == pytest.approx(lost, rel=0.1)
        plain, read = RATES[api]
        assert broken.dollars == pytest.approx(lost * (plain - read) / 1e6, rel=0.1)
        assert [step.dollars for step in steps if step is not broken and step is not steps[0]] == [0.0] * 3


def recorded(path: Path) -> list[CacheCall]:
    """The requests of a recorded session that were answered, with the usage that the provider reported."""
    calls: list[CacheCall] = []
    for exchange in Recording.load(path).exchanges:
        found = decoder_of(exchange) if exchange.response.status < 400 else None
        if found is None or not isinstance(exchange.request.body, dict):
            continue
        decoder, data = found[1], exchange.body_bytes()
        splitter = Splitter(1 << 26)
        events = (*splitter.feed(data), *splitter.flush())
        parts = (
            [part for event in events for part in decoder.feed(event)] if exchange.is_stream else decoder.whole(data)
        )
        sent = ConversationRequest(
            seq=len(calls) + 1,
            time=float(len(calls)),
            run="r",
            step=len(calls),
            model=f"{path.parent.name}:{exchange.request.body.get('model')}",
            path=exchange.request.path,
            body=exchange.request.body,
        )
        finish = next((part for part in reversed([*parts, *decoder.close()]) if isinstance(part, Finish)), None)
        calls.append(CacheCall(request=sent, finish=finish))
    return calls


def cached_sessions() -> dict[str, list[CacheCall]]:
    """The recorded sessions with several requests, of which one read from the cache."""
    files = [file for folder in (RECORDINGS, SHARED / "recordings-more") for file in sorted(folder.rglob("*.json"))]
    several = {
        f"{file.parent.name}/{file.stem}": recorded(file) for file in files if file.read_text().count('"request"') > 1
    }
    reads = {
        name: [call.finish.usage.input.cache_read for call in calls if call.finish] for name, calls in several.items()
    }
    return {name: calls for name, calls in several.items() if len(calls) > 1 and any(reads[name])}


@requirement("R223")
@pytest.mark.skipif(not RECORDINGS.exists(), reason="the recordings are not here")
def test_recorded_cache_counts_agree():
    """No recorded session was broken, and the provider read what is expected, or more from another conversation."""
    notes: Counter[str] = Counter()
    for name, calls in cached_sessions().items():
        for step in explain_cache(calls)[1:]:
            assert step.cause is None, (name, step)
            assert (step.read is None) == (step.expected is None), (name, step)
            if step.note != HOSTED:
                assert (step.read or 0) >= 0.9 * (step.expected or 0), (name, step)
            if not step.note:
                assert step.read == pytest.approx(step.expected, rel=0.1), (name, step)
            notes[step.note] += 1
    assert notes == {"": 2, HOSTED: 2, SHORT: 2}


@requirement("R223")
async def test_other_causes_are_named(tmp_path: Path, sidestream: Run):
    """In each turn another thing changes, and then nothing; the command prints and sums the same."""

    def noting(query: str) -> str:
        """Note something."""
        return query

    cache, tools, system = Cache("openai-chat"), tools_of(), prose(1, 1500)
    other = tool(name="noting", description="Note something else.")(noting)
    gpt, mini = "openai-chat:gpt-5", "openai-chat:gpt-5-mini"
    cut = Context(max_tokens=4000, strategy="cut", keep_turns=1)
    turns: list[tuple[str, list[Any], str, Context | None]] = [
        (gpt, [*tools, noting], system, None),
        (mini, [*tools, noting], system, None),
        (mini, [*tools, other], system, None),
        (mini, tools, system, None),
        (mini, tools, system + " Be brief.", None),
        (mini, tools, system + " Be brief.", cut),
        ("openai-chat:house-1", tools, system + " Be brief.", None),
    ]
    async with (
        FakeProvider([cache.answer(text=prose(at, 400)) for at in range(len(turns))]) as fake,
        aclosing(open_store(tmp_path / "talks.db")) as store,
    ):
        last = turns[0][0]
        for model, used, said, context in turns:
            if model != last:
                last = model
                cache.expire()
            agent = Agent(model, base_url=fake.base_url, api_key="k", system=said, tools=used)
            await Chat(agent, store=store, id="talk").send(prose(9, 300), **({"context": context} if context else {}))
    steps = await explained(tmp_path / "talks.db")
    causes = [None, "model", "tool-description", "tools", "system", "compaction", "model"]
    assert [step.cause for step in steps] == causes
    assert [str(step.difference) for step in steps[1:4]] == [
        "model: 'openai:gpt-5' → 'openai:gpt-5-mini'",
        "tools[6].function.description: 'Note something.' → 'Note something else.'",
        "tools[6]: 'noting' → nothing",
    ]
    # The cost of a model without a price is unknown, never 0.
    assert steps[-1].lost
    assert steps[-1].dollars is None
    env = {"SIDESTREAM_STORE": "talks.db"}
    report = json.loads(sidestream("runs", "show", "talk", "--cache", "--json", env=env).stdout)
    assert [step["cause"] for step in report["steps"]] == causes
    lost, dollars = sum(step.lost or 0 for step in steps), sum(step.dollars or 0 for step in steps)
    total = {"breaks": 6, "lost": lost, "dollars": pytest.approx(dollars), "unknown": 0, "unpriced": 1}
    assert report["total"] == total
    shown = sidestream("runs", "show", "talk", "--cache", env=env).stdout
    assert "broken by a changed tool description: tools[6].function.description: 'Note" in shown
    assert f"\n6 breaks, about {lost:,} tokens and about ${dollars:.6f} + unknown\n" in shown
    run = json.loads(sidestream("runs", "show", steps[2].run, "--cache", "--json", env=env).stdout)
    assert [step["cause"] for step in run["steps"]] == ["tool-description"]


@requirement("R223")
async def test_session_at_provider_is_not_called_break(tmp_path: Path, sidestream: Run):
    cache = Cache("openai-responses")
    async with (
        FakeProvider([cache.answer(text="A."), cache.answer(text="B.")]) as fake,
        aclosing(open_store(tmp_path / "talks.db")) as store,
    ):
        agent = Agent(APIS["openai-responses"], api_key="k", base_url=fake.base_url, system=prose(1, 1500))
        chat = Chat(agent, store=store, id="talk")
        await chat.send("One?")
        await chat.send("Two?")
    _, second = await explained(tmp_path / "talks.db")
    assert (second.cause, second.shared, second.lost, second.note) == (None, None, None, SESSION)
    shown = sidestream("runs", "show", "talk", "--cache", env={"SIDESTREAM_STORE": "talks.db"}).stdout
    assert SESSION in shown
    assert "0 breaks, about 0 tokens and about $0.000000 + unknown" in shown


@requirement("R223")
@pytest.mark.parametrize(
    "path",
    [
        "/v1/projects/p/locations/l/publishers/anthropic/models/claude-sonnet-4-5:streamRawPredict",
        "/model/anthropic.claude-sonnet-4-5/invoke-with-response-stream",
    ],
)
def test_clouds_have_rules_of_their_api(path: str):
    mark = {"cache_control": {"type": "ephemeral"}}
    calls: list[CacheCall] = []
    for at, word in enumerate(["One", "Two"]):
        system = [{"type": "text", "text": f"{word} {prose(1, 2000)}", **mark}]
        body = {"system": system, "messages": [{"role": "user", "content": "Hi"}]}
        model = APIS["anthropic"]
        sent = ConversationRequest(seq=at + 1, time=float(at), run="r", step=at, model=model, path=path, body=body)
        calls.append(CacheCall(request=sent, finish=Finish("stop", Usage(input=InputUsage(3000, 5, 0, 2995)))))
    assert explain_cache(calls)[1].cause == "system"


@requirement("R223")
async def test_prompt_without_cache_marks_loses_nothing(tmp_path: Path):
    async with (
        FakeProvider([MessagesScript(usage={"input_tokens": 3000, "output_tokens": 9}).text("A.").reply()] * 2) as fake,
        aclosing(open_store(tmp_path / "talks.db")) as store,
    ):
        for word in ("One", "Two"):
            agent = Agent(APIS["anthropic"], api_key="k", base_url=fake.base_url, system=word + prose(1, 1500))
            await Chat(agent, store=store, id="talk").send(word)
    _, second = await explained(tmp_path / "talks.db")
    assert (second.cause, second.expected, second.lost, second.note) == ("system", 0, 0, OFF)


@requirement("R223")
@pytest.mark.parametrize(
    ("added", "seconds", "ttl", "cause"),
    [
        (25, 10, "5m", "lookback"),
        (10, 10, "5m", "unread"),
        (10, 400, "5m", "lifetime"),
        (10, 400, "1h", "unread"),
        (10, 4000, "1h", "lifetime"),
    ],
)
def test_marks_have_reach_and_lifetime(added: int, seconds: int, ttl: str, cause: str):
    """A mark finds what was cached at most 20 blocks before it, and for as long as it asked for."""

    def call(blocks: int, time: float, written: int, *, is_billed: bool = True) -> CacheCall:
        content: list[dict[str, Any]] = [{"type": "text", "text": prose(at, 200)} for at in range(blocks)]
        content[-1]["cache_control"] = {"type": "ephemeral", "ttl": ttl}
        sent = ConversationRequest(
            seq=blocks,
            time=time,
            run="r",
            step=0,
            model=APIS["anthropic"],
            path="/v1/messages",
            body={"messages": [{"role": "user", "content": content}]},
        )
        raw = {"input_tokens": 5, "cache_creation_input_tokens": written} if is_billed else None
        usage = Usage(input=InputUsage(written + 5, 5, 0, written), raw=raw)
        return CacheCall(request=sent, finish=Finish("stop", usage))

    _, second = explain_cache([call(15, 0.0, 3000), call(15 + added, float(seconds), 3000 + 200 * added)])
    assert (second.cause, second.lost, second.read) == (cause, 3000, 0)
    # A text that was written again cost 3.75, read from the cache 0.3.
    assert second.dollars == pytest.approx(3000 * (3.75 - 0.3) / 1e6)
    other = call(15 + added, float(seconds), 3000 + 200 * added, is_billed=False)
    assert explain_cache([call(15, 0.0, 3000), other])[1].dollars is None
