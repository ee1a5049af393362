"""A run that is left at any point is rebuilt from its log exactly as it was: over generated runs and recordings."""

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from msgspec import Struct

from requirements import requirement
from sidestream import (
    Agent,
    ChatMessage,
    ConfigurationError,
    DataPart,
    ExternalTool,
    Limits,
    PendingApproval,
    TextPart,
    Tool,
    ToolContext,
    ToolError,
    WebSearch,
)
from sidestream.errors import SteerError, ToolServerError
from sidestream.messages.message import ToolResultPart
from sidestream.parts import Finish, ReasoningDelta, TextDelta, ToolCall, ToolInputDelta
from sidestream.replay.provider import replay
from sidestream.run.prompts import user_message
from sidestream.run.run import Run
from sidestream.run.settings import RunHooks
from sidestream.testing import (
    Exchange,
    RecordedRequest,
    RecordedResponse,
    Recording,
    ReplayTransport,
    ResponsesScript,
    encode_events,
)
from sidestream.turn.state import AwaitDecision, Over
from support.left_runs import Log
from support.places import ROOT

HISTORY = [ChatMessage.user("before"), ChatMessage.model("indeed")]


# The scripted provider


class Step(Struct, frozen=True):
    """One answer of the model."""

    text: str = ""
    calls: tuple[str, ...] = ()
    """Names of the tools that it calls."""
    searches: bool = False
    images: bool = False
    requests: int = 0
    """Calls of a remote MCP server that the provider asks to be allowed."""
    ending: str = ""
    """`cut`, `failed`, `incomplete`, `refused`; else it is complete."""


def exchange(number: int, step: Step) -> Exchange:
    request = RecordedRequest("POST", "/v1/responses", {"stream": True})
    if step.ending == "refused":
        error = {"error": {"message": "Previous response with id 'resp_0' not found.", "code": "not_found"}}
        return Exchange(RecordedResponse(400, "application/json", error), request)
    script = ResponsesScript(id=f"resp_{number}")
    if step.searches:
        script.web_search("eclipse", sources=[f"https://example.com/{number}"])
        script.text("Found.", annotations=[CITATION])
    if step.images:
        script.image(partials=1)
    if step.text:
        script.text(step.text)
    for place, name in enumerate(step.calls):
        script.function_call(name, "{" if name == "broken" else {"task": str(place)}, f"call_{number}_{place}")
    for place in range(step.requests):
        script.mcp_approval_request("wiki", "ask", {"n": place})
    if step.ending == "incomplete":
        script.incomplete()
    if step.ending == "failed":
        script.failed()
    events = script.events()
    if step.ending == "cut":
        events = events[: max(3, len(events) // 2)]
    return Exchange(RecordedResponse(200, "text/event-stream", encode_events(events).decode()), request)


CITATION = {"type": "url_citation", "url": "https://example.com/cited", "title": "t", "start_index": 0, "end_index": 5}


def provider(steps: Sequence[Step]) -> ReplayTransport:
    return ReplayTransport(Recording(tuple(exchange(number, step) for number, step in enumerate(steps))))


# The client's side


class Server:
    """A toolset as an MCP server is one."""

    label = "docs"
    warnings = ()

    def __init__(self, check: Callable[[], None]) -> None:
        async def read(task: str) -> str:
            check()
            return f"page {task}"

        page = Tool.from_function(read, name="open_page")
        closed = Tool.from_function(read, name="server_time")
        self._tools = [
            Tool(**{**parts(page), "server_label": "docs", "is_open_world": True, "pin": "p1", "approval": "ask"}),
            Tool(**{**parts(closed), "server_label": "docs", "pin": "p2"}),
        ]

    async def list(self) -> list[Tool]:
        return self._tools

    async def aclose(self) -> None:
        pass


def parts(tool: Tool) -> dict[str, Any]:
    return {name: getattr(tool, name) for name in tool.__struct_fields__}


def toolbox(check: Callable[[], None]) -> list[Any]:
    """One tool of each kind; `check` is called while they run."""

    async def plain(context: ToolContext, task: str) -> str:
        "Works, and reports progress."
        context.progress({"half": task})
        check()
        return "done"

    async def failing(task: str) -> str:
        "Fails."
        check()
        raise ToolError("not today")

    def threaded(task: str) -> str:
        "Runs in a thread."
        return "done there"

    async def program(context: ToolContext, task: str) -> list[Any]:
        "Calls other tools."
        assert context.tools is not None
        called = [await context.tools.call(f"{context.call_id}/{name}", name, {"task": task}) for name in PROGRAM]
        check()
        return [outcome.result for outcome in called]

    searching = [Step(text="Nested.", searches=True)]
    nested = [Step(calls=("inner",)), Step(text="Outer.")]
    asking = [Step(searches=True, calls=("guarded",)), Step(text="Deleted.")]

    def agent(steps: list[Step], tools: list[Any]) -> Agent[str]:
        return Agent("openai-responses:gpt-5.6", api_key="k", transport=Repeating(steps), tools=tools)

    inner = agent(searching, []).as_tool("inner", "An agent.")
    outer = agent(nested, [inner]).as_tool("outer", "An agent of an agent.")
    guarded = Tool.from_function(plain, name="guarded", approval="ask")
    suspended = agent(asking, [guarded]).as_tool("suspended", "An agent whose tool needs an approval.")
    outside = ExternalTool("outside", "Runs elsewhere.", {"properties": {"task": {"type": "string"}}})
    delegating = agent([Step(calls=("outside", "outside")), Step(text="Asked.")], [outside])
    return [
        Tool.from_function(plain, name="plain"),
        Tool.from_function(failing, name="failing"),
        Tool.from_function(threaded, name="threaded"),
        Tool.from_function(program, name="program"),
        Tool.from_function(plain, name="approved", approval="ask"),
        Tool.from_function(plain, name="retried", on_interruption="retry"),
        Tool.from_function(plain, name="failed", on_interruption="fail"),
        Tool.from_function(plain, name="denied", approval=lambda question: "deny"),
        Tool.from_function(plain, name="sensitive", is_sensitive=True),
        Tool(**{**parts(Tool.from_function(plain, name="stranger")), "is_open_world": True}),
        inner,
        outer,
        suspended,
        outside,
        delegating.as_tool("delegating", "An agent whose tool runs elsewhere."),
        Server(check),
    ]


class Repeating:
    """Plays the same steps for each run of a sub-agent."""

    def __init__(self, steps: list[Step]) -> None:
        self._steps = steps
        self._left = provider(steps)

    async def open(self, call: Any, limits: Any) -> Any:
        if not self._left.remaining:
            self._left = provider(self._steps)
        return await self._left.open(call, limits)

    async def download(self, call: Any, limits: Any) -> bytes:
        return await self._left.download(call, limits)


PROGRAM = ("plain", "failing", "denied", "stranger")
"""Calls of a program."""
TOOLS = [
    "plain",
    "failing",
    "threaded",
    "program",
    "approved",
    "retried",
    "failed",
    "denied",
    "sensitive",
    "stranger",
    "inner",
    "outer",
    "suspended",
    "outside",
    "delegating",
    "open_page",
    "server_time",
    "unknown",
    "broken",
]


# Playing a run, with a comparison at every point


async def play(
    steps: Sequence[Step],
    *,
    decide: Callable[[int], bool] = lambda number: True,
    limits: Limits | None = None,
    cuts: bool = False,
    steers: frozenset[int] = frozenset(),
    **settings: Any,
) -> Log:
    """Plays a turn to its end, through all approvals, and compares log and live state wherever it could be left.

    After the parts with the numbers of `steers` a message is sent.
    """
    log = Log(HISTORY, cuts=cuts)
    count = itertools.count()
    agent = Agent(
        "openai-responses:gpt-5.6",
        api_key="k",
        transport=provider(steps),
        tools=toolbox(log.check),
        server_side_tools=[WebSearch()],
        limits=limits or Limits(),
        **settings,
    )
    message = user_message("go")
    run: Run[Any] = agent._begun(message, None, {"history": HISTORY}, RunHooks(log), "parts")
    for number in range(20):
        log.run = run
        async with run:
            async for _ in run:
                log.check()
                if (number_of_part := next(count)) in steers:
                    with suppress(SteerError):
                        await run.steer(f"steer {number_of_part}")
                        log.check()
        log.check()
        if not isinstance(run.turn.command, AwaitDecision):
            break
        state = log.state().run_state
        assert state is not None
        assert state.approvals == run.state.approvals
        decisions = [decided(entry, decide(number)) for entry in state.approvals]
        run = agent._resumed(state, decisions, None, {}, RunHooks(log), "parts")
    assert isinstance(run.turn.command, Over)
    return log


def decided(entry: PendingApproval, is_approved: bool) -> Any:
    if is_approved and entry.is_external:
        return entry.answer([TextPart("seen"), DataPart(b"png" * 9999, "image/png")], len(entry.call_id) % 2 > 0)
    return entry.approve() if is_approved else entry.deny("no")


STEPS = st.builds(
    Step,
    text=st.sampled_from(["", "Some text."]),
    calls=st.lists(st.sampled_from(TOOLS), max_size=3).map(tuple),
    searches=st.booleans(),
    images=st.booleans(),
    requests=st.sampled_from([0, 0, 0, 1, 2]),
    ending=st.sampled_from(["", "", "", "", "", "cut", "failed", "incomplete", "refused"]),
)


@requirement("R82", "R84", "F32", "F41")
@settings(max_examples=settings().max_examples * 3 // 10)
@given(
    st.lists(STEPS, min_size=1, max_size=5),
    st.lists(st.booleans(), min_size=1),
    st.sampled_from([None, 2, 4]),
    st.booleans(),
    st.frozensets(st.integers(0, 60), max_size=4),
)
async def test_log_of_run_left_anywhere_restores_live_state(
    steps: list[Step], decisions: list[bool], max_calls: int | None, cuts: bool, steers: frozenset[int]
) -> None:
    limits = Limits() if max_calls is None else Limits(max_tool_calls=max_calls, max_steps=4)
    log = await play(
        [*steps, *[Step(text="The end.")] * (1 + len(steers))],
        decide=lambda number: decisions[number % len(decisions)],
        limits=limits,
        cuts=cuts,
        steers=steers,
    )
    assert log.checks > 3


@pytest.mark.parametrize("name", TOOLS)
@pytest.mark.parametrize("is_approved", [True, False])
async def test_log_restores_state_for_each_kind_of_tool(name: str, is_approved: bool) -> None:
    steps = [Step(calls=("plain", name, "sensitive")), Step(calls=(name, name)), Step(text="The end.")]
    assert (await play(steps, decide=lambda number: is_approved)).checks > 20


@requirement("R82", "R115")
@pytest.mark.parametrize("output_type", [None, int])
@pytest.mark.parametrize("place", range(0, 40, 2))
async def test_message_after_any_part_is_kept_once_and_in_order(place: int, output_type: Any) -> None:
    steps = [Step(calls=("plain", "approved")), *(Step(text=f'{{"value": {n}}}') for n in range(3))]
    log = await play(steps, steers=frozenset({place, place + 1}), output_type=output_type)
    assert log.run is not None
    # What was accepted is in the history, once and in order, or was reported as lost.
    sent = [message.text for message in log.run.turn.state.messages if message.metadata.get("steer")]
    assert sent == sorted(sent, key=lambda text: int(text.split()[1]))
    assert len(sent) == len(set(sent))
    assert log.run.turn.state.steers == ()


async def test_log_restores_state_of_repeated_typed_answer() -> None:
    steps = [Step(calls=("plain",)), Step(text="no JSON"), Step(text='{"value": 1}')]
    assert (await play(steps, output_type=int)).checks > 10


RECORDINGS = ROOT.parent / "shared" / "recordings"
PLAYED = [
    *sorted((ROOT / "examples" / "recordings").glob("*.json")),
    *sorted((ROOT / "src" / "sidestream" / "cli" / "commands" / "demo").glob("*.json")),
    *sorted(RECORDINGS.rglob("*.json")),
]
"""Those of the examples and the demo; what providers really sent, where it lies beside the project."""
_DELTAS = (TextDelta, ReasoningDelta, ToolInputDelta)


@requirement("R82")
@pytest.mark.parametrize("cuts", [False, True], ids=["whole", "in-increments"])
@pytest.mark.parametrize("path", PLAYED, ids=lambda path: f"{path.parent.name}/{path.stem}")
async def test_log_restores_state_of_recorded_conversation(path: Path, cuts: bool) -> None:
    recording = Recording.load(path)
    names: dict[str, None] = {}
    for run in replay(recording, ReplayTransport(recording)):
        names |= {part.name: None async for part in run if isinstance(part, ToolCall) and not part.provider_executed}
    log = Log(HISTORY, cuts=cuts)
    agent = Agent(f"replay:{path}", tools=[answering(name) for name in names])
    log.run = run = agent._begun("go", None, {"history": HISTORY}, RunHooks(log), "parts")
    with suppress(ConfigurationError):  # The conversation may need more answers than were recorded.
        async for part in run:
            if not isinstance(part, _DELTAS):
                log.check()
    log.check()
    await run.aclose()
    assert log.checks > 1


def answering(name: str) -> Tool:
    """A tool that takes any input."""
    return Tool(name=name, description="", parameters={}, function=lambda: "done", bind=lambda given, context: {})


class Flaky(Server):
    """A server that is gone when its tools are listed for the second time."""

    async def list(self) -> list[Tool]:
        self.listings = getattr(self, "listings", 0) + 1
        if self.listings == 2:
            raise ToolServerError("gone", server="docs")
        return self._tools


@requirement("R73")
async def test_decisions_have_no_effect_if_run_cannot_begin() -> None:
    log = Log(HISTORY)
    steps = [Step(calls=("plain", "open_page")), Step(text="The end.")]
    server = Flaky(log.check)
    tools = [each for each in toolbox(log.check) if not isinstance(each, Server)]
    agent = Agent("openai-responses:gpt-5.6", api_key="k", transport=provider(steps), tools=[*tools, server])
    run: Run[Any] = agent._begun("go", None, {"history": HISTORY}, RunHooks(log), "parts")
    reasons: list[str] = []
    for _ in range(3):
        log.run = run
        async for part in run:
            log.check()
            if isinstance(part, Finish):
                reasons.append(part.reason)
        state = log.state().run_state
        if state is None:
            break
        run = agent._resumed(state, [entry.approve() for entry in state.approvals], None, {}, RunHooks(log), "parts")
    assert reasons == ["approval", "error", "stop"]
    # Both results of the round stand in one message, in the order of their calls.
    rounds = [message for message in run.turn.state.messages if message.role == "tool"]
    assert [[part.name for part in message.parts if isinstance(part, ToolResultPart)] for message in rounds] == [
        ["plain", "open_page"]
    ]
