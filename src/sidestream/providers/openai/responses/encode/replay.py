"""Resends output items as input, with the fields that the API accepts.

A resent item never refers to stored data on the server. Optional ids are left out, required ids are derived from the
old ones, and reasoning is sent only with its encrypted content.
"""

from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from msgspec import Struct

from sidestream.jsontext import JsonObject, is_array, is_object, objects, without_none
from sidestream.messages.message import ChatMessage, TextPart, ToolCallPart
from sidestream.messages.references import Replays
from sidestream.messages.sessions import FORKED
from sidestream.providers.openai.responses.encode.answers import ANSWERS, answer_key


class ItemRule(Struct, frozen=True, kw_only=True):
    """The rule for resending one type of item."""

    required: tuple[str, ...] = ()
    """Required fields. An item without one of them is left out."""
    optional: tuple[str, ...] = ()
    has_id: bool = False
    """Whether the API requires an id."""
    bound: bool = False
    """Whether only the model that wrote the item can read it."""
    refine: Callable[[JsonObject], None] | None = None


class ItemLayout(Struct, frozen=True):
    """The output items of one message, as stored in its session."""

    items: list[JsonObject]
    answered: frozenset[str]
    """Ids of the calls that an output among the items answers."""
    same_model: bool
    is_reduced: bool = False
    """Whether only the message's own parts and the pending items are available, without the items of hosted tools."""

    is_forked: bool = False
    """Whether their containers belong to the conversation that this one was forked from."""

    @property
    def approvals(self) -> set[str]:
        """Ids of approval requests that were followed by a call."""
        return {str(item["approval_request_id"]) for item in self.items if item.get("approval_request_id")}

    def waits(self, item: JsonObject) -> bool:
        """Return whether an item is pending, with no answer by the provider or another item."""
        kind = str(item.get("type"))
        if kind not in ANSWERS or (kind == "tool_search_call" and item.get("execution") != "client"):
            return False
        if item.get("execution") == "server":
            return False
        environment = item.get("environment")
        if is_object(environment) and environment.get("type") == "container_reference":
            return False
        return item.get("call_id") is None or str(item["call_id"]) not in self.answered


def layout_of(
    message: ChatMessage, keys: tuple[str, ...], model: str, base_url: str, replays: Replays
) -> ItemLayout | None:
    """Return the items of a message, by the first of these keys, or None if another provider or server wrote it."""
    session = next((found for key in keys if is_object(found := message.metadata.get(key))), None)
    if session is None or message.role != "model" or session.get("base_url") not in (None, base_url):
        return None
    items = replays.read(session, "items")
    if items is None:
        # References to missing items, such as callers, must be left out, as for another model.
        items = _items_of_parts(message, objects(session.get("pending_items")))
        return ItemLayout(items, _answered(items), same_model=False, is_reduced=True)
    same_model, is_forked = session.get("model") in (None, model), bool(session.get(FORKED))
    return ItemLayout(items, _answered(items), same_model=same_model, is_forked=is_forked)


def _answered(items: list[JsonObject]) -> frozenset[str]:
    outputs = (item for item in items if str(item.get("type")).endswith("_output"))
    return frozenset(str(item["call_id"]) for item in outputs if item.get("call_id") is not None)


def _items_of_parts(message: ChatMessage, pending: list[JsonObject]) -> list[JsonObject]:
    """Rebuild the items of a message from its text and its pending items, in the order of its parts."""
    waiting = {answer_key(item): item for item in pending}
    items: list[JsonObject] = []
    for part in message.parts:
        if isinstance(part, TextPart):
            items.append({"type": "message", "content": [{"text_id": part.id}]})
        elif isinstance(part, ToolCallPart) and part.id in waiting:
            items.append(waiting.pop(part.id))
    return items + list(waiting.values())


def replayed_fields(item: JsonObject) -> JsonObject:
    """Return the fields of an item that resending may need."""
    kept = _kept_fields(str(item.get("type")), item.get("call_id") is not None)
    fields = {key: value for key, value in item.items() if key in kept and value is not None}
    if is_object(action := fields.get("action")) and "sources" in action and fields["type"] == "web_search_call":
        fields["action"] = {key: value for key, value in action.items() if key != "sources"}
    return fields


@lru_cache(maxsize=128)
def _kept_fields(kind: str, has_call_id: bool) -> frozenset[str]:
    rule = RULES.get(kind, ItemRule())
    kept = {"type", *rule.required, *rule.optional, *_ALWAYS_KEPT}
    return frozenset(kept if has_call_id and not rule.has_id else {*kept, "id"})


_NOTES = frozenset({"execution", "file"})
"""Fields of a stored item that are not the provider's."""
_ALWAYS_KEPT = ("environment", "call_id", "execution")
"""Fields that affect how this item, or another one, is resent."""


def fresh_id(item_id: str) -> str:
    """Derive another id with the same prefix, always the same for the same item."""
    prefix = item_id.partition("_")[0]
    return f"{prefix}_{blake2b(item_id.encode('utf-8', 'replace'), digest_size=24).hexdigest()}"


def replayable(item: JsonObject, *, same_model: bool = True, is_raw: bool = False) -> JsonObject | None:
    """Encode an item as input, verbatim if `is_raw`. Returns None if it cannot be resent."""
    rule = RULES.get(str(item.get("type")))
    if is_raw and (same_model or rule is None or not rule.bound):
        return {key: value for key, value in item.items() if key not in _NOTES}
    if rule is None or (rule.bound and not same_model) or any(item.get(name) is None for name in rule.required):
        return None
    body: JsonObject = {"type": item["type"]}
    if rule.has_id:
        body["id"] = fresh_id(str(item.get("id")))
    for name in (*rule.required, *rule.optional):
        if item.get(name) is not None and (same_model or name != "caller"):
            body[name] = _without_nulls(item[name])
    if rule.refine is not None:
        rule.refine(body)
    return body


def _without_nulls(value: Any) -> Any:
    """Remove top-level nulls, some of which the API refuses. Deeper ones are kept."""
    if is_object(value):
        return without_none(value)
    if is_array(value):
        return [_without_nulls(entry) if is_object(entry) else entry for entry in value]
    return value


def _web_search(body: JsonObject) -> None:
    if is_object(body["action"]):
        body["action"].pop("sources", None)


def _code_interpreter(body: JsonObject) -> None:
    body.setdefault("code", None)
    body.setdefault("outputs", None)


def _image_generation(body: JsonObject) -> None:
    # A complete image may still have the status `generating`.
    body["status"] = "completed"


def _mcp_call(body: JsonObject) -> None:
    if "approval_request_id" in body:
        body["approval_request_id"] = fresh_id(str(body["approval_request_id"]))


def _shell_output(body: JsonObject) -> None:
    for entry in objects(body["output"]):
        entry.pop("created_by", None)


_CALLED = ("status", "caller")

RULES: dict[str, ItemRule] = {
    "reasoning": ItemRule(required=("summary", "encrypted_content"), bound=True),
    "compaction": ItemRule(required=("encrypted_content",), bound=True),
    "program": ItemRule(required=("call_id", "code", "fingerprint"), has_id=True, bound=True),
    "program_output": ItemRule(required=("call_id", "result", "status"), has_id=True, bound=True),
    "function_call": ItemRule(required=("call_id", "name", "arguments"), optional=("namespace", "caller", "async")),
    "function_call_output": ItemRule(required=("call_id", "output"), optional=("name", "namespace", "caller")),
    "custom_tool_call": ItemRule(required=("call_id", "name", "input"), optional=("namespace", "caller", "async")),
    "custom_tool_call_output": ItemRule(required=("call_id", "output"), optional=("caller",)),
    "web_search_call": ItemRule(required=("action", "status"), has_id=True, refine=_web_search),
    "file_search_call": ItemRule(required=("queries", "status"), optional=("results",), has_id=True),
    "code_interpreter_call": ItemRule(
        required=("container_id", "status"), optional=("code", "outputs"), has_id=True, refine=_code_interpreter
    ),
    "image_generation_call": ItemRule(
        required=("result",),
        optional=("action", "background", "output_format", "quality", "revised_prompt", "size"),
        has_id=True,
        refine=_image_generation,
    ),
    "mcp_list_tools": ItemRule(required=("server_label", "tools"), optional=("error",), has_id=True),
    "mcp_approval_request": ItemRule(required=("server_label", "name", "arguments"), has_id=True),
    "mcp_call": ItemRule(
        required=("server_label", "name", "arguments"),
        optional=("output", "error", "approval_request_id", "status"),
        has_id=True,
        refine=_mcp_call,
    ),
    "shell_call": ItemRule(required=("call_id", "action"), optional=("environment", *_CALLED)),
    "shell_call_output": ItemRule(
        required=("call_id", "output"), optional=("max_output_length", *_CALLED), refine=_shell_output
    ),
    "apply_patch_call": ItemRule(required=("call_id", "operation", "status"), optional=("caller",)),
    "apply_patch_call_output": ItemRule(required=("call_id", "status"), optional=("output", "caller")),
    "local_shell_call": ItemRule(required=("call_id", "action", "status"), has_id=True),
    "computer_call": ItemRule(
        required=("call_id", "pending_safety_checks", "status"), optional=("action", "actions"), has_id=True
    ),
    "tool_search_call": ItemRule(required=("arguments",), optional=("call_id", "execution", "status")),
    "tool_search_output": ItemRule(required=("tools",), optional=("call_id", "execution", "status")),
}
"""Rules by item type. Other types are left out, and messages are rebuilt from text parts."""
