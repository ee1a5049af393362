"""Replay of a logged run as a test: its agent runs again, against recorded answers, tool results and decisions."""

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from msgspec import Struct, convert
from msgspec.structs import replace

from sidestream import jsontext
from sidestream.agent.agent import Agent
from sidestream.errors import ConfigurationError, MissingKeyError
from sidestream.limits import DEFAULT_LIMITS, Limits
from sidestream.messages.message import ChatMessage
from sidestream.parts import (
    Error,
    File,
    Finish,
    Json,
    Source,
    StepFinish,
    StepStart,
    StreamPart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolEvent,
    ToolResult,
    Usage,
    part_from_json,
)
from sidestream.providers.protocol import AnswersByTool, ChatModel, Encoded, FileRef, ModelRequest, Settings
from sidestream.providers.registry import ModelString, find_provider
from sidestream.replay.cassette import Cassette, CassetteRedaction, RecordedResult, RecordedStep, results_of, step_parts
from sidestream.replay.comparison import Difference, RequestComparison, first_difference, system_in
from sidestream.run.blocking import wait_for
from sidestream.tools.approvals import Decision, PendingApproval
from sidestream.tools.server_side import ServerSideTool
from sidestream.tools.tool import Tool, ToolContext, ToolOutcome
from sidestream.transport.calls import HttpCall, HttpResponse

Dial = Literal["recorded", "live"]
DIALS = ("model", "tools", "hosted")


class Dials(NamedTuple):
    """What is recorded and what is live: the model, the client tools, and the MCP servers and hosted tools."""

    model: Dial = "recorded"
    tools: Dial = "recorded"
    hosted: Dial = "recorded"
    is_updated: bool = False
    """Whether differences are accepted and written into the cassette."""


_RECORDED = Dials()
_suite = [_RECORDED]
"""Dials of the suite."""


def set_suite(dials: Dials) -> Dials:
    """Set the dials of all replays that do not set their own, and return the former ones."""
    before, _suite[0] = _suite[0], dials
    return before


class ReplayMismatch(AssertionError):
    """A replayed run made other requests than the recorded one.

    `differences` has all fields that differ in the first such request, in its order.
    """

    def __init__(self, message: str, step: int, differences: Sequence[Difference] = ()) -> None:
        super().__init__(message)
        self.step = step
        self.differences = tuple(differences)

    @property
    def path(self) -> str:
        """Path of the first differing field, or an empty string if a request is missing."""
        return self.differences[0].path if self.differences else ""


class ReplayedRun(Struct, frozen=True, kw_only=True):
    """A replayed run, with what a test asserts about it."""

    output: Any
    """The answer, of the agent's output type, or None if there is none."""
    parts: tuple[StreamPart, ...]
    dials: Dials

    @property
    def is_live(self) -> bool:
        """Whether the model answered, so that its words and calls may differ."""
        return self.dials.model == "live"

    @property
    def calls(self) -> list[tuple[str, Json]]:
        """The name and the input of each call, of client tools and of hosted ones, in order."""
        return [(part.name, part.input) for part in self.parts if isinstance(part, ToolCall)]

    @property
    def text(self) -> str:
        """The text of the answer, after the last call."""
        return _text_of(self.parts)

    @property
    def citations(self) -> list[str]:
        """URLs and titles of the cited sources, each once, in order."""
        sources = (part for part in self.parts if isinstance(part, Source))
        return [*dict.fromkeys(part.url or part.title or part.id for part in sources)]

    @property
    def finish_reason(self) -> str:
        """Reason why the run ended."""
        return next((part.reason for part in reversed(self.parts) if isinstance(part, Finish)), "")

    @property
    def steps(self) -> int:
        """Number of model calls."""
        return sum(isinstance(part, StepFinish) for part in self.parts)

    @property
    def cost(self) -> float | None:
        """Cost in US dollars. None means that a part of it is unknown."""
        costs = [part.usage.cost for part in self.parts if isinstance(part, StepFinish)]
        return None if None in costs else round(sum(cost for cost in costs if cost is not None), 12)


def replay_run(
    path: str | Path,
    agent: Agent[Any, Any] | None = None,
    *,
    model: Dial | None = None,
    tools: Dial | None = None,
    hosted: Dial | None = None,
    update: bool | None = None,
    ignore: Collection[str] = (),
    **call: Any,
) -> ReplayedRun:
    """Run an agent again on a recorded prompt, and check that its requests are the recorded ones.

    `agent` defaults to the one that the cassette names. The dials `model`, `tools` and `hosted` are `recorded` or
    `live`; None means the setting of the suite, which is `recorded` unless pytest got `--sidestream-live`. With
    `update`, differences are accepted and written into the cassette. `ignore` holds paths of requests that may differ,
    such as `tools[*].description`. `call` holds settings of the call, such as `deps`.

    Raises ReplayMismatch, which names the first differing field of the first differing request.
    """
    suite = _suite[0]
    dials = Dials(
        model or suite.model,
        tools or suite.tools,
        hosted or suite.hosted,
        suite.is_updated if update is None else update,
    )
    for name, dial in zip(DIALS, dials, strict=False):
        if dial not in ("recorded", "live"):
            raise ConfigurationError(f"{name} must be 'recorded' or 'live', not {dial!r}")
    cassette = Cassette.load(path)
    tested = agent if agent is not None else agent_of(cassette)
    player = Player(cassette, tested, dials, ignore)
    __tracebackhide__ = True  # pytest shows the test's line instead of ours.
    try:
        run = wait_for(lambda: player.play(call), "replay_run()", "await asyncio.to_thread(replay_run, …)")
    except ReplayMismatch as mismatch:
        raise mismatch.with_traceback(None) from None
    if dials.is_updated:
        player.updated(run).save(path)
    return run


def agent_of(cassette: Cassette) -> Agent[Any, Any]:
    """Return the agent that a cassette names, or one with the instructions and functions of its first request."""
    if cassette.agent is not None:
        module, _, name = cassette.agent.partition(":")
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return found
    body = jsontext.as_object(cassette.steps[0].request)
    settings: dict[str, Any] = {"temperature": body["temperature"]} if body.get("temperature") is not None else {}
    reserved = _result_tool(Agent(cassette.model, api_key="recorded").model)
    tools = [_rebuilt(entry) for entry in _functions(body) if entry.name != reserved]
    return Agent(cassette.model, system=system_in(body) or None, tools=tools, api_key="recorded", **settings)


class Player:
    """One replay of a cassette."""

    def __init__(
        self, cassette: Cassette, agent: Agent[Any, Any], dials: Dials = _RECORDED, ignore: Collection[str] = ()
    ) -> None:
        self.cassette = cassette
        self.requests: list[Json] = []
        """Bodies of the requests made so far."""
        self._agent = agent
        self._dials = dials
        self._comparison = RequestComparison(ignore)
        self._used: set[int] = set()
        """Indices of the recorded results that were returned."""

    async def play(self, call: Mapping[str, Any]) -> ReplayedRun:
        """Run the agent. Raises ReplayMismatch if its requests are not the recorded ones."""
        parts: list[StreamPart] = []
        history = self.cassette.messages()
        if history:
            call = {**call, "history": history}
        with self._agent.override(**self._replaced(call)):
            run: Any = self._agent.stream(self.cassette.message(), errors="parts", **call)
            await self._steer(run, 0)
            while True:
                async with run:
                    async for part in run:
                        parts.append(part)
                        if isinstance(part, StepStart):
                            await self._steer(run, sum(isinstance(each, StepStart) for each in parts))
                    state, output = run.state, run.output if run.has_output else None
                decisions = self._decisions(state.approvals)
                if not decisions:
                    break
                others = {name: value for name, value in call.items() if name != "history"}
                run = self._agent.resume(state, decisions, errors="parts", **others)
        recorded = len(self.cassette.steps)
        if self._dials.model == "recorded" and not self._dials.is_updated and len(self.requests) < recorded:
            raise ReplayMismatch(
                f"the run ended after {len(self.requests)} requests; {recorded} were recorded", len(self.requests)
            )
        return ReplayedRun(output=output, parts=tuple(parts), dials=self._dials)

    async def _steer(self, run: Any, request: int) -> None:
        """Send the recorded messages that this request takes."""
        for steer in self.cassette.steers:
            if steer.request == request:
                await run.steer(convert(steer.message, ChatMessage))

    def updated(self, run: ReplayedRun) -> Cassette:
        """Return the cassette with what this replay requested and received."""
        redaction = CassetteRedaction(self.cassette.redacted)
        steps = list(self.cassette.steps)
        if self._dials.model == "recorded":
            steps = [
                RecordedStep(redaction.clean(body, f"steps[{at}].request"), step.parts)
                for at, (step, body) in enumerate(zip(steps, self.requests, strict=False))
            ]
        results = [
            replace(each, result=redaction.clean(each.result, f"results[{at}].result"))
            for at, each in enumerate(results_of(run.parts))
        ]
        return replace(self.cassette, steps=steps, results=results, redacted=redaction.report)

    def _replaced(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings that replace those of the agent."""
        replaced: dict[str, Any] = {}
        dials, agent = self._dials, self._agent
        if dials.model == "recorded":
            replaced["model"] = self._model()
        reserved = _result_tool(_model_of(agent))
        functions = {
            entry.name: entry
            for entry in _functions(jsontext.as_object(self.cassette.steps[0].request))
            if entry.name != reserved
        }
        own = {tool.name: tool for tool in agent.tools.values()}
        tools: list[Any] = [self._recorded(tool) if dials.tools == "recorded" else tool for tool in own.values()]
        hosted = tuple(agent.server_side_tools)
        if dials.hosted == "live":
            tools += agent.toolsets
        else:
            tools += [self._recorded(_rebuilt(entry)) for name, entry in functions.items() if name not in own]
            here = {tool for tool in hosted if _name_of(tool) in functions}
            hosted = tuple(tool for tool in hosted if tool not in here)
            if dials.model == "live" and hosted:
                tools += [self._recorded(tool) for tool in self._hosted()]
                hosted = ()
        if dials.tools == "recorded" or dials.hosted == "recorded":
            replaced["tools"] = tools
        if hosted != tuple(agent.server_side_tools):
            replaced["server_side_tools"] = hosted
        return replaced

    def _model(self) -> ChatModel:
        """Return the agent's model, which answers from the cassette."""
        model: Any = copy.copy(_model_of(self._agent))
        encode = model.encode
        transport = _PlayingTransport(self)

        def recorded(request: ModelRequest) -> Encoded:
            encoded: Encoded = encode(request)
            if encoded.uploads:
                raise ConfigurationError("the run uploads files, which a replay cannot; use model='live'")
            decoder = _StepDecoder(self)
            return replace(encoded, decoder=lambda: decoder, in_background=False)

        model.encode = recorded
        model.transport = lambda: transport
        return cast("ChatModel", model)

    def answer(self) -> list[StreamPart]:
        """Return the parts of the answer to the current request."""
        return step_parts(self.cassette.steps[len(self.requests) - 1])

    def take(self, body: Json) -> None:
        """Compare a request with the recorded one. Raises ReplayMismatch if they differ."""
        at = len(self.requests)
        self.requests.append(body)
        if at >= len(self.cassette.steps):
            raise ReplayMismatch(f"request {at + 1} was not recorded: the recorded run ended after {at}", at)
        found = list(self._comparison.differences(self.cassette.steps[at].request, body))
        if found and not self._dials.is_updated:
            raise ReplayMismatch(_described(at, found), at, found)

    def result_of(self, name: str, call_id: str, arguments: Json) -> tuple[ToolOutcome, list[Any]]:
        """Return the recorded result of a call and the parts that its tool emitted.

        Raises ReplayMismatch if there is none.
        """
        results = self.cassette.results
        named = [at for at, result in enumerate(results) if result.name == name]
        found = next((at for at in named if results[at].call_id == call_id), None)
        if found is None:
            equal = [at for at in named if first_difference(results[at].input, arguments) is None]
            found = next((at for at in equal if at not in self._used), equal[-1] if equal else None)
        if found is None:
            step = max(len(self.requests) - 1, 0)
            if not named:
                raise ReplayMismatch(f"the call to {name} was not recorded", step)
            differences = list(RequestComparison().differences(results[named[-1]].input, arguments))
            raise ReplayMismatch(
                f"the input of the call to {name} was not recorded: {differences[0]}", step, differences
            )
        self._used.add(found)
        return ToolOutcome(results[found].result, results[found].is_error), results[found].parts

    def _recorded(self, tool: Tool[Any]) -> Tool[Any]:
        if tool.is_external:
            return tool
        fields = {name: getattr(tool, name) for name in tool.__struct_fields__}
        return _RecordedTool(**fields, player=self)

    def _hosted(self) -> Iterator[Tool[Any]]:
        """Yield functions with the recorded results of hosted tools, for a live model."""
        parts = [part for step in self.cassette.steps for part in step_parts(step)]
        calls = {part.id: part for part in parts if isinstance(part, ToolCall) and part.provider_executed}
        results = [part for part in parts if isinstance(part, ToolResult) and part.id in calls]
        for name in dict.fromkeys(part.name for part in results):
            inputs = [jsontext.as_object(calls[part.id].input) for part in results if part.name == name]
            fields: dict[str, Any] = {field: {} for each in inputs for field in each}
            yield _rebuilt(_Function(name, f"Recorded results of {name}.", {"type": "object", "properties": fields}))
        known = {result.call_id for result in self.cassette.results}
        self.cassette.results += [
            RecordedResult(part.id, part.name, calls[part.id].input, part.result, part.is_error)
            for part in results
            if part.id not in known
        ]

    def _decisions(self, waiting: Sequence[PendingApproval]) -> list[Decision]:
        """Return the recorded answers to pending approvals, or nothing if one was never answered."""
        decisions: list[Decision] = []
        for at, entry in enumerate(waiting):
            found = next((each for each in self.cassette.decisions if each.call_id == entry.call_id), None)
            if found is None and self._dials.model == "live" and at < len(self.cassette.decisions):
                found = self.cassette.decisions[at]
            if found is None:
                return []
            if found.is_external:
                decisions.append(entry.answer(found.output, is_error=found.is_error))
            else:
                decisions.append(entry.approve(found.answers) if found.is_approved else entry.deny(found.reason))
        return decisions


class _RecordedTool(Tool[Any], frozen=True, eq=False, kw_only=True):
    """A tool that returns recorded results."""

    player: Player

    async def run(self, arguments: object, context: ToolContext, limits: Limits = DEFAULT_LIMITS) -> ToolOutcome:
        outcome, parts = self.player.result_of(self.name, context.call_id, arguments)
        for part in parts:
            found = part_from_json(jsontext.dumps(part))
            if isinstance(found, File | Source | ToolEvent):
                context.emit(found)
        return outcome


class _PlayingTransport:
    """A transport that answers from a cassette."""

    def __init__(self, player: Player) -> None:
        self._player = player

    async def open(self, call: HttpCall, limits: Limits) -> HttpResponse:
        self._player.take(jsontext.loads(call.body or b"null"))
        return _PlayedResponse(is_stream=call.stream)

    async def download(self, call: HttpCall, limits: Limits) -> bytes:
        raise ConfigurationError("a replay downloads no files: their bytes are in the cassette")


class _PlayedResponse:
    status = 200
    headers: Mapping[str, str] = {}

    def __init__(self, *, is_stream: bool) -> None:
        self.is_stream = is_stream
        self._is_read = False

    async def events(self) -> list[bytes]:
        is_read, self._is_read = self._is_read, True
        return [] if is_read else [b"{}"]

    def ignored(self) -> None:
        """Do nothing, because there is no idle timeout."""

    async def body(self) -> bytes:
        return b"{}"

    async def aclose(self) -> None:
        """Do nothing, because nothing is open."""

    complete = aclose


class _StepDecoder:
    """A decoder whose answer is the parts of the log."""

    downloads: tuple[FileRef, ...] = ()

    def __init__(self, player: Player) -> None:
        self._player = player
        self._is_read = False

    def feed(self, data: bytes) -> list[StreamPart]:
        is_read, self._is_read = self._is_read, True
        return [] if is_read else self._player.answer()

    whole = feed

    def close(self, error: Error | None = None) -> list[StreamPart]:
        if error is None:
            return self.feed(b"")
        self._is_read = True
        return [error, Finish("error", Usage())]


class _Function(NamedTuple):
    """A function as a request defines it."""

    name: str
    description: str
    parameters: dict[str, Any]
    strict: bool = False


def _functions(body: Mapping[str, Any]) -> list[_Function]:
    """Return the functions that a request defines, in any API's form."""
    found: list[_Function] = []
    for entry in jsontext.objects(body.get("tools")):
        declared = entry.get("functionDeclarations")
        inner = jsontext.as_object(entry.get("function"))
        for each in [{**entry, **inner}] if declared is None else jsontext.objects(declared):
            schemas = (each.get(name) for name in ("parameters", "input_schema", "parametersJsonSchema"))
            schema = next((schema for schema in schemas if jsontext.is_object(schema)), None)
            if isinstance(name := each.get("name"), str) and (schema is not None or declared is not None):
                description = str(each.get("description") or "")
                parameters = schema or {"type": "object", "properties": {}}
                found.append(_Function(name, description, parameters, each.get("strict") is True))
    return found


def _rebuilt(function: _Function) -> Tool[Any]:
    def missing(**arguments: Any) -> Any:
        raise ConfigurationError(f"{function.name} has no code here: only its recorded results are known")

    return Tool(
        name=function.name,
        description=function.description,
        parameters=function.parameters,
        strict=function.strict,
        function=missing,
        bind=lambda arguments, context: jsontext.as_object(arguments),
    )


def _model_of(agent: Agent[Any, Any]) -> ChatModel:
    """Return the agent's model, which needs no key to be replayed."""
    try:
        return agent.model
    except MissingKeyError:
        parsed = ModelString.parse(repr(agent).removeprefix("Agent(").removesuffix(")"))
        return find_provider(parsed.provider).chat_model(parsed.models.get("chat", ""), Settings(api_key="recorded"))


def _result_tool(model: ChatModel) -> str | None:
    """Return the name of the function by which the model gives a typed answer, if it has one."""
    return model.result_tool if isinstance(model, AnswersByTool) else None


def _name_of(tool: ServerSideTool) -> str:
    """Return the name of the function that replaces a hosted tool where it runs here."""
    return type(tool).key


def _text_of(parts: Sequence[StreamPart]) -> str:
    """Return the text of the last step."""
    last = max((at for at, part in enumerate(parts) if isinstance(part, StepStart)), default=0)
    texts: dict[str, str] = {}
    for part in parts[last:]:
        match part:
            case TextStart():
                texts[part.id] = ""
            case TextDelta():
                texts[part.id] = texts.get(part.id, "") + part.delta
            case TextEnd() if part.text is not None:
                texts[part.id] = part.text
            case _:
                pass
    return "".join(texts.values())


def _described(at: int, differences: Sequence[Difference]) -> str:
    """Describe the first difference of a request, and how many others it has."""
    first, *others = differences
    lines = [f"request {at + 1} differs from the recorded one", str(first)]
    if diff := first.diff():
        lines.append(diff)
    if others:
        lines.append(f"and {len(others)} more: {', '.join(each.path for each in others[:5])}")
    lines.append("Accept it with: pytest --sidestream-update")
    return "\n".join(lines)
