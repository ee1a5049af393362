"""Files generated on request, in whichever way the provider supports for their types."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any, cast

from msgspec import Struct

from sidestream import parts
from sidestream.agent.models import Models
from sidestream.agent.settings import CallSettings, CommonSettings, call_options
from sidestream.errors import ConfigurationError, UnsupportedError
from sidestream.messages.message import ChatMessage
from sidestream.providers.protocol import ChatModel, MakesMedia, MediaPlan
from sidestream.run.run import Run
from sidestream.text.reprs import ShortRepr
from sidestream.tools.server_side import ServerSideTool


class MediaResult(ShortRepr, Struct, frozen=True, kw_only=True):
    """The generated files, or the new ones in a chunk."""

    assets: tuple[parts.File, ...] = ()
    """Files with their bytes."""
    links: tuple[parts.File, ...] = ()
    """Files at a URL."""
    previews: tuple[parts.Preview, ...] = ()
    """Intermediate pictures, in chunks only."""
    text: str = ""
    messages: tuple[ChatMessage, ...] = ()
    metadata: dict[str, Any] = {}
    usage: parts.Usage | None = None
    finish_reason: parts.FinishReason | None = None


def media_plan(models: Models, mime_types: Sequence[str]) -> tuple[MediaPlan, ChatModel]:
    """Return the plan for making files of these types, and the model that makes them.

    Raises ConfigurationError without types, and UnsupportedError for a model that makes no files.
    """
    if not mime_types:
        raise ConfigurationError("mime_types must not be empty; write, for example, mime_types=['image/png']")
    model = models.named(models.media) if models.media else models.chat
    if not isinstance(model, MakesMedia):
        raise UnsupportedError(f"{model!r} cannot generate files")
    plan = model.media_plan(tuple(mime_types))
    return plan, models.named(plan.model) if plan.model and not models.media else model


def media_call(plan: MediaPlan, call: CallSettings, tools: Iterable[ServerSideTool], options: Any) -> CallSettings:
    """Add the tools and options of the plan to those of the call, or else of the agent."""
    given = tuple(call.get("server_side_tools", tools))
    kinds = {type(tool) for tool in given}
    added = (tool for tool in plan.server_side_tools if type(tool) not in kinds)
    options = call.get("options") if "server_side_tools" in call else call_options(options, call)
    changed: CommonSettings = {"server_side_tools": (*given, *added), "options": options}
    return cast(CallSettings, {**call, **changed})


async def media_chunks(run: Run[Any], plan: MediaPlan) -> AsyncGenerator[MediaResult]:
    """Yield the output of a media run as it arrives. A failed run raises after its last chunk."""
    seen: list[parts.StreamPart] = []
    async with run:
        async for part in run:
            preview = parts.preview_of(part)
            if preview is not None:
                yield MediaResult(previews=(preview,), metadata={"way": plan.way})
            match part:
                case parts.File():
                    seen.append(part)
                    yield _of(part)
                case parts.ToolResult(preliminary=True):
                    pass
                case parts.ToolResult() | parts.Error():
                    seen.append(part)
                case parts.ToolEvent():
                    yield MediaResult(metadata={part.key: [part.event]})
                case parts.Finish():
                    yield _ending(run, plan, seen, part)
                case _:
                    pass


def _of(file: parts.File) -> MediaResult:
    return MediaResult(assets=(file,)) if file.data is not None else MediaResult(links=(file,))


def _ending(run: Run[Any], plan: MediaPlan, seen: list[parts.StreamPart], finish: parts.Finish) -> MediaResult:
    made = None
    if (
        plan.fallback is not None
        and finish.reason != "error"
        and not any(isinstance(part, parts.File) for part in seen)
    ):
        made = plan.fallback(seen)
    answers = [message for message in run.turn.state.messages if message.role == "model"]
    return MediaResult(
        assets=(made,) if made is not None else (),
        text="\n".join(filter(None, (message.text for message in answers))),
        messages=tuple(answers),
        metadata={"way": f"{plan.way}, summary of its output" if made is not None else plan.way},
        usage=finish.usage,
        finish_reason=finish.reason,
    )


def join(chunks: Sequence[MediaResult]) -> MediaResult:
    """Join the chunks of a run into one result."""
    metadata: dict[str, Any] = {}
    for chunk in chunks:
        for key, value in chunk.metadata.items():
            metadata[key] = [*metadata.get(key, []), *value] if isinstance(value, list) else value
    last = chunks[-1] if chunks else MediaResult()
    return MediaResult(
        assets=tuple(file for chunk in chunks for file in chunk.assets),
        links=tuple(file for chunk in chunks for file in chunk.links),
        text=last.text,
        messages=last.messages,
        metadata=metadata,
        usage=last.usage,
        finish_reason=last.finish_reason,
    )
