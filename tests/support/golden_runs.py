"""Sessions as users have them, one of each kind on each API: what a log holds, and what is done with it, is tried on all."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sidestream import Agent, Chat, CodeInterpreter, WebSearch, tool
from sidestream.errors import RunError
from sidestream.parts import ToolCall
from sidestream.store import LogDetail
from sidestream.testing import (
    ChatScript,
    FakeProvider,
    GeminiScript,
    MessagesScript,
    ResponsesScript,
    sse,
)

APIS: dict[str, Callable[..., Any]] = {
    "openai-responses:m": ResponsesScript,
    "openai-chat:m": ChatScript,
    "anthropic:m": MessagesScript,
    "google:gemini-m": GeminiScript,
}
PRICE = "It costs 100 euros, says the price list of last year that lies on the desk"


class Shop:
    """Tools that note what they did."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def look(self, name: str) -> str:
        """Look up a price."""
        self.done.append(f"look {name}")
        return f"{PRICE}: {name}"

    def order(self, name: str) -> str:
        """Order an item."""
        self.done.append(f"order {name}")
        return f"{name} is ordered"

    @property
    def tools(self) -> list[Any]:
        """A tool that runs, and one that asks."""
        return [self.look, tool(approval="ask")(self.order)]


@dataclass
class City:
    name: str
    people: int


def called(script: Callable[..., Any], *calls: tuple[str, str]) -> Any:
    """A script that calls functions, each with a name and an id."""
    made: Any = script()
    for name, call_id in calls:
        match made:
            case ChatScript():
                made.tool_call(name, {"name": "lamp"}, call_id)
            case MessagesScript():
                made.tool_use(name, {"name": "lamp"}, call_id)
            case GeminiScript():
                made.function_call(name, {"name": "lamp"}, call_id=call_id)
            case _:
                made.function_call(name, {"name": "lamp"}, call_id)
    return made


def calling(script: Callable[..., Any], *calls: tuple[str, str]) -> Any:
    """A reply that calls functions."""
    return called(script, *calls).reply()


def saying(script: Callable[..., Any], text: str) -> Any:
    """A reply that says something."""
    made: Any = script()
    return made.text(text).reply()


def broken(script: Callable[..., Any]) -> Any:
    """A reply whose stream ends in the middle."""
    made: Any = script().text(["One, ", "two, ", "three."])
    return sse(made.chunks()[:2] if hasattr(made, "chunks") else made.events()[:5])


async def ask(chat: Chat[Any]) -> None:
    """Ask twice; the first answer looks a price up."""
    await chat.send("What does a lamp cost?")
    await chat.send("Thanks.")


async def buy(chat: Chat[Any]) -> None:
    """Approve an order."""
    await chat.send("What does a lamp cost? Order one.")
    await chat.resume([approval.approve() for approval in chat.approvals])


async def choose(chat: Chat[Any]) -> None:
    """Approve the first of two orders, and deny the second one."""
    await chat.send("Order two lamps, and look one up.")
    first, second = chat.approvals
    await chat.resume([first.approve(), second.deny("One is enough.")])


async def steer(chat: Chat[Any]) -> None:
    """Send a message while a tool is called."""
    await chat.load()
    async with chat.stream("What does a lamp cost?") as run:
        async for part in run:
            if isinstance(part, ToolCall):
                await run.steer("And a chair?")


async def retry(chat: Chat[Any]) -> None:
    """Resume a turn whose stream broke."""
    with suppress(RunError):
        await chat.send("What does a lamp cost?")
    await chat.resume()


async def say(chat: Chat[Any]) -> None:
    """Ask once."""
    await chat.send("What is it?")


@dataclass(frozen=True)
class GoldenRun:
    """A session: the model, what it answers, and what the user does."""

    name: str
    model: str
    replies: list[Any]
    act: Callable[[Chat[Any]], Awaitable[None]]
    settings: dict[str, Any] = field(default_factory=dict[str, Any])

    def agent(self, shop: Shop, **settings: Any) -> Agent[Any]:
        """The agent of the session."""
        given: dict[str, Any] = {"tools": shop.tools, "system": "You sell lamps.", **self.settings, **settings}
        return Agent(self.model, **given)


def _of(model: str) -> list[GoldenRun]:
    script = APIS[model]
    api = model.partition(":")[0]
    look, again = (
        calling(script, ("look", "call_look")),
        calling(script, ("look", "call_again"), ("order", "call_order")),
    )
    both = calling(script, ("order", "call_1"), ("look", "call_2"), ("order", "call_3"))
    price, done = saying(script, "It costs 100 euros."), saying(script, "It is ordered for 100 euros.")
    wrong, right = saying(script, '{"name": "Oslo", "people": "many"}'), saying(script, '{"name": "Oslo", "people": 3}')
    return [
        GoldenRun(f"{api}-asks", model, [look, price, saying(script, "You are welcome.")], ask),
        GoldenRun(f"{api}-buys", model, [look, again, done], buy),
        GoldenRun(f"{api}-chooses", model, [both, done], choose),
        GoldenRun(f"{api}-steers", model, [look, price], steer),
        GoldenRun(f"{api}-retries", model, [look, broken(script), price], retry),
        GoldenRun(f"{api}-types", model, [look, wrong, right], say, {"output_type": City}),
    ]


_FOUND = {"type": "url_citation", "url": "https://lamps.example/a", "title": "A", "start_index": 0, "end_index": 3}
_HOSTED = [
    GoldenRun(
        "openai-responses-hosted",
        "openai-responses:m",
        [
            ResponsesScript(id="r1").code_interpreter("1 + 1", container_id="cntr_1").text("Two.").reply(),
            ResponsesScript(id="r2").web_search("lamps", sources=["https://lamps.example"]).text("Lamps.").reply(),
        ],
        ask,
        {"tools": [], "server_side_tools": [CodeInterpreter(), WebSearch()]},
    ),
    GoldenRun(
        "anthropic-hosted",
        "anthropic:claude-sonnet-5",
        [
            MessagesScript(container="cntr_1").code_execution("1 + 1", stdout="2").pause_turn().reply(),
            MessagesScript(container="cntr_1").text("Two.").reply(),
            MessagesScript().thinking("Hm.").text("You are welcome.").reply(),
        ],
        ask,
        {"tools": [], "server_side_tools": [CodeInterpreter()]},
    ),
]
GOLDEN = {run.name: run for run in (*(each for model in APIS for each in _of(model)), *_HOSTED)}


async def played(
    run: GoldenRun, fake: FakeProvider, shop: Shop, store: Any, detail: LogDetail | None = None, **settings: Any
) -> Chat[Any]:
    """Play a session into the log, as the conversation `talk`."""
    chat: Chat[Any] = Chat(run.agent(shop, base_url=fake.base_url, **settings), store=store, id="talk", log=detail)
    await run.act(chat)
    return chat
