"""Tools by delegation: a model that hosts a tool runs its calls for one that does not.

The inner run emits its events, previews, files and sources as those of the call, marked with the model that made them.
Its usage counts for the outer run, and its approvals are the outer run's.
"""

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from sidestream.errors import ConfigurationError, FetchError, UnsupportedError
from sidestream.jsontext import Json, JsonObject, as_list, as_object, text_in
from sidestream.messages.message import ChatMessage
from sidestream.parts import File, Finish, Source, StreamPart, TextDelta, TextEnd, ToolEvent, ToolResult
from sidestream.portable.search.engine import MAX_SNIPPET_CHARS
from sidestream.portable.services import Services
from sidestream.portable.stages import Unstaged
from sidestream.portable.tools.functions import Functions
from sidestream.portable.tools.web_fetch import QUESTION, FetchGuard
from sidestream.providers.protocol import ModelRequest, Provider, Settings
from sidestream.providers.registry import ModelString, find_provider, hosts_of, installed_providers
from sidestream.run.run import Run
from sidestream.tools.server_side import ServerSideTool, WebFetch
from sidestream.tools.tool import Tool, ToolContext, ToolOutcome
from sidestream.tools.toolset import Toolset
from sidestream.turn.state import AwaitDecision, suspended_run

TIMEOUT_S = 600.0
"""Timeout in seconds. A run on another model may take minutes for images, research or code."""


class Delegated(Struct, frozen=True, kw_only=True):
    """A tool as the delegating model sees it."""

    argument: str
    description: str
    about: str
    """Description of the argument."""
    prompt: str
    """Prompt for the other model, in which `{}` is the argument."""


_READING = frozenset({"web_search", "x_search", "web_fetch", "file_search"})
"""Tools that only read, so that an interrupted call can be repeated."""

TOOLS: dict[str, Delegated] = {
    "image_generation": Delegated(
        argument="prompt",
        description="Generates an image, which is shown to the user at once. It returns how the image was made.",
        about="What the image shows, in detail: subject, style, composition, text in it.",
        prompt="Generate this image with your image generation tool, and answer with one short sentence.\n\n{}",
    ),
    "web_search": Delegated(
        argument="query",
        description="Searches the web and returns what was found, with its sources.",
        about="What to find out, as a question or in a few words.",
        prompt="Search the web for this and answer with the facts that you find, nothing else.\n\n{}",
    ),
    "x_search": Delegated(
        argument="query",
        description="Searches posts on X and returns what they say, with their addresses.",
        about="What to find out, as a question or in a few words.",
        prompt="Search X for this and answer with what the posts say, nothing else.\n\n{}",
    ),
    "web_fetch": Delegated(
        argument="url",
        description="Reads a page of the web and returns what it says.",
        about="The address of the page.",
        prompt="Fetch this page and repeat what it says, as completely as you can.\n\n{}",
    ),
    "file_search": Delegated(
        argument="query",
        description="Searches the user's files and returns what they say.",
        about="What to find out, as a question or in a few words.",
        prompt="Search the files for this and answer with what they say, nothing else.\n\n{}",
    ),
    "code_interpreter": Delegated(
        argument="task",
        description="Has Python code written and run in a sandbox. Files that it makes are handed to the user.",
        about="What to compute or to make, with all the data that it takes.",
        prompt="Use your code interpreter for this, and answer with the result.\n\n{}",
    ),
    "shell": Delegated(
        argument="task",
        description="Has commands run in a container and returns what they printed.",
        about="What to do, with all the data that it takes.",
        prompt="Use your shell for this, and answer with the result.\n\n{}",
    ),
}
"""Key of a tool → its delegation."""


def toolset(config: ServerSideTool, services: Services) -> Toolset:
    """Create the tool, run by the model `config.via` or by the first provider with a key that hosts it.

    Raises UnsupportedError if the tool cannot be delegated, and ConfigurationError if the model does not host it.
    """
    shape = TOOLS.get(config.key)
    if shape is None:
        raise UnsupportedError(
            f"{type(config).__name__} cannot be delegated; the tools that can are {', '.join(TOOLS)}"
        )
    model = config.via or default_host(type(config))
    _check_hosted(config, model)
    hosted = replace(config, via=None, execution="provider")

    guard = FetchGuard(config) if isinstance(config, WebFetch) else None

    async def run(context: ToolContext, request: str) -> ToolOutcome:
        if guard is not None:
            try:
                question = guard.question(context, request)
            except FetchError as error:
                return ToolOutcome.failure(error.code or "unavailable", error.message)
            if question is not None:
                return question
            if context.suspended is not None and context.suspended.state == QUESTION:
                context = replace(context, suspended=None)  # The inner run has not begun.
        prompt = shape.prompt.format(request)
        return await delegated(services.start_run(model, prompt, (hosted,), context), hosted, model, context)

    tool = Tool(
        name=config.key,
        description=shape.description,
        parameters=_schema(shape),
        strict=True,
        timeout_s=TIMEOUT_S,
        is_open_world=config.key in ("web_search", "web_fetch"),
        reads_outside=config.key in ("web_search", "file_search"),
        on_interruption="retry" if config.key in _READING else "ask",
        key=config.key,
        stages=Unstaged,
        function=run,
        bind=_binder(shape),
    )
    return Functions(config.key, [tool])


def default_host(kind: type[ServerSideTool]) -> str:
    """Return the provider with a key that hosts a tool, preferring the one with the most tools.

    Raises UnsupportedError if there is none.
    """
    hosts = hosts_of(kind)
    with_key = [entry for entry in installed_providers() if entry.has_key and entry.name in hosts]
    if not with_key:
        example = f'{kind.__name__}(via="{hosts[0]}")' if hosts else kind.__name__
        raise UnsupportedError(
            f"{kind.__name__} runs at a provider only, and none that hosts it ({', '.join(hosts) or 'none'}) has a key "
            f"here: set the key of one, and choose it with {example}"
        )
    return max(with_key, key=lambda entry: len(entry.server_side_tools)).name


async def delegated(run: Run[Any], tool: ServerSideTool, model: str, context: ToolContext) -> ToolOutcome:
    """Return the outcome of a call made by a run on another model. The run's parts are emitted as the call's own."""
    key, results, passages = tool.key, list[ToolResult](), _Passages()
    async with run:
        async for part in run:
            _emit(part, key, model, context)
            passages.note(part)
            if isinstance(part, ToolResult) and part.tool == key and not part.preliminary:
                results.append(part)
    if run.error is not None:
        return ToolOutcome.failure(type(run.error).__name__, f"{model} failed: {run.error.message}")
    if isinstance(run.turn.command, AwaitDecision):
        return ToolOutcome(None, suspended=suspended_run(run.state))
    said: str = run.output if run.has_output else ""
    if not results:
        answer = f" It said: {said}" if said else ""
        return ToolOutcome.failure("NotCalled", f"{model} did not use its {tool.key} tool.{answer}")
    is_error = all(entry.is_error for entry in results)
    joined = _joined(results, said, model)
    return ToolOutcome(passages.added_to(joined) if tool.key in _READING else joined, is_error=is_error)


class _Passages:
    """What a delegated run says about each source, so that the delegating model can cite the source."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._sources: list[Source] = []

    def note(self, part: StreamPart) -> None:
        """Collect text and sources."""
        match part:
            case TextDelta():
                self._texts[part.id] = self._texts.get(part.id, "") + part.delta
            case TextEnd(text=str(final)):
                self._texts[part.id] = final
            case Source():
                self._sources.append(part)
            case _:
                pass

    def added_to(self, result: JsonObject) -> JsonObject:
        """Return the result with a title and a snippet for each source, unless it has text of its own."""
        found = {str(entry.get("url") or entry.get("file_id")): entry for entry in self._entries()}
        known = [as_object(entry) for name in ("sources", "results") for entry in as_list(result.get(name))]
        if not found or any(text_in(entry, field) for entry in known for field in ("text", "snippet")):
            return result
        given = [as_object(entry) for entry in as_list(result.get("sources"))]
        merged = [entry | found.pop(str(entry.get("url")), {}) for entry in given]
        return result | {"sources": [*merged, *found.values()]}

    def _entries(self) -> Iterator[JsonObject]:
        snippets: dict[str, list[str]] = {}
        chosen: dict[str, Source] = {}
        for source in self._sources:
            key = source.url or source.file_id or ""
            chosen.setdefault(key, source)
            snippet = self._snippet(source)
            if key and snippet and snippet not in snippets.setdefault(key, []):
                snippets[key].append(snippet)
        for key, texts in snippets.items():
            source = chosen[key]
            kind = {"type": "url", "url": source.url} if source.url else {"type": "file", "file_id": source.file_id}
            title = {"title": source.title} if source.title else {}
            yield kind | title | {"snippet": " … ".join(texts)[:MAX_SNIPPET_CHARS]}

    def _snippet(self, source: Source) -> str:
        """Return the source's own words, else the other model's sentence that it supports."""
        text = self._texts.get(source.text_id or "", "")
        is_linked = source.claim_start is not None
        start, end = (source.claim_start, source.claim_end) if is_linked else (source.start, source.end)
        return (source.cited_text or text[start or 0 : end if end is not None else len(text)]).strip()


def _joined(results: list[ToolResult], said: str, model: str) -> JsonObject:
    """Return the result in the hosted tool's format, with the other model's answer and name."""
    last = next((entry for entry in reversed(results) if not entry.is_error), results[-1])
    fields: JsonObject = dict(as_object(last.result)) or ({} if last.result in (None, {}) else {"output": last.result})
    sources = [source for entry in results for source in as_object(entry.result).get("sources") or ()]
    return fields | ({"sources": sources} if sources else {}) | ({"text": said} if said else {}) | {"by": model}


def _emit(part: StreamPart, key: str, model: str, context: ToolContext) -> None:
    marks: dict[str, Json] = {**(part.provider_metadata or {}), "sidestream": {"by": model}}
    match part:
        case ToolEvent() if part.tool == key:
            context.emit(replace(part, provider_metadata=marks))
        case ToolResult() if part.tool == key and part.preliminary:
            context.emit(replace(part, provider_metadata=marks))
        case File():
            context.emit(replace(part, id=f"{context.call_id}:{part.id}", provider_metadata=marks))
        case Source():
            # Its span refers to text that only this tool has seen.
            bare = replace(part, id=f"{context.call_id}:{part.id}", text_id=None, start=None, end=None)
            context.emit(replace(bare, provider_metadata=marks))
        case Finish():
            context.forward(replace(part, provider_metadata=marks))
        case _:
            pass


def _check_hosted(config: ServerSideTool, model: str) -> None:
    provider = find_provider(ModelString.parse(model).provider)
    if not _hosts(provider, model, replace(config, via=None)):
        hosts = ", ".join(hosts_of(type(config))) or "no installed provider"
        raise ConfigurationError(
            f"{type(config).__name__}(via={model!r}): {provider.name} does not host it; it is hosted by {hosts}"
        )


def _hosts(provider: Provider, model: str, config: ServerSideTool) -> bool:
    if provider.server_side_tools:
        return type(config) in provider.server_side_tools
    # A provider that declares no tools, as recordings do, may answer any request, so try its encoder.
    name = ModelString.parse(model).models.get("chat") or provider.default_models.get("chat", "")
    request = ModelRequest(messages=(ChatMessage.user("?"),), server_side_tools=(config,))
    try:
        provider.chat_model(name, Settings(api_key="?")).encode(request)
    except UnsupportedError:
        return False
    return True


def _schema(shape: Delegated) -> JsonObject:
    return {
        "type": "object",
        "properties": {shape.argument: {"type": "string", "description": shape.about}},
        "required": [shape.argument],
        "additionalProperties": False,
    }


def _binder(shape: Delegated) -> Callable[[object, ToolContext], dict[str, Any]]:
    from sidestream.tools.arguments import InvalidArgumentsError

    def bind(arguments: object, context: ToolContext) -> dict[str, Any]:
        request = as_object(arguments).get(shape.argument)
        if not isinstance(request, str) or not request.strip():
            raise InvalidArgumentsError(f"{shape.argument} must be a non-empty string")
        return {"context": context, "request": request}

    return bind
