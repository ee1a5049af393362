"""Lifecycle events of local tools, in the format of the Responses API."""

from collections.abc import Callable, Mapping

from msgspec import Struct

from sidestream.jsontext import Json, JsonObject, as_list, as_object
from sidestream.parts import Stage, ToolCall
from sidestream.results.tool_code import CodeExtractor, code_in
from sidestream.tools.stages import StageEvent, StagesOf

ItemFields = Callable[[JsonObject, JsonObject], JsonObject]
"""Returns the fields of an item, given the input and result of its call."""


class StageRow(Struct, frozen=True, kw_only=True):
    """Event format of the calls to one tool."""

    item: str
    """Type of its items, and prefix of its lifecycle events."""
    working: str | None = None
    """Lifecycle event while it runs. None means that its item has no lifecycle events."""
    fields: ItemFields
    opening: Mapping[str, Json] = {}
    """Fields of the item before its input is known."""
    code: tuple[str, str] | None = None
    """Prefix of the events that stream its code, and field that holds all of it."""
    is_request: bool = False
    """Whether its item is complete once the model has written it, and does not include the result."""
    has_status: bool = True
    """Whether its item has a status."""
    output: tuple[str, ItemFields] | None = None
    """Type and fields of a second item that holds the result, if the hosted tool has one."""


def _search(given: JsonObject, result: JsonObject) -> JsonObject:
    found = {"sources": result["sources"]} if result.get("sources") else {}
    return {"action": {"type": "search", **given, **found}}


def _fetch(given: JsonObject, result: JsonObject) -> JsonObject:
    return {"action": {"type": "open_page", **given}}


def _file_search(given: JsonObject, result: JsonObject) -> JsonObject:
    return {"queries": as_list(given.get("queries")), "results": result.get("results")}


def _code(given: JsonObject, result: JsonObject) -> JsonObject:
    outputs = {name: result.get(name) for name in ("container_id", "outputs")}
    return {"code": given.get("code", ""), **outputs}


def _image(given: JsonObject, result: JsonObject) -> JsonObject:
    return {name: value for name, value in result.items() if name != "status"}


def _shell(given: JsonObject, result: JsonObject) -> JsonObject:
    return {"action": given}


def _patch(given: JsonObject, result: JsonObject) -> JsonObject:
    return {"operation": as_object(given.get("operation")) or given}


def _tools(given: JsonObject, result: JsonObject) -> JsonObject:
    return {"arguments": given, "execution": "client"}


def _program(given: JsonObject, result: JsonObject) -> JsonObject:
    return {"code": given.get("code", "")}


def _program_output(given: JsonObject, result: JsonObject) -> JsonObject:
    return {"result": result.get("result")}


def _found_tools(given: JsonObject, result: JsonObject) -> JsonObject:
    return {"tools": result.get("tools"), "execution": "client"}


def _output(given: JsonObject, result: JsonObject) -> JsonObject:
    return {name: value for name, value in result.items() if name == "output"}


ROWS: dict[str, StageRow] = {
    "web_search": StageRow(item="web_search_call", working="searching", fields=_search),
    "x_search": StageRow(item="x_search_call", working="searching", fields=_search),
    "web_fetch": StageRow(item="web_fetch_call", working="fetching", fields=_fetch),
    "file_search": StageRow(item="file_search_call", working="searching", fields=_file_search, opening={"queries": []}),
    "code_interpreter": StageRow(
        item="code_interpreter_call",
        working="interpreting",
        fields=_code,
        opening={"code": "", "outputs": []},
        code=("code_interpreter_call_code", "code"),
    ),
    "image_generation": StageRow(item="image_generation_call", working="generating", fields=_image),
    "shell": StageRow(
        item="shell_call",
        fields=_shell,
        code=("shell_call_command", "command"),
        is_request=True,
        output=("shell_call_output", _output),
    ),
    "apply_patch": StageRow(
        item="apply_patch_call", fields=_patch, code=("apply_patch_call_operation_diff", "diff"), is_request=True
    ),
    "programmatic_tool_calling": StageRow(
        item="program",
        fields=_program,
        is_request=True,
        has_status=False,
        output=("program_output", _program_output),
    ),
    "tool_search": StageRow(
        item="tool_search_call", fields=_tools, is_request=True, output=("tool_search_output", _found_tools)
    ),
}
"""Key of a tool → its events. A tool without a row has none, since no provider reports its calls."""

_WORDS: dict[str, Stage] = {"in_progress": "started", "completed": "completed", "failed": "failed"}
"""Stages, by the last word of a lifecycle event's type. All other words are those of a running tool."""

_CODE_FIELDS = {"code_interpreter": ("code",), "shell": ("commands",), "apply_patch": ("diff",)}


def stages_of(key: str | None) -> StagesOf | None:
    """Return the lifecycle events for the tool with this key, or None if it has none."""
    row = ROWS.get(key or "")
    return None if row is None else lambda call_id, place: ResponsesStages(key or "", row, call_id, place)


class ResponsesStages:
    """Produces the lifecycle events of one call."""

    def __init__(self, key: str, row: StageRow, call_id: str, place: int) -> None:
        self._row = row
        self._id = call_id
        self._place = place
        self._extractor = CodeExtractor(_CODE_FIELDS[key]) if row.code is not None else None
        self._names = _CODE_FIELDS.get(key, ())
        self._has_output = False
        """Whether the output item has been added."""

    @property
    def places(self) -> int:
        """Number of the call's items."""
        return 1 if self._row.output is None else 2

    def begun(self) -> list[StageEvent]:
        """Return the added item, in progress."""
        item = {**self._own("in_progress"), **self._row.opening}
        stages = [] if self._row.working is None else [self._stage("in_progress")]
        return [self._item("started", "added", item), *stages]

    def delta(self, text: str) -> list[StageEvent]:
        """Return the code as the model writes it."""
        if self._extractor is None:
            return []
        is_first = not self._extractor.extracted
        code = self._extractor.feed(text)
        return [*(self._opening() if code and is_first else []), *self._code("delta", code)] if code else []

    def called(self, call: ToolCall) -> list[StageEvent]:
        """Return the complete code, and the finished item of a request."""
        done = [self._done(call, {}, "completed")] if self._row.is_request and call.input_error is None else []
        extractor = self._extractor
        code = code_in(as_object(call.input).get("operation") or call.input, self._names)
        if extractor is None or code is None:
            return done
        opening = [] if extractor.extracted else self._opening()
        rest = extractor.remainder(code)
        return [*opening, *(self._code("delta", rest) if rest else []), *self._code("done", code), *done]

    def running(self) -> list[StageEvent]:
        """Return the events of a running tool."""
        working = [] if self._row.working is None else [self._stage(self._row.working)]
        return [*working, *self._output_added()]

    def ended(self, call: ToolCall, result: Json, *, is_error: bool) -> list[StageEvent]:
        """Return the completed or failed event, and the finished item."""
        row, got = self._row, as_object(result)
        status = "failed" if is_error else "completed"
        error: JsonObject = {"error": got} if is_error and "error" in got else {}
        if row.output is not None:
            fields = {"status": status, **row.output[1](as_object(call.input), got), **error}
            return [*self._output_added(), self._output("failed" if is_error else "completed", "done", fields)]
        working = [] if row.working is None else [self._stage(status)]
        return [*working, *([] if row.is_request else [self._done(call, got, status, **error)])]

    def is_repeated(self, event: JsonObject) -> bool:
        """Return whether the event is one of the lifecycle events emitted here."""
        row, kind = self._row, event.get("type")
        stages = ("in_progress", "completed", "failed", *([row.working] if row.working else []))
        own = {f"response.{row.item}.{stage}" for stage in stages} if row.working else set[str]()
        code = {f"response.{row.code[0]}.{stage}" for stage in ("added", "delta", "done")} if row.code else set[str]()
        return kind in own | code | {"response.output_item.added", "response.output_item.done"}

    def placed(self, event: JsonObject) -> JsonObject:
        """Return the event with its item's id and position."""
        output = self._row.output
        if output is not None and str(event.get("type")).startswith(f"response.{output[0]}_"):
            return {"item_id": f"{self._id}_output", "output_index": self._place + 1} | event
        return {"item_id": self._id, "output_index": self._place} | event

    def _opening(self) -> list[StageEvent]:
        """Announce a shell command before its text."""
        return self._code("added", "") if self._row.item == "shell_call" else []

    def _code(self, stage: str, text: str) -> list[StageEvent]:
        assert self._row.code is not None
        prefix, field = self._row.code
        more = {"command_index": 0} if self._row.item == "shell_call" else {}
        name = "delta" if stage == "delta" else field
        return [("delta", stage, self.placed({"type": f"response.{prefix}.{stage}", **more, name: text}))]

    def _stage(self, stage: str) -> StageEvent:
        return _WORDS.get(stage, "running"), stage, self.placed({"type": f"response.{self._row.item}.{stage}"})

    def _done(self, call: ToolCall, result: JsonObject, status: str, **more: Json) -> StageEvent:
        fields = self._row.fields(as_object(call.input), result)
        ends: Stage = "running" if self._row.is_request else "failed" if status == "failed" else "completed"
        return self._item(ends, "done", {**self._own(status), **fields, **more})

    def _own(self, status: str) -> JsonObject:
        """Return the fields that all items of the call's kind have."""
        row = self._row
        call: JsonObject = {"call_id": self._id} if row.is_request else {}
        return {"id": self._id, "type": row.item, **call, **({"status": status} if row.has_status else {})}

    def _output_added(self) -> list[StageEvent]:
        """Return the added output item, once."""
        if self._row.output is None or self._has_output:
            return []
        self._has_output = True
        return [self._output("running", "added", {"status": "in_progress"})]

    def _output(self, stage: Stage, word: str, fields: JsonObject) -> StageEvent:
        assert self._row.output is not None
        item = {"id": f"{self._id}_output", "type": self._row.output[0], "call_id": self._id, **fields}
        return stage, word, {"type": f"response.output_item.{word}", "output_index": self._place + 1, "item": item}

    def _item(self, stage: Stage, word: str, item: JsonObject) -> StageEvent:
        return stage, word, {"type": f"response.output_item.{word}", "output_index": self._place, "item": item}


class Unstaged:
    """Produces no events, for a tool whose function emits them all itself, e.g. those of another provider's call."""

    places = 1

    def __init__(self, call_id: str, place: int) -> None:
        self._place = {"item_id": call_id, "output_index": place}

    def begun(self) -> list[StageEvent]:
        return []

    def delta(self, text: str) -> list[StageEvent]:
        return []

    def called(self, call: ToolCall) -> list[StageEvent]:
        return []

    def running(self) -> list[StageEvent]:
        return []

    def ended(self, call: ToolCall, result: Json, *, is_error: bool) -> list[StageEvent]:
        return []

    def is_repeated(self, event: JsonObject) -> bool:
        return False

    def placed(self, event: JsonObject) -> JsonObject:
        """Return the event with its position, unless it has one."""
        return self._place | event
