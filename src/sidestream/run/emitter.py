"""What a tool emits on its way, as parts of its call."""

from collections.abc import Callable

from msgspec.structs import replace

from sidestream.jsontext import as_object
from sidestream.run.staging import Staging
from sidestream.stream.parts import Custom, File, Source, StreamPart, ToolCall, ToolEvent, ToolResult
from sidestream.tools.context import Emitted


class Emitter:
    """Emits the parts of one call: each gets the call's id and tool."""

    def __init__(self, call: ToolCall, report: Callable[[StreamPart], None], staging: Staging) -> None:
        self._call = call
        self._report = report
        self._staging = staging
        self._count = 0

    def __call__(self, part: Emitted) -> None:
        """Emits the part, unless it is a stage that is emitted for every call of such a tool."""
        stages = self._staging.stages_of(self._call)
        if stages is not None and isinstance(part, ToolEvent):
            event = as_object(part.event)
            if stages.is_repeated(event):
                return
            event = stages.placed(event)
            part = replace(part, event=event, output_index=event.get("output_index"))
        self._report(self._of_call(part))

    def _of_call(self, part: Emitted) -> StreamPart:
        call = self._call
        match part:
            case ToolEvent():
                return replace(part, tool=call.tool, call_id=call.id)
            case File():
                return replace(part, id=part.id or self._new_id("file"), tool=call.tool, call_id=call.id)
            case Source():
                # Only the run can tell: it compares answers with what its own sources found.
                return replace(part, id=part.id or self._new_id("source"), verified=None)
            case Custom():
                return part
            case ToolResult():
                return replace(part, id=call.id, name=call.name, tool=call.tool, provider_executed=False)

    def _new_id(self, kind: str) -> str:
        self._count += 1
        return f"{self._call.id}:{kind}-{self._count}"
