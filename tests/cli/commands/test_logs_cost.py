"""`sidestream logs cost` and `logs what-if`: sums of logged sessions, against sums made by hand."""

import asyncio
import json
import sqlite3
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import pytest

from cli.command import Run
from requirements import requirement
from server.chat_client import chatting, user
from sidestream import Agent, Chat, Context, Price, ProviderError, WebFetch, WebSearch, tool
from sidestream.cli.commands.logs_cost import MAIN, UNFINISHED, CallReader, ModelCall
from sidestream.parts import Custom, InputUsage, OutputUsage, StepFinish, StepStart, Usage
from sidestream.store import open_store
from sidestream.testing import FakeProvider, MessagesScript, ResponsesScript, error_reply, sse
from sidestream.turn.state import BACKGROUND

STORE = {"SIDESTREAM_STORE": "talks.db"}
GPT, SONNET = "openai-responses:gpt-5", "anthropic:claude-sonnet-4-5"


def used(tokens: int, output: int, cached: int = 0) -> dict[str, Any]:
    """The usage of a response of OpenAI."""
    details = {"input_tokens_details": {"cached_tokens": cached}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {"input_tokens": tokens, "output_tokens": output, "total_tokens": tokens + output, **details}


def gpt(tokens: int, output: int, cached: int = 0, **fields: Any) -> ResponsesScript:
    return ResponsesScript(model="gpt-5", usage=used(tokens, output, cached), **fields)


def sonnet(tokens: int, output: int, read: int = 0, written: int = 0) -> MessagesScript:
    usage = {"input_tokens": tokens, "output_tokens": output}
    usage |= {"cache_read_input_tokens": read, "cache_creation_input_tokens": written}
    return MessagesScript(model="claude-sonnet-4-5", usage=usage)


EXPERT = (2000 * 3 + 100 * 15) / 1e6
FIRST = (1000 * 1.25 + 50 * 10) / 1e6
SEARCHED = (1000 * 1.25 + 2000 * 0.125 + 200 * 10) / 1e6
AFTER_RESTART = (500 * 3 + 4000 * 0.3 + 1000 * 3.75 + 300 * 15) / 1e6
FEE = 0.01


async def talk(where: Path | str) -> None:
    """Two turns on two providers, with a subagent, a hosted search and a restart between them."""
    replies = [
        gpt(1000, 50).function_call("expert", {"task": "Why?"}).reply(),
        sonnet(2000, 100).text("Because.").reply(),
        gpt(3000, 200, 2000).web_search("why").text("Because, says the web.").reply(),
        sonnet(500, 300, 4000, 1000).text("Still because.").reply(),
    ]
    async with FakeProvider(replies) as fake:
        expert = Agent(SONNET, api_key="k", base_url=fake.base_url)
        settings = {"tools": [expert.as_tool("expert", "Knows.")], "server_side_tools": [WebSearch()]}
        host = Agent(GPT, api_key="k", base_url=fake.base_url, **settings)
        async with aclosing(open_store(where)) as store:
            chat = Chat(host, store=store, id="talk")
            await chat.send("Why?")
        async with aclosing(open_store(where)) as store:
            chat = Chat(expert, store=store, id="talk")
            await chat.send("Really?")


def found(sidestream: Run, *args: str, env: dict[str, str] = STORE) -> Any:
    done = sidestream("logs", *args, "--json", env=env)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def costs(report: Any) -> dict[str, Any]:
    return {row[report["by"]]: row["cost"] for row in report["rows"]}


@requirement("R223")
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_cost_of_session_on_two_providers(sidestream: Run, tmp_path: Path, kind: str, request: pytest.FixtureRequest):
    where = str(tmp_path / "talks.db") if kind == "sqlite" else str(request.getfixturevalue("postgres_url"))
    env = {"SIDESTREAM_STORE": where}
    asyncio.run(talk(where))
    by_model = found(sidestream, "cost", env=env)
    total = FIRST + EXPERT + SEARCHED + FEE + AFTER_RESTART
    assert costs(by_model) == pytest.approx({GPT: FIRST + SEARCHED + FEE, SONNET: EXPERT + AFTER_RESTART})
    assert by_model["total"]["cost"] == pytest.approx(total)
    counted = [by_model["total"][name] for name in ("calls", "input", "cache_read", "cache_write", "output")]
    assert counted == [4, 1000 + 2000 + 3000 + 5500, 6000, 1000, 650]
    by_agent = costs(found(sidestream, "cost", "--by", "agent", env=env))
    assert by_agent == pytest.approx({"(main)": total - EXPERT, "expert": EXPERT})
    by_tool = costs(found(sidestream, "cost", "--by", "tool", env=env))
    assert by_tool == pytest.approx({"(model tokens)": total - FEE, "web_search": FEE})
    (day,) = costs(found(sidestream, "cost", "--by", "day", env=env)).values()
    assert day == pytest.approx(total)
    assert found(sidestream, "cost", "--since", "2999-01-01", env=env)["total"]["calls"] == 0
    lines = [line.split() for line in sidestream("logs", "cost", "--since", "1d", env=env).stdout.splitlines()]
    assert lines[0] == ["model", "calls", "input", "cached", "output", "cost"]
    assert lines[-1] == ["total", "4", "11,500", "6,000", "650", f"${total:.4f}"]


@requirement("R223")
def test_cost_is_sum_of_what_runs_reported(sidestream: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A subagent waits for an approval over a restart, another model runs a tool, and a summary is made."""

    @tool(approval=lambda question: "ask")
    def sell(item: str) -> str:
        """Sells."""
        return f"{item} sold"

    replies = [
        gpt(1000, 10).function_call("clerk", {"task": "Sell a lamp."}).reply(),
        gpt(2000, 20).function_call("sell", {"item": "lamp"}).reply(),
        gpt(3000, 30).text("Sold.").reply(),
        gpt(4000, 40).text("x" * 9000).reply(),
        gpt(5000, 50).function_call("web_fetch", {"url": "https://a.example/"}).reply(),
        sonnet(6000, 60).web_fetch("https://a.example/", "hello").text("It says hello.").reply(),
        gpt(7000, 70).text("Hello. " * 1500).reply(),
        gpt(500, 5).text("A summary.").reply(),
        gpt(8000, 80).text("Done.").reply(),
    ]

    async def session() -> float:
        async with FakeProvider(replies) as fake:
            monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
            monkeypatch.setenv("ANTHROPIC_BASE_URL", fake.base_url)
            clerk = Agent(GPT, api_key="k", base_url=fake.base_url, tools=[sell])
            fetch = WebFetch(via=SONNET)
            shortened = Context(max_tokens=4000, strategy="summary", keep_turns=1)
            boss = Agent(
                GPT,
                api_key="k",
                base_url=fake.base_url,
                tools=[clerk.as_tool("clerk", "Sells.")],
                server_side_tools=[fetch],
            )
            async with aclosing(open_store(tmp_path / "talks.db")) as store:
                waiting = await Chat(boss, store=store, id="talk").send("Sell a lamp.")
            async with aclosing(open_store(tmp_path / "talks.db")) as store:
                chat = Chat(boss, store=store, id="talk")
                await chat.load()
                sold = await chat.resume([pending.approve() for pending in waiting.approvals])
                read = await chat.send("What says https://a.example/ ?")
                last = await chat.send("Thanks.", context=shortened)
            assert len(fake.requests) == len(replies)
        return sum(result.usage.cost for result in (sold, read, last) if result.usage and result.usage.cost)

    reported = asyncio.run(session())
    report = found(sidestream, "cost", "--by", "agent")
    assert report["total"]["calls"] == len(replies)
    assert report["total"]["cost"] == pytest.approx(reported)
    clerk = ((2000 + 3000) * 1.25 + 50 * 10) / 1e6
    assert costs(report) == pytest.approx(
        {"clerk": clerk, "web_fetch": (6000 * 3 + 60 * 15) / 1e6, "(main)": reported - clerk - 0.0189}
    )


COMMANDS = [
    ["logs", "cost"],
    ["logs", "what-if", "-m", "openai-responses:gpt-5-mini"],
    ["runs", "show", "talk", "--cache"],
]


@requirement("R223")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_costs_need_no_key_and_send_nothing(sidestream: Run, tmp_path: Path, command: list[str]):
    asyncio.run(talk(tmp_path / "talks.db"))
    with FakeProvider().in_thread() as fake:
        env = {**STORE, "OPENAI_API_KEY": "", "ANTHROPIC_BASE_URL": fake.base_url}
        done = sidestream(*command, env=env, base_url=fake.base_url)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
    assert fake.requests == []


@requirement("R223")
def test_repricing_prices_session_for_another_model(sidestream: Run, tmp_path: Path):
    asyncio.run(talk(tmp_path / "talks.db"))
    report = found(sidestream, "what-if", "-m", "openai-responses:gpt-5-mini")
    plain = 1000 + 2000 + 1000 + 500 + 1000
    mini = (plain * 0.25 + 6000 * 0.025 + 650 * 2) / 1e6 + FEE
    assert (report["about"], report["total"]["what_if"]["cost"]) == (True, pytest.approx(mini))
    logged = {row["model"]: row["logged"]["cost"] for row in report["rows"]}
    assert logged == pytest.approx({GPT: FIRST + SEARCHED + FEE, SONNET: EXPERT + AFTER_RESTART})
    shown = sidestream("logs", "what-if", "-m", "openai-responses:gpt-5-mini", "talk", env=STORE).stdout
    assert f"about ${mini:.4f}" in shown
    assert "% less, at the list prices of" in shown


@requirement("R223")
def test_repricing_without_cache_is_exact(sidestream: Run, tmp_path: Path):
    asyncio.run(talk(tmp_path / "talks.db"))
    report = found(sidestream, "what-if", "--cache", "off")
    dear = (4000 * 1.25 + 250 * 10 + 7500 * 3 + 400 * 15) / 1e6 + FEE
    assert (report["about"], report["total"]["what_if"]["cost"]) == (False, pytest.approx(dear))


@requirement("R223")
def test_repricing_cache_reads_previous_prompt(sidestream: Run, tmp_path: Path):
    async def session() -> None:
        async with FakeProvider([gpt(size, 10).text("Yes.").reply() for size in (2000, 3000, 1500)]) as fake:
            agent = Agent(GPT, api_key="k", base_url=fake.base_url)
            async with aclosing(open_store(tmp_path / "talks.db")) as store:
                chat = Chat(agent, store=store, id="talk")
                for word in ("One?", "Two?", "Three?"):
                    await chat.send(word)

    asyncio.run(session())
    report = found(sidestream, "what-if", "--cache", "on", "talk")
    # The third prompt is shorter than the second, so it is another prompt.
    cached = ((2000 + 1000 + 1500) * 1.25 + 2000 * 0.125 + 30 * 10) / 1e6
    assert (report["about"], report["total"]["what_if"]["cost"]) == (True, pytest.approx(cached))


@requirement("R223")
def test_repricing_tier_is_unknown_where_model_lacks_it(sidestream: Run, tmp_path: Path):
    asyncio.run(talk(tmp_path / "talks.db"))
    report = found(sidestream, "what-if", "--tier", "flex")
    of = {row["model"]: row["what_if"] for row in report["rows"]}
    flex = (2000 * 0.625 + 2000 * 0.0625 + 250 * 5) / 1e6 + FEE
    assert (report["about"], of[GPT]["cost"]) == (False, pytest.approx(flex))
    assert (of[SONNET]["cost"], report["total"]["what_if"]["cost"]) == (None, None)
    assert of[SONNET]["unpriced"] == {f"{SONNET} at the service tier flex": 2}
    shown = sidestream("logs", "what-if", "--tier", "flex", env=STORE).stdout
    assert f"${flex:.4f} + unknown" in shown.splitlines()[3]
    assert f"{SONNET} at the service tier flex (2 calls)" in shown


@requirement("R223")
def test_repricing_names_tool_without_price(sidestream: Run, tmp_path: Path):
    asyncio.run(talk(tmp_path / "talks.db"))
    report = found(sidestream, "what-if", "-m", "google:gemini-2.5-pro")
    assert report["total"]["what_if"]["unpriced"] == {"google:gemini-2.5-pro: web_search": 1}
    assert report["total"]["what_if"]["known"] > 0


@requirement("R223")
def test_unknown_cost_is_never_zero(sidestream: Run, tmp_path: Path):
    where = tmp_path / "talks.db"

    async def session() -> None:
        replies = [
            ResponsesScript(model="house-1", usage=used(1000, 10)).text("A.").reply(),
            ResponsesScript(model="house-1", usage=used(1000, 10)).text("B.").reply(),
            error_reply(400, "bad", "no"),
        ]
        async with FakeProvider(replies) as fake:
            model = "openai-responses:house-1"
            unknown = Agent(model, api_key="k", base_url=fake.base_url)
            known = Agent(model, api_key="k", base_url=fake.base_url, prices={model: Price(input=100, output=1000)})
            for agent in (unknown, known):
                async with aclosing(open_store(where)) as store:
                    chat = Chat(agent, store=store, id="talk")
                    await chat.send("Hi.")
            async with aclosing(open_store(where)) as store:
                chat = Chat(unknown, store=store, id="refused")
                with pytest.raises(ProviderError):
                    await chat.send("Hi.")

    asyncio.run(session())
    report = found(sidestream, "cost")
    total = report["total"]
    # The refused request costs nothing. The reported cost of the second call is used, although no list has its model.
    assert (total["calls"], total["cost"], total["known"]) == (2, None, pytest.approx(0.11))
    assert total["unpriced"] == {"openai-responses:house-1": 1}
    by_tool = costs(found(sidestream, "cost", "--by", "tool"))
    assert by_tool == {"(model tokens)": pytest.approx(0.11), "(not divided)": None}
    shown = sidestream("logs", "cost", env=STORE).stdout
    assert "$0.1100 + unknown" in shown
    assert "unknown:\n  openai-responses:house-1 (1 call)" in shown


@requirement("R223")
def test_interrupted_call_has_unknown_cost(sidestream: Run, tmp_path: Path):
    asyncio.run(talk(tmp_path / "talks.db"))
    with closing(sqlite3.connect(tmp_path / "talks.db")) as file, file:
        (last,) = file.execute("SELECT max(seq) FROM records WHERE kind = 'step-start'").fetchone()
        file.execute("DELETE FROM records WHERE seq > ?", (last,))
    total = found(sidestream, "cost")["total"]
    assert (total["cost"], total["unpriced"]) == (None, {"model calls that did not finish": 1})
    assert total["known"] == pytest.approx(FIRST + EXPERT + SEARCHED + FEE)


@requirement("R223")
def test_background_response_counts_once_after_restart():
    calls: list[ModelCall] = []
    reader = CallReader(("talk",), MAIN, calls)
    about = {"provider": "openai-responses", "id": "resp_1", "is_streamed": True}
    pending = Custom(BACKGROUND, {**about, "status": "in_progress"})
    usage = Usage(InputUsage(10, 10), OutputUsage(5, 5))
    for part in (StepStart(1), pending, StepStart(1), pending, StepFinish(1, "stop", usage), StepStart(2)):
        reader.feed(part, 1.0)
    reader.close()
    assert [call.finish.usage.unpriced for call in calls] == [(), (UNFINISHED,)]


@requirement("R223")
def test_damaged_record_is_reported_and_rest_counted(sidestream: Run, tmp_path: Path):
    asyncio.run(talk(tmp_path / "talks.db"))
    with closing(sqlite3.connect(tmp_path / "talks.db")) as file, file:
        file.execute(
            "UPDATE records SET body = x'7b' WHERE seq = (SELECT min(seq) FROM records WHERE kind = 'step-finish')"
        )
    done = sidestream("logs", "cost", "--json", env=STORE)
    total = json.loads(done.stdout)["total"]
    assert (done.returncode, "1 damaged record" in done.stderr) == (1, True)
    assert total["unpriced"] == {"model calls that did not finish": 1}
    assert total["known"] == pytest.approx(EXPERT + SEARCHED + FEE + AFTER_RESTART)


@requirement("R223")
def test_branches_of_chat_count_once(sidestream: Run, tmp_path: Path):
    async def session() -> None:
        scripts = [ResponsesScript(usage=used(1000, 10)).text(text) for text in ("A1.", "A2.", "B2.")]
        async with (
            FakeProvider([sse(script.events()) for script in scripts]) as fake,
            chatting(fake, tmp_path) as client,
        ):
            await client.say("Q1", id="u1")
            await client.say("Q2", id="u2")
            await client.post({"id": "c1", "messages": [user("Q2 again", "u2")], "messageId": "u2"})

    asyncio.run(session())
    once = (1000 * 4 + 10 * 20) / 1e6
    total = found(sidestream, "cost")["total"]
    assert (total["calls"], total["cost"]) == (3, pytest.approx(3 * once))
    assert found(sidestream, "cost", "--owner", "nobody")["total"]["calls"] == 0
    assert found(sidestream, "what-if", "--tier", "flex", "/c1")["total"]["what_if"]["calls"] == 3


def test_repricing_without_terms_is_usage_error(sidestream: Run):
    assert sidestream("logs", "what-if", env=STORE).returncode == 2
    assert sidestream("logs", "cost", "--since", "yesterday", env=STORE).returncode == 2
