"""What a run adds to an answer: lifecycle events of calls that replace hosted ones, and checked sources."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from sidestream.jsontext import Json, as_object, text_in
from sidestream.messages.message import ChatMessage
from sidestream.parts import File, Finish, StreamPart, ToolCall, ToolEvent, ToolInputDelta, ToolInputStart
from sidestream.run.settings import CitationCheck
from sidestream.tools.stages import CallStages, Listing, StageEvent
from sidestream.tools.tool import Tool
from sidestream.tools.toolset import ToolBox
from sidestream.turn.machine import Turn
from sidestream.turn.rounds import function_of, is_output, of_server

if TYPE_CHECKING:
    from sidestream.results.citation_marks import CitationMarks
    from sidestream.results.passages import CitablePassage
    from sidestream.results.text_blocks import FileLinks, LinkedFile


class HeldEnd:
    """The end of an answer, held back until the citations of the answer are checked."""

    def __init__(self, citations: CitationCheck) -> None:
        self.part: Finish | None = None
        self.citations = citations

    def takes_end(self, parts: list[StreamPart], turn: Turn) -> bool:
        """Take the end out of an answer's last parts if there may be something to check."""
        if not parts or type(end := parts[-1]) is not Finish:
            return False
        if end.reason == "error" or turn.state.error is not None:
            return False
        self.part = end
        del parts[-1]
        return True

    def taken(self) -> list[StreamPart]:
        """Return the end, if there is one, and forget it."""
        end, self.part = self.part, None
        return [] if end is None else [end]

    async def checked(self) -> list[StreamPart]:
        """Check the citations, and return their sources with evidence, then the end."""
        parts = await self.citations.check() if self.citations.is_due else []
        return [*parts, *self.taken()]


class Staging:
    """Tracks the calls of one run."""

    def __init__(self) -> None:
        self._calls: dict[str, tuple[str, CallStages]] = {}
        """Tool key and lifecycle of each call, by its id."""
        self._own: dict[str | None, None] = {}
        """Ids of calls whose events the provider sends itself, leaving only their execution to the client."""
        self._count = 0
        self._listings: list[tuple[str, Listing]] = []
        """Listings to report before the answer."""
        self._passages: dict[int, CitablePassage] | None = None
        self._marks: CitationMarks | None = None
        """Reader of citations in the answer, if there is anything to cite."""
        self._files: dict[str, LinkedFile] | None = None
        self._links: FileLinks | None = None
        """Reader of links to files in the answer, if code has made any."""

    def begin_step(self, messages: Sequence[ChatMessage], toolbox: ToolBox) -> None:
        """Prepare for a new answer to these messages. Its calls may reuse the ids of earlier ones."""
        self._calls, self._own, self._count = {}, {}, 0
        self._listings = toolbox.listings
        if not toolbox.is_staged:
            return
        # Not at the top: a run without such tools has nothing to cite and no files to link to.
        from sidestream.results.citation_marks import CitationMarks
        from sidestream.results.passages import passages_in
        from sidestream.results.text_blocks import FileLinks, files_in

        # Only tools with passages add to those that the run began with.
        if self._passages is None or toolbox.has_passages:
            self._passages = passages_in(messages)
        self._marks = CitationMarks(self._passages) if self._passages else None
        if self._files is None:
            self._files = files_in(messages)
        self._links = FileLinks(self._files) if self._files else None

    def made(self, file: File) -> None:
        """Register a file that a call has made, to which the answer may link."""
        origin = as_object((file.provider_metadata or {}).get("sidestream"))
        path = origin.get("path")
        if self._files is not None and isinstance(path, str):
            from sidestream.results.text_blocks import LinkedFile

            self._files[path] = LinkedFile(file.name, file.id, text_in(origin, "container_id"))

    def expanded(self, parts: Iterable[StreamPart], tools: Mapping[str, Tool]) -> list[StreamPart]:
        """Insert the lifecycle events of an answer's calls among its parts."""
        out: list[StreamPart] = []
        for part in parts:
            if self._listings and is_output(part):
                out += self._listed()
            match part:
                case ToolInputStart() if not part.provider_executed:
                    stages = self._begin(part.id, tools.get(part.name))
                    out += [*stages[:1], of_server(part, tools), *stages[1:]]
                    continue
                case ToolEvent():
                    self._own[part.call_id] = None
                case ToolInputDelta() if part.id in self._calls:
                    out += self._events(part.id, self._calls[part.id][1].delta(part.delta))
                case ToolCall() if not part.provider_executed:
                    out += self.called(part, tools.get(function_of(part)))
                case _:
                    pass
            out.append(part)
        if self._marks is not None:
            out = self._marks.read(out)
        return out if self._links is None else self._links.read(out)

    def _listed(self) -> list[StreamPart]:
        """Return the events of the pending listings. They wait for the answer, before which a run may change models."""
        out: list[StreamPart] = []
        for key, listing in self._listings:
            listing_id = f"mcpl_{os.urandom(16).hex()}"
            out += _events(key, listing_id, listing(listing_id, self._count))
            self._count += 1
        self._listings.clear()
        return out

    def running(self, call: ToolCall, tool: Tool | None) -> list[StreamPart]:
        """Return the event of a tool that begins to run."""
        # A resumed run has not seen the call arrive.
        if call.id not in self._calls and call.action is None:
            self._begin(call.id, tool)
        known = self._calls.get(call.id)
        return [] if known is None else self._events(call.id, known[1].running())

    def ended(self, call: ToolCall, result: Json, *, is_error: bool) -> list[StreamPart]:
        """Return the last events of a call."""
        known = self._calls.get(call.id)
        return [] if known is None else self._events(call.id, known[1].ended(call, result, is_error=is_error))

    def stages_of(self, call: ToolCall) -> CallStages | None:
        """Return the lifecycle of a call, or None if it has none."""
        known = self._calls.get(call.id)
        return None if known is None else known[1]

    def _begin(self, call_id: str, tool: Tool | None) -> list[StreamPart]:
        if tool is None or tool.stages is None or tool.key is None or call_id in self._own:
            return []
        stages = tool.stages(call_id, self._count)
        self._calls[call_id] = (tool.key, stages)
        self._count += stages.places
        return self._events(call_id, stages.begun())

    def called(self, call: ToolCall, tool: Tool | None) -> list[StreamPart]:
        """Return the events of a call that has been made, which come before it."""
        begun = [] if call.id in self._calls else self._begin(call.id, tool)
        known = self._calls.get(call.id)
        return [] if known is None else [*begun, *self._events(call.id, known[1].called(call))]

    def _events(self, call_id: str, stages: Iterable[StageEvent]) -> list[StreamPart]:
        return _events(self._calls[call_id][0], call_id, stages)


def _events(key: str, call_id: str, stages: Iterable[StageEvent]) -> list[StreamPart]:
    return [
        ToolEvent(key, stage, event, call_id, event.get("output_index"), provider_stage=word)
        for stage, word, event in stages
    ]
